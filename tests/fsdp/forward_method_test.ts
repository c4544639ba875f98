/** Methods that gather and free as the forward does. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { fullyShard, registerFsdpForwardMethod, scope, type Tensor } from "../../mod.ts";
import { initializeParameters, Linear, Module } from "../../doors/nn.ts";
import { traffic, WIDTH } from "./life_cycle_scenario.ts";
import { gradients, input } from "./modules.ts";
import { openRank } from "./run.ts";

describe("registerFsdpForwardMethod()", () => {
  class Encoder extends Module<[x: Tensor], Tensor> {
    readonly linear: Linear;
    readonly width: number;
    constructor(device: Linear["weight"]["device"]) {
      super();
      this.linear = new Linear(device, WIDTH, WIDTH);
      this.width = WIDTH;
    }
    forward(x: Tensor): Tensor {
      return this.linear.call(x);
    }
    encode(x: Tensor, factor: number): { readonly out: Tensor } {
      return { out: this.linear.call(x).tanh().mul(factor) };
    }
  }

  it("lets another method gather, free and reduce, with its own arguments", async () => {
    const [rank, plain] = [await openRank(), await openRank()];
    const [model, twin] = [new Encoder(rank.device), new Encoder(plain.device)];
    const sharded = fullyShard(model, { mesh: rank.group, reshardAfterForward: true });
    for (const encoder of [model, twin]) {
      initializeParameters(encoder, 3);
      registerFsdpForwardMethod(encoder, "encode"); // of one that is not sharded it changes nothing
      using _frame = scope();
      encoder.encode(input(encoder.linear.weight.device, "x", 2, WIDTH), 3).out.sum().backward();
    }
    assert.deepEqual(traffic(rank), ["gather root forward", "gather root backward", "reduce root"]);
    assert.deepEqual(gradients(model.parameters()), gradients(twin.parameters()));
    assert.equal(sharded.unit.unsharded, false);
    assert.deepEqual([...model.children()].map(([name]) => name), ["linear"]);
  });

  it("may be called by the forward, or call it, and be registered again", async () => {
    /** Its own parameters are used after the other method has returned. */
    class Both extends Encoder {
      override forward(x: Tensor): Tensor {
        return this.encode(x, 2).out.matmul(this.linear.weight);
      }
      again(x: Tensor): Tensor {
        return this.call(x).matmul(this.linear.weight);
      }
    }
    const methods = ["call", "again"] as const;
    const runs = await Promise.all([true, false].map(async (isSharded) => {
      const rank = await openRank();
      const model = new Both(rank.device);
      const sharded = isSharded ? fullyShard(model, { mesh: rank.group, reshardAfterForward: true }) : undefined;
      initializeParameters(model, 3);
      for (const method of ["encode", "encode", "again"] as const) registerFsdpForwardMethod(model, method);
      return methods.map((method) => {
        using _frame = scope();
        rank.calls.length = 0;
        model.zeroGrad();
        model[method](input(rank.device, "x", 2, WIDTH)).sum().backward();
        if (isSharded) {
          assert.deepEqual(traffic(rank), ["gather root forward", "gather root backward", "reduce root"], method);
        }
        assert.equal(sharded?.unit.unsharded ?? false, false);
        return gradients(model.parameters());
      });
    }));
    assert.deepEqual(runs[0], runs[1]);
  });

  it("refuses what is no method", async () => {
    const { device } = await openRank();
    assert.throws(
      () => registerFsdpForwardMethod(new Encoder(device), "width"),
      /Encoder has no method 'width': name one that is called on it/,
    );
  });
});

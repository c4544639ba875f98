/** DDP: buckets, accumulation, broadcast, and the same norms as FSDP. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { AdamW, fullyShard, gradNorm, replicate, scope, type Tensor, tensor } from "../../mod.ts";
import type { Device } from "../../doors/device.ts";
import { initializeParameters, Linear, Module } from "../../doors/nn.ts";
import { runLoopback } from "../../doors/testing.ts";
import { byteLengthOf } from "../../src/comm/call.ts";
import { planBuckets } from "../../src/ddp/bucket.ts";
import { gradients, input, Stack } from "../fsdp/modules.ts";
import { openRank } from "../fsdp/run.ts";
import type { DdpReport } from "./rank.ts";

const WIDTH = 20;

function isReport(value: unknown): value is DdpReport {
  return typeof value === "object" && value !== null && "broadcast" in value;
}

function step(model: Module<[x: Tensor], Tensor>, device: Device, name: string): void {
  using _frame = scope();
  model.call(input(device, name, 3, WIDTH)).sum().backward();
}

describe("planBuckets()", () => {
  it("fills buckets in order, each as far as it goes", () => {
    const sizes = [10, 20, 30, 100, 5, 5].map((numel) => ({ numel }));
    const buckets = (bytes: number): number[][] =>
      planBuckets(sizes, bytes).map((bucket) => bucket.map(({ numel }) => numel));
    assert.deepEqual(buckets(4 * 60), [[10, 20, 30], [100], [5, 5]]);
    assert.deepEqual(buckets(4 * 59), [[10, 20], [30], [100], [5, 5]]);
    assert.deepEqual(buckets(1), [[10], [20], [30], [100], [5], [5]]);
    assert.deepEqual(planBuckets([], 100), []);
  });
});

describe("replicate()", () => {
  it("reduces buckets once a backward, those of the last parameters first", async () => {
    const { device, group, calls } = await openRank();
    const model = new Stack(device, WIDTH, 2);
    const replicated = replicate(model, { mesh: group, bucketBytes: 4 * (WIDTH * WIDTH + WIDTH) });
    initializeParameters(model, 5);
    calls.length = 0;
    step(model, device, "a");
    const reductions = calls.map((call) => `${call.kind} ${call.unit} ${byteLengthOf(call)}`);
    const bytes = 4 * (Math.ceil(WIDTH * WIDTH / 64) + 1) * 64;
    assert.deepEqual(reductions, [0, 1, 2].map((i) => `all-reduce gradient bucket ${i} ${bytes}`));
    replicated.setRequiresGradientSync(false);
    calls.length = 0;
    step(model, device, "b");
    assert.deepEqual(calls, []);
  });

  it("adds up without communication, divides once, and gives memory back with the gradients", async () => {
    const { device, group } = await openRank();
    const [model, plain] = [new Stack(device, WIDTH, 2), new Stack(device, WIDTH, 2)];
    const replicated = replicate(model, { mesh: group });
    for (const one of [model, plain]) initializeParameters(one, 5);
    const before = device.allocator.stats.inUse;
    replicated.setGradientDivideFactor(8);
    for (const [i, name] of ["a", "b", "c"].entries()) {
      replicated.setRequiresGradientSync(i === 2);
      step(model, device, name);
    }
    const got = gradients(model.parameters());
    for (const parameter of model.parameters()) parameter.zeroGrad();
    assert.equal(device.allocator.stats.inUse, before);
    for (const name of ["a", "b", "c"]) step(plain, device, name);
    const expected = gradients(plain.parameters());
    for (const [fqn, list] of expected) assert.deepEqual(got.get(fqn), list?.map((value) => value / 8), fqn);
    assert.throws(() => replicated.setGradientDivideFactor(0), /the factor must be positive/);
  });

  it("gives no gradient to parameters that no rank used", async () => {
    const { device, group } = await openRank();
    const model = new Stack(device, WIDTH, 3);
    replicate(model, { mesh: group, bucketBytes: 1 });
    initializeParameters(model, 5);
    model.order = [0, 2];
    step(model, device, "a");
    assert.equal(model.layers[1]?.linear.weight.grad, undefined);
    assert.ok(model.layers[0]?.linear.weight.grad?.toArray().some((value) => value !== 0));
  });

  it("reduces when the loss does not come through the root's output", async () => {
    const { device, group, calls } = await openRank();
    const model = new Stack(device, WIDTH, 2);
    replicate(model, { mesh: group });
    initializeParameters(model, 5);
    using _frame = scope();
    model.layers[0]?.call(input(device, "a", 3, WIDTH)).sum().backward();
    assert.deepEqual(calls.filter(({ kind }) => kind === "all-reduce").length, 1);
    assert.ok(model.layers[0]?.linear.weight.grad !== undefined);
  });

  it("reduces parameters that were frozen when it was called and are trained later", async () => {
    const { device, group, calls } = await openRank();
    const model = new Stack(device, WIDTH, 2);
    model.head.weight.requiresGrad = false;
    const replicated = replicate(model, { mesh: group });
    initializeParameters(model, 5);
    replicated.setGradientDivideFactor(8);
    step(model, device, "a");
    model.head.weight.requiresGrad = true;
    calls.length = 0;
    step(model, device, "b");
    const sizes = calls.filter(({ kind }) => kind === "all-reduce").map(byteLengthOf);
    assert.deepEqual(sizes, [4 * 3 * (448 + 64)], "all three layers, each gradient on a multiple of 64 elements");

    const plain = new Stack(device, WIDTH, 2);
    initializeParameters(plain, 5);
    step(plain, device, "a");
    plain.head.weight.zeroGrad();
    step(plain, device, "b");
    const got = gradients(model.parameters());
    for (const [fqn, list] of gradients(plain.parameters())) {
      assert.deepEqual(got.get(fqn), list?.map((value) => value / 8), fqn);
    }
  });

  it("leaves frozen parameters alone", async () => {
    const { device, group } = await openRank();
    const model = new Stack(device, WIDTH, 2);
    model.head.weight.requiresGrad = false;
    replicate(model, { mesh: group });
    initializeParameters(model, 5);
    const before = model.head.weight.toArray();
    step(model, device, "a");
    assert.equal(model.head.weight.grad, undefined);
    new AdamW(model.parameters()).step();
    assert.deepEqual(model.head.weight.toArray(), before);
  });

  it("starts afresh after a backward that failed", async () => {
    const { device, group, calls } = await openRank();
    const model = new Stack(device, WIDTH, 2);
    replicate(model, { mesh: group });
    initializeParameters(model, 5);
    const { kernels } = device;
    const product = kernels.gemm;
    {
      using _frame = scope();
      const loss = model.call(input(device, "a", 3, WIDTH)).sum();
      Object.defineProperty(kernels, "gemm", {
        configurable: true,
        value: () => {
          throw new Error("injected");
        },
      });
      assert.throws(() => loss.backward(), /injected/);
      Object.defineProperty(kernels, "gemm", { configurable: true, value: product });
    }
    model.zeroGrad();
    calls.length = 0;
    step(model, device, "a");
    assert.equal(calls.length, 1);
  });

  it("refuses to replicate twice until it is disposed, and modules without parameters that require a gradient", async () => {
    const { device, group, calls } = await openRank();
    const model = new Stack(device, WIDTH, 1);
    const first = replicate(model, { mesh: group });
    assert.throws(() => replicate(model, { mesh: group }), /Cannot replicate '.*': it is replicated already/);
    first.dispose();
    replicate(model, { mesh: group });
    initializeParameters(model, 5);
    calls.length = 0;
    step(model, device, "a");
    assert.equal(calls.length, 1, "the first one's hook is gone");
    const frozen = new Stack(device, WIDTH, 1);
    for (const parameter of frozen.parameters()) parameter.requiresGrad = false;
    assert.throws(() => replicate(frozen, { mesh: group }), /Cannot replicate Stack: no parameter requires a gradient/);
  });

  it("has the norm and gradients that fullyShard() has", async () => {
    const { device, group } = await openRank();
    const [copied, sharded] = [new Stack(device, WIDTH, 3), new Stack(device, WIDTH, 3)];
    replicate(copied, { mesh: group });
    for (const layer of sharded.layers) fullyShard(layer, { mesh: group });
    fullyShard(sharded, { mesh: group });
    for (const model of [copied, sharded]) {
      initializeParameters(model, 5);
      step(model, device, "a");
    }
    assert.equal(gradNorm(copied.parameters()).item(), gradNorm(sharded.parameters()).item());
    assert.deepEqual(gradients(copied.parameters()), gradients(sharded.parameters()));
  });

  it("takes rank 0's values and averages gradients, on 3 ranks", async () => {
    const reports = (await runLoopback(3, new URL("./rank.ts", import.meta.url), WIDTH)).filter(isReport);
    assert.equal(reports.length, 3);
    const [first, ...others] = reports;
    assert.ok(first !== undefined);
    for (const other of others) {
      assert.deepEqual(other.broadcast, first.broadcast);
      assert.deepEqual(other.reduced, first.reduced);
      assert.equal(other.norm, first.norm);
      assert.notDeepEqual(other.own, first.own);
    }
    assert.deepEqual(first.broadcast, first.initial, "rank 0 keeps its values");
    for (const [i, value] of first.reduced.entries()) {
      const mean = reports.reduce((sum, { own }) => sum + (own[i] ?? NaN), 0) / 3;
      assert.ok(Math.abs(value - mean) <= 1e-5 * (1 + Math.abs(mean)), `${value} is not ${mean}`);
    }
  });

  it("does not scale again what was reduced before, as fullyShard() does not", async () => {
    const gradient = async (sharded: boolean): Promise<readonly number[]> => {
      const { device, group } = await openRank();
      using _frame = scope();
      const model = new Linear(device, 2, 1, { bias: false });
      const parallel = sharded ? fullyShard(model, { mesh: group }) : replicate(model, { mesh: group });
      initializeParameters(model, 0);
      parallel.setGradientDivideFactor(10);
      for (let pass = 0; pass < 3; pass++) model.call(tensor(device, [1, 2], { shape: [1, 2] })).sum().backward();
      return [...model.weight.grad?.toArray() ?? []];
    };
    const [ddp, fsdp] = [await gradient(false), await gradient(true)];
    assert.deepEqual(ddp, fsdp);
    assert.ok(Math.abs((ddp[0] ?? NaN) - 0.3) < 1e-6 && Math.abs((ddp[1] ?? NaN) - 0.6) < 1e-6);
  });

  it("leaves one run to the optimizer when it is undone", async () => {
    const { device, group } = await openRank();
    using _frame = scope();
    const model = new Linear(device, 2, 1, { bias: false });
    initializeParameters(model, 0);
    const optimizer = new AdamW(model.parameters());
    const step = (): void => {
      model.call(tensor(device, [1, 2], { shape: [1, 2] })).sum().backward();
      optimizer.step();
      optimizer.zeroGrad();
    };
    step();
    const replica = replicate(model, { mesh: group });
    step();
    replica.dispose();
    step();
    assert.equal(optimizer.stepsOf(model.weight), 3);
  });

  it("changes nothing when it refuses", async () => {
    const { device, group } = await openRank();
    class Two extends Module<[x: Tensor], Tensor> {
      readonly a: Linear = new Linear(device, 2, 2);
      readonly b: Linear = new Linear(device, 2, 2);
      forward(x: Tensor): Tensor {
        return this.b.call(this.a.call(x));
      }
    }
    const two = new Two();
    fullyShard(two.a, { mesh: group });
    assert.throws(() => replicate(two, { mesh: group }), /is sharded already/);
    replicate(two.b, { mesh: group });
  });
});

/**
 * Ops applied to a parameter in bfloat16 directly: its gradient is added up in float32.
 *
 * @module
 */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { bfloat16, fullyShard, scope, type Tensor, tensor } from "../../mod.ts";
import { initializeParameters, Module, Parameter, swiglu } from "../../doors/nn.ts";
import { openRank } from "./run.ts";
import type { Rank } from "./scenarios.ts";

/** One parameter that an op is applied to directly. */
class Applied extends Module<[weights: Tensor], Tensor> {
  readonly scale: Parameter;
  readonly #op: (x: Tensor) => Tensor;

  constructor(device: Rank["device"], op: (x: Tensor) => Tensor) {
    super();
    this.scale = new Parameter(device, [4], { init: { kind: "constant", value: 1 } });
    this.#op = op;
  }

  forward(weights: Tensor): Tensor {
    return this.#op(this.scale).mul(weights);
  }
}

/** Gradient of the parameter under an op, computed in a dtype. */
async function gradientOf(op: (x: Tensor) => Tensor, bf16: boolean): Promise<readonly number[]> {
  const { device, group } = await openRank();
  using _frame = scope();
  const model = new Applied(device, op);
  fullyShard(model, { mesh: group, ...bf16 ? { precision: { paramDtype: bfloat16 } } : {} });
  initializeParameters(model, 0);
  const weights = tensor(device, [1, 2, 3, 4]);
  model.call(bf16 ? weights.to(bfloat16) : weights).sum().backward();
  return [...model.scale.grad?.toArray() ?? []];
}

describe("gradients of a bfloat16 parameter in float32", () => {
  const ops: Readonly<Record<string, (x: Tensor) => Tensor>> = {
    mul: (x) => x.mul(2),
    exp: (x) => x.exp(),
    softmax: (x) => x.softmax(),
    mean: (x) => x.mean(0, true),
    swiglu: (x) => swiglu(x, x),
    add: (x) => x.add(x),
  };
  for (const [name, op] of Object.entries(ops)) {
    it(`are those of float32 up to rounding: ${name}`, async () => {
      const [exact, rounded] = [await gradientOf(op, false), await gradientOf(op, true)];
      assert.equal(exact.length, 4);
      exact.forEach((value, i) =>
        assert.ok(Math.abs((rounded[i] ?? NaN) - value) <= 0.02 * Math.abs(value) + 1e-2, name)
      );
    });
  }
});

/**
 * States that went wrong once: ops on bfloat16 parameters, failures in the middle, disposing twice, parts of a model.
 *
 * @module
 */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { AdamW, bfloat16, fullyShard, noGrad, replicate, scope, SGD, type Tensor, tensor } from "../../mod.ts";
import {
  initializeParameters,
  Linear,
  Module,
  Parameter,
  rope,
  swiglu,
  writeParameters,
  zeros,
} from "../../doors/nn.ts";
import { keyOf } from "../../doors/testing.ts";
import { openDevice } from "../../doors/device.ts";
import { ProcessGroup } from "../../doors/comm.ts";
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

describe("replicate()", () => {
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

describe("fullyShard()", () => {
  it("gathers again after a gather that failed", async () => {
    const { device, group } = await openRank();
    using _frame = scope();
    let failures = 1;
    class FailingGroup extends ProcessGroup {
      override openWindow(...args: Parameters<ProcessGroup["openWindow"]>): ReturnType<ProcessGroup["openWindow"]> {
        const window = group.openWindow(...args);
        return {
          pointer: window.pointer,
          byteLengths: window.byteLengths,
          beginWrite: (...write) => window.beginWrite(...write),
          endWrite: () => window.endWrite(),
          gather: (...gather) => {
            if (failures-- > 0) throw new Error("the gather failed");
            return window.gather(...gather);
          },
          dispose: () => window.dispose(),
        };
      }
    }
    const failing: ProcessGroup = Object.create(group, {
      openWindow: { value: FailingGroup.prototype.openWindow },
      size: { value: group.size },
      rank: { value: group.rank },
      reduceScatter: { value: group.reduceScatter.bind(group) },
    });
    const model = new Linear(device, 2, 2);
    const sharded = fullyShard(model, { mesh: failing });
    initializeParameters(model, 0);
    const x = tensor(device, [1, 2], { shape: [1, 2] });
    assert.throws(() => model.call(x), /the gather failed/);
    assert.equal(model.call(x).numel, 2);
    sharded.dispose();
    sharded.dispose();
  });

  it("ends its write when a callback fails", async () => {
    const { device, group } = await openRank();
    using _frame = scope();
    const model = new Linear(device, 2, 2);
    fullyShard(model, { mesh: group });
    assert.throws(() =>
      writeParameters(model.parameters(), () => {
        throw new Error("no");
      }), /no/);
    initializeParameters(model, 0);
    assert.equal(model.call(tensor(device, [1, 2], { shape: [1, 2] })).numel, 2);
  });
});

describe("values and names", () => {
  it("initializeParameters() of a part keeps the names that the whole gave", async () => {
    const { device } = await openRank();
    class Whole extends Module<[], void> {
      readonly left: Linear = new Linear(device, 3, 3, { bias: false });
      readonly right: Linear = new Linear(device, 3, 3, { bias: false });
      forward(): void {}
    }
    const [whole, parts] = [new Whole(), new Whole()];
    initializeParameters(whole, 5);
    initializeParameters(parts, 0);
    for (const part of [parts.left, parts.right]) initializeParameters(part, 5);
    assert.deepEqual([parts.left.weight.fqn, parts.right.weight.fqn], ["left.weight", "right.weight"]);
    assert.deepEqual(parts.left.weight.toArray(), whole.left.weight.toArray());
    assert.deepEqual(parts.right.weight.toArray(), whole.right.weight.toArray());
    assert.notDeepEqual(parts.left.weight.toArray(), parts.right.weight.toArray());
    assert.equal(parts.left.weight.buffer.owner, "left.weight");
    assert.ok(keyOf(5, "left.weight") !== keyOf(5, "right.weight"));
  });

  it("copyFromHost(), rope(), optimizers, noGrad() and openDevice() refuse what they would misread", async () => {
    const { device } = await openRank();
    using _frame = scope();
    assert.throws(() => zeros(device, [3]).copyFromHost(new Int32Array(3)), /DTypeError.*int32/s);
    const table = (rows: number): Tensor => zeros(device, [rows, 1]);
    const x = zeros(device, [1, 1, 2]);
    assert.throws(() => rope(x, table(2), table(1), 2), /both tables must have one shape/);
    const far = tensor(device, [7], { shape: [1, 1], dtype: (await import("../../mod.ts")).int32 });
    assert.throws(() => rope(x, table(2), table(2), 2, far), /Cannot use position 7: positions must be in \[0, 2\)/);
    const parameters = [new Parameter(device, [1])];
    assert.throws(() => new AdamW([{ parameters, learningRate: -1 }]), /learningRate -1/);
    assert.throws(() => new SGD([{ parameters, weightDecay: NaN }]), /weightDecay NaN/);
    assert.throws(() => noGrad(async () => await Promise.resolve(1)), /async/);
    assert.throws(() => openDevice("cpu:7"), /Cannot open device 'cpu:7'/);
  });

  it("div(number) divides", async () => {
    const { device } = await openRank();
    using _frame = scope();
    assert.deepEqual([...tensor(device, [5, 7, 10]).div(3).toArray()], [5 / 3, 7 / 3, 10 / 3].map(Math.fround));
    assert.equal(zeros(device, [1]).div(1e-39).item(), 0);
  });
});

/** Averages of weights against torch's AveragedModel (`tests/parity/make_averages.py`), with every optimizer, and what is refused. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { openDevice } from "../../src/device/registry.ts";
import { ArgumentError } from "../../src/errors.ts";
import { AdamW } from "../../src/optim/adamw.ts";
import type { Optimizer } from "../../src/optim/optimizer.ts";
import { OPTIMIZER_NAMES, OPTIMIZERS } from "../../src/optim/registry.ts";
import { SCHEDULES } from "../../src/optim/schedule.ts";
import { SGD } from "../../src/optim/sgd.ts";
import { numelOf } from "../../src/shape.ts";
import { tensor } from "../../src/tensor/create.ts";
import type { Parameter } from "../../src/tensor/parameter.ts";
import { allClose } from "../support/allclose.ts";
import { fixturePath } from "../support/golden.ts";
import { disposeLeaf, leaf } from "../support/gradcheck.ts";

const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 25 });
const { shapes, steps, cases }: {
  readonly shapes: readonly (readonly number[])[];
  readonly steps: number;
  readonly cases: readonly {
    readonly kind: "AdamW" | "SGD";
    readonly decay: number;
    readonly start: number;
    /** After each step, by parameter. */
    readonly averages: readonly (readonly (readonly number[])[])[];
  }[];
} = JSON.parse(readFileSync(fixturePath("averages.json"), "utf8"));

/** The parameters of `make_averages.py`. */
function initial(): Parameter[] {
  return shapes.map((shape, p) => {
    return leaf(device, { shape, data: Array.from({ length: numelOf(shape) }, (_, i) => Math.cos(7 * p + i)) });
  });
}

/** Gives parameters the gradients of a step. */
function setGradients(parameters: readonly Parameter[], step: number): void {
  for (const [p, parameter] of parameters.entries()) {
    parameter.zeroGrad();
    if (step === 2 && p === parameters.length - 1) continue;
    const values = Array.from({ length: parameter.numel }, (_, i) => Math.sin(step + 3 * p + i));
    parameter.storage.sink.contribute(tensor(device, values, { shape: parameter.shape }));
    parameter.storage.sink.finish();
  }
}

const valuesOf = (parameters: readonly Parameter[]): number[][] => parameters.map((one) => [...one.toArray()]);

for (const { kind, decay, start, averages } of cases) {
  test(`averages of ${kind} with decay ${decay} from step ${start} on are those of AveragedModel`, async () => {
    const parameters = initial();
    const [options, average] = [{ learningRate: 0.1 }, { emaDecay: decay, emaStart: start }];
    const optimizer: Optimizer = kind === "AdamW"
      ? new AdamW(parameters, { ...options, ...average })
      : new SGD(parameters, { ...options, ...average });
    assert.ok(optimizer.hasAverages);
    for (let step = 0; step < steps; step++) {
      setGradients(parameters, step);
      optimizer.step();
      const weights = valuesOf(parameters);
      const used = await optimizer.withAverages(() => valuesOf(parameters));
      for (const [p, values] of used.entries()) {
        const expected = Float32Array.from(averages[step]?.[p] ?? assert.fail());
        allClose(values, expected, { relative: 2e-6, absolute: 2e-7 }, `parameter ${p} after step ${step}`);
      }
      assert.deepEqual(valuesOf(parameters), weights, "the weights are not as they were");
    }
    optimizer.dispose();
    parameters.forEach(disposeLeaf);
  });
}

test("every optimizer keeps averages without another bit of its weights, and frees them", async () => {
  for (const name of OPTIMIZER_NAMES) {
    const before = device.allocator.stats.inUse;
    const settings = {
      schedule: SCHEDULES.constant({ steps: 4, warmupSteps: 0 }),
      beta1: 0.9,
      adjustLr: "original",
    } as const;
    const trained = [{}, { emaDecay: 0.75 }].map((average) => {
      const parameters = initial();
      const groups = parameters.map((parameter) => {
        return { parameters: [parameter], learningRate: 0.05, weightDecay: 0.1, isHidden: parameter.ndim === 2 };
      });
      return { parameters, optimizer: OPTIMIZERS[name].make(groups, { ...settings, ...average }) };
    });
    let expected: number[][] | undefined;
    for (let step = 0; step < 4; step++) {
      for (const { parameters, optimizer } of trained) {
        setGradients(parameters, step);
        optimizer.step();
      }
      const [plain, kept] = trained;
      assert.ok(plain !== undefined && kept !== undefined);
      const weights = valuesOf(kept.parameters);
      assert.deepEqual(weights, valuesOf(plain.parameters), name);
      expected = expected?.map((all, p) => all.map((value, i) => 0.75 * value + 0.25 * (weights[p]?.[i] ?? NaN))) ??
        weights;
      const used = await kept.optimizer.withAverages(() => valuesOf(kept.parameters));
      for (const [p, values] of used.entries()) {
        allClose(
          values,
          Float32Array.from(expected[p] ?? []),
          { relative: 1e-6, absolute: 1e-6 },
          `${name}, parameter ${p}`,
        );
      }
      const bytes = kept.parameters.reduce((sum, { numel }) => sum + 4 * numel, 0);
      assert.equal(kept.optimizer.stateBytes - plain.optimizer.stateBytes, bytes, name);
    }
    for (const { parameters, optimizer } of trained) {
      optimizer.dispose();
      parameters.forEach(disposeLeaf);
    }
    assert.equal(device.allocator.stats.inUse, before, name);
  }
});

test("withAverages() gives the weights back after an error, and refuses what would mix them up", async () => {
  const parameters = initial();
  const optimizer = new SGD(parameters, { learningRate: 0.1, emaDecay: 0.9 });
  const before = await optimizer.withAverages(() => valuesOf(parameters));
  assert.deepEqual(before, valuesOf(parameters), "before the first step averages are copies");
  for (const step of [0, 1]) {
    setGradients(parameters, step);
    optimizer.step();
  }
  const weights = valuesOf(parameters);
  await assert.rejects(
    optimizer.withAverages(() => {
      assert.notDeepEqual(valuesOf(parameters), weights);
      throw new RangeError("the disk is full");
    }),
    /the disk is full/,
  );
  assert.deepEqual(valuesOf(parameters), weights);
  const inside = /inside of withAverages: averages stand where the weights were/;
  await optimizer.withAverages(async () => {
    assert.throws(() => optimizer.step(), inside);
    assert.throws(() => optimizer.stateViews(), inside);
    await assert.rejects(optimizer.withAverages(() => 0), inside);
  });
  optimizer.step();
  const plain = new SGD(parameters, { learningRate: 0.1 });
  assert.equal(plain.hasAverages, false);
  await assert.rejects(plain.withAverages(() => 0), /no group keeps any, set emaDecay/);
  for (
    const options of [{ emaDecay: 1 }, { emaDecay: -0.1 }, { emaDecay: NaN }, { emaStart: 1 }, {
      emaDecay: 0.5,
      emaStart: -1,
    }]
  ) {
    assert.throws(() => new SGD(parameters, options), ArgumentError, JSON.stringify(options));
  }
  optimizer.dispose();
  parameters.forEach(disposeLeaf);
});

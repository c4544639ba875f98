/**
 * Lion, Muon, Adafactor and AdamW with 8-bit states against torch.optim and bitsandbytes over 10 steps
 * (`tests/parity/make_optimizers.py`), and what each of them refuses.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import * as z from "zod";
import { uint8 } from "../../src/dtype.ts";
import { openDevice } from "../../src/device/registry.ts";
import { ArgumentError } from "../../src/errors.ts";
import { Adafactor } from "../../src/optim/adafactor.ts";
import { AdamW8bit } from "../../src/optim/adamw8bit.ts";
import { Lion } from "../../src/optim/lion.ts";
import { Muon } from "../../src/optim/muon.ts";
import type { Optimizer } from "../../src/optim/optimizer.ts";
import { numelOf } from "../../src/shape.ts";
import { tensor } from "../../src/tensor/create.ts";
import type { Parameter } from "../../src/tensor/parameter.ts";
import { allClose } from "../support/allclose.ts";
import { readGolden, readJson } from "../support/golden.ts";
import { disposeLeaf, leaf } from "../support/gradcheck.ts";

const device = await openDevice("cpu", { memoryBytes: 32 * 2 ** 20 });
const golden = await readGolden("optimizers/expected.safetensors");
const pair = z.tuple([z.number(), z.number()]);
const { cases, steps, kept } = z.object({
  steps: z.number(),
  kept: z.array(z.number()),
  cases: z.record(
    z.string(),
    z.object({
      kind: z.enum(["Lion", "Muon", "Adafactor", "AdamW8bit"]),
      shapes: z.array(z.array(z.number())),
      options: z.strictObject({
        lr: z.number(),
        betas: pair,
        eps: z.union([z.number(), pair]),
        weight_decay: z.number(),
        momentum: z.number(),
        nesterov: z.boolean(),
        ns_steps: z.number(),
        adjust_lr_fn: z.enum(["original", "match_rms_adamw", "spectral_unclamped"]),
        beta2_decay: z.number(),
        d: z.number(),
      }).partial(),
    }),
  ),
}).parse(readJson("optimizers/expected.json"));
type Case = typeof cases[string];

/** The numbers of `value` in `make_optimizers.py`. */
function value(shape: readonly number[], seed: number): number[] {
  return Array.from(
    { length: numelOf(shape) },
    (_, i) => ((i + 1) * 7919 + seed * 104729) * 48271 % 65521 / 65536 - 0.5,
  );
}

/** Our name of each option of the references. */
const NAMES = {
  lr: "learningRate",
  betas: "betas",
  eps: "eps",
  weight_decay: "weightDecay",
  momentum: "momentum",
  nesterov: "nesterov",
  ns_steps: "nsSteps",
  adjust_lr_fn: "adjustLr",
  beta2_decay: "beta2Decay",
  d: "clipThreshold",
} as const;

function make({ kind, options }: Case, parameters: readonly Parameter[]): Optimizer {
  const own = Object.fromEntries(
    Object.entries(options).map(([name, one]) => {
      assert.ok(name in NAMES);
      return [Object.entries(NAMES).find(([theirs]) => theirs === name)?.[1] ?? name, one];
    }),
  );
  if (kind === "Lion") return new Lion(parameters, own);
  if (kind === "Muon") return new Muon(parameters, own);
  if (kind === "Adafactor") return new Adafactor(parameters, own);
  return new AdamW8bit(parameters, { weightDecay: 0.01, ...own });
}

/** Allowed distances of weights. Muon's matrices are bfloat16, and products round in other places than PyTorch's. */
const TOLERANCES = {
  Lion: { relative: 2e-6, absolute: 2e-7 },
  Muon: { relative: 0, absolute: 1e-3 },
  Adafactor: { relative: 2e-5, absolute: 2e-6 },
};

/**
 * The first moment is rounded in another place than bitsandbytes', so a moment half-way between two values of the map may get the other
 * code: at most one element in 200 may be off by more than a rounding, by at most a third of a step.
 */
function assertMostlyClose(got: ArrayLike<number>, expected: Float32Array, label: string): void {
  const distances = Array.from(expected, (value, i) => Math.abs(value - (got[i] ?? NaN)));
  assert.ok(distances.every((distance) => distance < 6e-3), `${label}: ${Math.max(...distances)}`);
  const off = distances.filter((distance) => distance > 1e-5).length;
  assert.ok(off <= distances.length / 200, `${label}: ${off} of ${distances.length} elements are off`);
}

/** Names of bitsandbytes' states here, where they differ. */
const THEIR_STATES: Readonly<Record<string, string>> = { exp_avg: "state1", exp_avg_sq: "state2" };

for (const [name, one] of Object.entries(cases)) {
  test(`${one.kind} '${name}' follows its reference for ${steps} steps`, () => {
    const before = device.allocator.stats.inUse;
    const parameters = one.shapes.map((shape, i) => leaf(device, { shape, data: value(shape, 1000 + i) }));
    const optimizer = make(one, parameters);
    for (let step = 1; step <= steps; step++) {
      for (const [i, parameter] of parameters.entries()) {
        parameter.zeroGrad();
        const grad = value(parameter.shape, 10 * step + i).map((x) =>
          Math.fround(x) * Math.fround(10 ** (step % 4 - 2))
        );
        parameter.storage.sink.contribute(tensor(device, grad, { shape: parameter.shape }));
        parameter.storage.sink.finish();
      }
      optimizer.step();
      if (!kept.includes(step)) continue;
      for (const [i, parameter] of parameters.entries()) {
        const label = `parameter ${i} after step ${step}`;
        const [got, expected] = [parameter.toArray(), golden.floats(`${name}.${step}.${i}`)];
        if (one.kind === "AdamW8bit") assertMostlyClose(got, expected, label);
        else allClose(got, expected, TOLERANCES[one.kind], label);
      }
    }
    let compared = 0;
    for (const { parameter, name: state, shard, dtype, ptr } of optimizer.stateViews()) {
      const i = parameters.indexOf(parameter);
      const theirs = [state, THEIR_STATES[state]].map((one) => `${name}.state.${one}.${i}`).find((one) =>
        golden.has(one)
      );
      assert.ok(theirs !== undefined, state);
      const expected = golden.floats(theirs);
      compared++;
      if (dtype === uint8) {
        const codes = new Uint8Array(shard.numel);
        device.copyOut(codes, ptr());
        const others = codes.filter((code, at) => code !== expected[at]);
        assert.ok(others.length <= codes.length / 500, `${others.length} of ${codes.length} codes of ${state} differ`);
      } else {
        const values = new Float32Array(shard.numel);
        device.copyOut(new Uint8Array(values.buffer), ptr());
        allClose(values, expected, { relative: 1e-4, absolute: 1e-7 }, `${state} of ${i}`);
      }
    }
    assert.equal(compared, golden.names.filter((one) => one.startsWith(`${name}.state.`)).length);
    optimizer.dispose();
    parameters.forEach(disposeLeaf);
    assert.equal(device.allocator.stats.inUse, before);
  });
}

test("Optimizer.stateBytes: a mean a row and column, a byte an element, and a momentum", () => {
  const parameters = [leaf(device, { shape: [64, 128], data: value([64, 128], 1) })];
  for (
    const [optimizer, bytes] of [
      [new Adafactor(parameters), 4 * (64 + 128)],
      [new AdamW8bit(parameters), 2 * (8192 + 4 * 32)],
      [new Muon(parameters), 4 * 8192],
      [new Lion(parameters), 4 * 8192],
    ] as const
  ) {
    assert.equal(optimizer.stateBytes, bytes);
    optimizer.dispose();
  }
  parameters.forEach(disposeLeaf);
});

test("Muon() updates what is no matrix by AdamW where a group says so, and refuses it elsewhere", () => {
  const [matrix, vector] = [[4, 6], [6]].map((shape) => leaf(device, { shape, data: value(shape, 3) }));
  assert.ok(matrix !== undefined && vector !== undefined);
  assert.throws(
    () => new Muon([matrix, vector]),
    (error) =>
      error instanceof ArgumentError &&
      /Cannot update 'parameter' \[6\] by Muon: expected a matrix\. Give it a group with useMuon: false/.test(
        error.message,
      ),
  );
  const optimizer = new Muon([{ parameters: [matrix] }, { parameters: [vector], useMuon: false }]);
  assert.deepEqual([...optimizer.stateViews()].map(({ name, parameter }) => [name, parameter === matrix]), [
    ["momentum_buffer", true],
    ["exp_avg", false],
    ["exp_avg_sq", false],
  ]);
  optimizer.dispose();
  for (const options of [{ momentum: 2 }, { nsSteps: 0 }, { nsSteps: 100 }, { adjustLr: "best" }, { eps: -1 }]) {
    assert.throws(() => Reflect.construct(Muon, [[matrix], options]), ArgumentError, JSON.stringify(options));
  }
  for (const options of [{ eps: [-1, 0] }, { beta2Decay: 0.5 }, { clipThreshold: 0.5 }, { learningRate: NaN }]) {
    assert.throws(() => Reflect.construct(Adafactor, [[matrix], options]), ArgumentError, JSON.stringify(options));
  }
  assert.throws(() => new Lion([matrix], { betas: [1, 0.9] }), /betas \[1, 0\.9\]/);
  assert.throws(() => new AdamW8bit([matrix], { eps: -1 }), /eps -1/);
  for (const parameter of [matrix, vector]) disposeLeaf(parameter);
});

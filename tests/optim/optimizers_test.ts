/**
 * AdamW and SGD against torch.optim (`tests/parity/make_optim.py`), step by step, with a parameter that has no gradient now and
 * then; and what both share: groups, states, frozen parameters, memory.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import * as z from "zod";
import { openProcessGroup } from "../../src/comm/registry.ts";
import { openDevice } from "../../src/device/registry.ts";
import { ArgumentError } from "../../src/errors.ts";
import { fullyShard } from "../../src/fsdp/fully_shard.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { Linear } from "../../src/nn/linear.ts";
import { AdamW, type AdamWSettings } from "../../src/optim/adamw.ts";
import type { ParamGroupOptions } from "../../src/optim/groups.ts";
import type { Optimizer } from "../../src/optim/optimizer.ts";
import { SGD, type SGDSettings } from "../../src/optim/sgd.ts";
import { tensor } from "../../src/tensor/create.ts";
import type { Parameter } from "../../src/tensor/parameter.ts";
import { scope } from "../../src/tensor/scope.ts";
import { ownedPtr } from "../../src/tensor/write.ts";
import { allClose } from "../support/allclose.ts";
import { readGolden, readJson } from "../support/golden.ts";
import { disposeLeaf, leaf } from "../support/gradcheck.ts";
import { random } from "../support/reference.ts";

const device = await openDevice("cpu", { memoryBytes: 32 * 2 ** 20 });
const golden = await readGolden("optim/expected.safetensors");
const { cases, steps } = z.object({
  steps: z.number(),
  cases: z.record(
    z.string(),
    z.object({
      kind: z.string(),
      lr: z.number().optional(),
      betas: z.tuple([z.number(), z.number()]).optional(),
      eps: z.number().optional(),
      weight_decay: z.number().optional(),
      momentum: z.number().optional(),
      dampening: z.number().optional(),
      nesterov: z.boolean().optional(),
      rates: z.array(z.number()).optional(),
      groups: z.object({ lr: z.number(), weight_decay: z.number() }).optional(),
    }),
  ),
}).parse(readJson("optim/expected.json"));

/** The parameters as the golden file begins. */
function initial(): Parameter[] {
  return [0, 1, 2].map((i) => {
    const { shape, data } = golden.get(`init.${i}`);
    return leaf(device, { shape, data: [...data] });
  });
}

/** Gives a parameter a gradient, as a backward pass would. */
function setGrad(parameter: Parameter, values: ArrayLike<number>): void {
  parameter.zeroGrad();
  parameter.storage.sink.contribute(tensor(device, values, { shape: parameter.shape }));
  parameter.storage.sink.finish();
}

for (const [name, options] of Object.entries(cases)) {
  test(`${options.kind} '${name}' follows torch.optim`, () => {
    const before = device.allocator.stats.inUse;
    const parameters = initial();
    const [first, ...others] = parameters;
    assert.ok(first !== undefined);
    const { groups: own } = options;
    const groups: Iterable<Parameter> | readonly ParamGroupOptions[] = own === undefined
      ? parameters
      : [{ parameters: [first], learningRate: own.lr, weightDecay: own.weight_decay }, { parameters: others }];
    const common = {
      ...options.lr === undefined ? {} : { learningRate: options.lr },
      ...options.weight_decay === undefined ? {} : { weightDecay: options.weight_decay },
    };
    const { betas, eps, momentum, dampening, nesterov } = options;
    const optimizer: Optimizer = options.kind === "AdamW"
      ? new AdamW(groups, { ...common, ...betas === undefined ? {} : { betas }, ...eps === undefined ? {} : { eps } })
      : new SGD(groups, {
        ...common,
        ...momentum === undefined ? {} : { momentum },
        ...dampening === undefined ? {} : { dampening },
        ...nesterov === undefined ? {} : { nesterov },
      });
    let taken = 0;
    for (let step = 0; step < steps; step++) {
      optimizer.zeroGrad();
      for (const [i, parameter] of parameters.entries()) {
        if (golden.has(`grad.${step}.${i}`)) setGrad(parameter, golden.floats(`grad.${step}.${i}`));
      }
      const rate = options.rates?.[step];
      if (rate !== undefined) { for (const group of optimizer.groups) group.learningRate = rate; }
      optimizer.step();
      if (golden.has(`grad.${step}.2`)) taken++;
      for (const [i, parameter] of parameters.entries()) {
        const expected = golden.floats(`${name}.${step}.${i}`);
        allClose(
          parameter.toArray(),
          expected,
          { relative: 2e-6, absolute: 5e-7 },
          `parameter ${i} after step ${step}`,
        );
      }
    }
    assert.deepEqual(parameters.map((parameter) => optimizer.stepsOf(parameter)), [steps, steps, taken]);
    optimizer.dispose();
    parameters.forEach(disposeLeaf);
    assert.equal(device.allocator.stats.inUse, before);
  });
}

test("Optimizer.step() leaves a parameter without a gradient as it is, to the bit", () => {
  const parameters = initial();
  const untouched = parameters[1]?.toArray();
  const optimizer = new AdamW(parameters);
  for (let step = 0; step < 3; step++) {
    const [first] = parameters;
    if (first !== undefined) setGrad(first, golden.floats(`grad.${step}.0`));
    optimizer.step();
  }
  assert.deepEqual(parameters[1]?.toArray(), untouched);
  assert.deepEqual(parameters.map((parameter) => optimizer.stepsOf(parameter)), [3, 0, 0]);
  optimizer.dispose();
  parameters.forEach(disposeLeaf);
});

test("Optimizer: a frozen parameter is not stepped, one trained later is", () => {
  const parameters = initial();
  const [first, second] = parameters;
  assert.ok(first !== undefined && second !== undefined);
  second.requiresGrad = false;
  const optimizer = new AdamW(parameters, { learningRate: 0.1 });
  const frozen = second.toArray();
  const step = (): void => {
    setGrad(first, golden.floats("grad.1.0"));
    setGrad(second, golden.floats("grad.1.1"));
    optimizer.step();
  };
  step();
  assert.deepEqual(second.toArray(), frozen);
  assert.ok(![...optimizer.stateViews()].some(({ parameter }) => parameter === second));
  second.requiresGrad = true;
  step();
  assert.notDeepEqual(second.toArray(), frozen);
  assert.deepEqual([optimizer.stepsOf(first), optimizer.stepsOf(second)], [2, 1]);
  assert.ok([...optimizer.stateViews()].some(({ parameter }) => parameter === second));
  second.requiresGrad = false;
  const again = second.toArray();
  step();
  assert.deepEqual(second.toArray(), again);
  optimizer.dispose();
  parameters.forEach(disposeLeaf);
});

test("Optimizer.stateViews() and setSteps() carry training on where another optimizer stopped", () => {
  const run = (stopAt: number | undefined): ArrayLike<number>[] => {
    const parameters = initial();
    let optimizer = new AdamW(parameters, { learningRate: 0.05 });
    for (let step = 0; step < 6; step++) {
      if (step === stopAt) {
        const next = new AdamW(parameters, { learningRate: 0.05 });
        const from = [...optimizer.stateViews()];
        for (const [i, view] of [...next.stateViews()].entries()) {
          const source = from[i];
          assert.ok(source?.name === view.name && source.parameter === view.parameter);
          device.copy(view.ptr(), source.ptr(), view.parameter.storage.shard.numel * 4);
        }
        for (const parameter of parameters) next.setSteps(parameter, optimizer.stepsOf(parameter));
        optimizer.dispose();
        optimizer = next;
      }
      for (const [i, parameter] of parameters.entries()) {
        parameter.zeroGrad();
        if (golden.has(`grad.${step}.${i}`)) setGrad(parameter, golden.floats(`grad.${step}.${i}`));
      }
      optimizer.step();
    }
    optimizer.dispose();
    const values = parameters.map((parameter) => parameter.toArray());
    parameters.forEach(disposeLeaf);
    return values;
  };
  assert.deepEqual(run(3), run(undefined));
});

test("Optimizer.stateBytes counts what is allocated", () => {
  const parameters = initial();
  const elements = parameters.reduce((sum, { numel }) => sum + numel, 0);
  for (
    const [optimizer, copies] of [[new AdamW(parameters), 2], [new SGD(parameters), 0], [
      new SGD(parameters, { momentum: 0.9 }),
      1,
    ]] as const
  ) {
    assert.equal(optimizer.stateBytes, copies * elements * 4);
    optimizer.dispose();
  }
  parameters.forEach(disposeLeaf);
});

test("Optimizer keeps states for the parameters that it holds only, not for the whole run that they lie in", async () => {
  using group = await openProcessGroup({ device });
  const train = (
    hold: (model: Linear) => readonly Parameter[],
  ): { weight: number[]; bias: number[]; bytes: number } => {
    using _frame = scope();
    const model = new Linear(device, 100, 64, { bias: true });
    fullyShard(model, { mesh: group });
    initializeParameters(model, 3);
    const [weight, bias] = [...model.parameters()];
    assert.ok(weight !== undefined && bias !== undefined && weight.storage.flatShard === bias.storage.flatShard);
    const before = device.allocator.stats.inUse;
    const optimizer = new AdamW(hold(model), { learningRate: 0.1 });
    const bytes = optimizer.stateBytes;
    // Two states, and what counts steps, each rounded up to 256 bytes.
    assert.ok(device.allocator.stats.inUse - before <= bytes + 3 * 256);
    for (let step = 0; step < 3; step++) {
      optimizer.zeroGrad();
      model.call(tensor(device, random([2, 100], step).data, { shape: [2, 100] })).square().sum().backward();
      optimizer.step();
    }
    const read = (parameter: Parameter): number[] => {
      const values = new Float32Array(parameter.storage.shard.numel);
      device.copyOut(new Uint8Array(values.buffer), ownedPtr(parameter));
      return [...values];
    };
    const result = { weight: read(weight), bias: read(bias), bytes };
    optimizer.dispose();
    return result;
  };
  const [all, one] = [train((model) => [...model.parameters()]), train(({ bias }) => bias === undefined ? [] : [bias])];
  assert.deepEqual([all.bytes, one.bytes], [2 * 4 * 6464, 2 * 4 * 64]);
  assert.notDeepEqual(all.weight, one.weight);
  const untouched = train(({ weight }) => [weight]);
  assert.equal(untouched.bytes, 2 * 4 * 6400);
  assert.notDeepEqual(untouched.bias, one.bias);
});

test("Optimizer.groups have settings of their own, which are plain data and each do what they say", () => {
  type Places = readonly (readonly [parameter: Parameter, place: number])[];
  const run = (make: (places: Places) => Optimizer, split: boolean): ArrayLike<number>[] => {
    const parameters = initial();
    const places = parameters.map((parameter, i) => [parameter, i] as const);
    const optimizers = split ? places.map((place) => make([place])) : [make(places)];
    for (let step = 0; step < 4; step++) {
      for (const [i, parameter] of parameters.entries()) setGrad(parameter, golden.floats(`grad.1.${i}`));
      for (const optimizer of optimizers) optimizer.step();
    }
    for (const optimizer of optimizers) optimizer.dispose();
    const values = parameters.map((parameter) => parameter.toArray());
    parameters.forEach(disposeLeaf);
    return values;
  };
  const adamw: Partial<AdamWSettings>[] = [
    { betas: [0.5, 0.6], eps: 1e-3, weightDecay: 0.2 },
    { learningRate: 0.3 },
    {},
  ];
  const sgd: Partial<SGDSettings>[] = [{ momentum: 0.9, dampening: 0.1 }, { momentum: 0.5, nesterov: true }, {}];
  const [together, apart] = [false, true].map((split) => [
    run((places) => new AdamW(places.map(([parameter, i]) => ({ ...adamw[i], parameters: [parameter] }))), split),
    run((places) => new SGD(places.map(([parameter, i]) => ({ ...sgd[i], parameters: [parameter] }))), split),
  ]);
  assert.deepEqual(together, apart);
  const parameters = initial();
  const optimizer = new AdamW([{ parameters: parameters.slice(1), betas: [0.8, 0.9] }, {
    parameters: parameters.slice(0, 1),
  }]);
  const data = optimizer.groups.map(({ parameters: _, ...settings }) => settings);
  assert.deepEqual(JSON.parse(JSON.stringify(data)), [
    { learningRate: 1e-3, betas: [0.8, 0.9], eps: 1e-8, weightDecay: 0.01 },
    { learningRate: 1e-3, betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0.01 },
  ]);
  assert.throws(() => new SGD([{ parameters, momentum: -1 }]), /momentum -1/);
  optimizer.dispose();
  parameters.forEach(disposeLeaf);
});

test("AdamW() and SGD() refuse hyper-parameters out of range and parameters given twice", () => {
  const parameters = initial();
  for (const options of [{ learningRate: -1 }, { betas: [1, 0.9] as const }, { eps: NaN }, { weightDecay: -0.1 }]) {
    assert.throws(() => new AdamW(parameters, options), ArgumentError);
  }
  for (
    const options of [{ learningRate: NaN }, { momentum: -1 }, { nesterov: true }, {
      nesterov: true,
      momentum: 0.9,
      dampening: 0.1,
    }]
  ) {
    assert.throws(() => new SGD(parameters, options), ArgumentError);
  }
  assert.throws(() => new AdamW([]), /without parameters/);
  assert.throws(
    () => new AdamW([...parameters, ...parameters.slice(1, 2)]),
    /'parameter' is given to the optimizer twice/,
  );
  parameters.forEach(disposeLeaf);
});

test("a parameter group with a setting that is out of range is refused", () => {
  const parameters = [leaf(device, { shape: [1], data: [0] })];
  assert.throws(() => new AdamW([{ parameters, learningRate: -1 }]), /learningRate -1/);
  assert.throws(() => new SGD([{ parameters, weightDecay: NaN }]), /weightDecay NaN/);
  for (const parameter of parameters) disposeLeaf(parameter);
});

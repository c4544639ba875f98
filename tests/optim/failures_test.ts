/** Steps, norms and clips whose memory runs out: nothing has changed, and the same call goes well afterwards. @module */
import assert from "node:assert/strict";
import { tmpdir } from "node:os";
import { after, describe, it } from "node:test";
import {
  Adafactor,
  AdamW,
  AdamW8bit,
  bfloat16,
  clipGradNorm,
  cpuOffloadPolicy,
  float32,
  fullyShard,
  GradScaler,
  Lion,
  Muon,
  replicate,
  scope,
  SGD,
} from "../../mod.ts";
import { openProcessGroup } from "../../doors/comm.ts";
import { openDevice, openFilePool, type StatePool } from "../../doors/device.ts";
import { FileError } from "../../doors/errors.ts";
import { initializeParameters, type Optimizer } from "../../doors/nn.ts";
import { at } from "../../src/at.ts";
import type { Allocator } from "../../src/device/allocator.ts";
import { input, Stack } from "../fsdp/modules.ts";
import { failAllocation } from "../support/failing_memory.ts";
import { messageOf } from "../support/message.ts";
import { ownedValues } from "../support/owned.ts";
import { usualFirst } from "../support/share.ts";

const device = await openDevice("cpu");
const group = await openProcessGroup({ device });
const optimizerStates = await openFilePool(tmpdir());
after(() => optimizerStates[Symbol.dispose]());

const KINDS = ["plain", "replicated", "sharded", "offloaded in part", "states in a file"] as const;
const CALLS = ["AdamW", "SGD", "Lion", "Muon", "Adafactor", "AdamW8bit", "clip", "clip with a scaler"] as const;

/** Width of the layers. AdamW8bit keeps states in 8 bits for parameters of 4096 elements or more. */
const widthOf = (call: typeof CALLS[number]): number => call === "AdamW8bit" ? 64 : 20;

function allocators(): readonly Allocator[] {
  const pool = optimizerStates.allocator;
  return [device.allocator, pool, ...device.offload.stats === undefined ? [] : [device.offload.device.allocator]];
}

function bytesInUse(): string {
  return allocators().map(({ stats }) => stats.inUse).join();
}

/** A model whose biases are frozen. */
function build(kind: typeof KINDS[number], width: number): Stack {
  const model = new Stack(device, width, 2);
  model.nameTree();
  setBiases(model, false);
  const precision = { paramDtype: bfloat16 };
  switch (kind) {
    case "plain":
      break;
    case "replicated":
      replicate(model, { mesh: group });
      break;
    case "sharded":
      for (const layer of model.layers) fullyShard(layer, { mesh: group });
      fullyShard(model, { mesh: group });
      break;
    case "offloaded in part":
      for (const [i, layer] of model.layers.entries()) {
        fullyShard(layer, { mesh: group, precision, offloadPolicy: i === 0 ? undefined : cpuOffloadPolicy() });
      }
      fullyShard(model, {
        mesh: group,
        precision: { ...precision, outputDtype: float32 },
        offloadPolicy: cpuOffloadPolicy(),
      });
      break;
    case "states in a file":
      for (const module of [...model.layers, model]) {
        fullyShard(module, { mesh: group, offloadPolicy: cpuOffloadPolicy({ optimizerStates }) });
      }
  }
  initializeParameters(model, 5);
  return model;
}

function setBiases(model: Stack, requiresGrad: boolean): void {
  for (const { linear: { bias } } of model.layers) if (bias !== undefined) bias.requiresGrad = requiresGrad;
}

function valuesOf(model: Stack): string {
  return JSON.stringify(Array.from(model.parameters(), (parameter) => [...ownedValues(parameter)]));
}

function optimizerOf(call: typeof CALLS[number], model: Stack): Optimizer {
  const parameters = [...model.parameters()];
  const options = { learningRate: 0.1 };
  switch (call) {
    case "AdamW":
      return new AdamW(parameters, options);
    case "AdamW8bit":
      return new AdamW8bit(parameters, options);
    case "Adafactor":
      return new Adafactor(parameters, options);
    case "Lion":
      return new Lion(parameters, options);
    case "Muon": {
      const { matrices = [], others = [] } = Object.groupBy(
        parameters,
        ({ ndim }) => ndim === 2 ? "matrices" : "others",
      );
      return new Muon([{ parameters: matrices }, { parameters: others, useMuon: false }], options);
    }
    default:
      return new SGD(parameters, { ...options, momentum: 0.9 });
  }
}

/** Three steps, the biases trained from the second on; each call goes through `guard`. Gives the values in the end. */
function train(
  kind: typeof KINDS[number],
  call: typeof CALLS[number],
  guard: (model: Stack, action: () => void) => void,
): string {
  const model = build(kind, widthOf(call));
  const optimizer = optimizerOf(call, model);
  using scaler = new GradScaler(device, { initScale: 1024 });
  const isScaled = call === "clip with a scaler";
  for (let step = 0; step < 3; step++) {
    if (step === 1) setBiases(model, true);
    {
      using _frame = scope();
      const loss = model.call(input(device, `x ${step}`, 3, widthOf(call))).sum();
      (isScaled ? scaler.scale(loss) : loss).backward();
    }
    if (isScaled) guard(model, () => clipGradNorm(model.parameters(), 1, { scaler }).dispose());
    else if (call === "clip") guard(model, () => clipGradNorm(model.parameters(), 1).dispose());
    guard(model, () => isScaled ? scaler.step(optimizer) : optimizer.step());
    if (isScaled) scaler.update();
    optimizer.zeroGrad();
  }
  optimizer.dispose();
  return valuesOf(model);
}

/** Fails at each allocation of the calls in turn. */
function failEach(kind: typeof KINDS[number], call: typeof CALLS[number], faults: string[]): number {
  const expected = train(kind, call, (_model, action) => action());
  for (let place = 0;; place++) {
    let [count, hasFailed] = [0, false];
    const values = train(kind, call, (model, action) => {
      const [before, inUse] = [valuesOf(model), bytesInUse()];
      const failing = failAllocation(allocators(), place - count);
      const error = messageOf(action);
      failing[Symbol.dispose]();
      count += failing.count;
      if (error === "") return;
      hasFailed = true;
      if (valuesOf(model) !== before) faults.push(`${place}, ${error}: values have changed`);
      // States for which there was memory stay for the next step.
      if (bytesInUse() !== inUse && !/optimizer (records|\w+ in an update)|work memory/.test(error)) {
        faults.push(`${place}, ${error}: ${bytesInUse()} bytes in use and not ${inUse}`);
      }
      action();
    });
    if (values !== expected) faults.push(`${place}: other values in the end`);
    if (!hasFailed) return place;
  }
}

describe("an optimizer whose memory runs out", () => {
  const cases = CALLS.flatMap((call) => KINDS.map((kind) => ({ call, kind })))
    .filter(({ call, kind }) => call !== "Adafactor" || !/offloaded|file/.test(kind)); // which Adafactor refuses
  const isUsual = (place: number): boolean => {
    const { call, kind } = at(cases, place, "case");
    return kind === "sharded" || ["AdamW", "SGD", "clip", "clip with a scaler"].includes(call);
  };
  for (const { call, kind } of usualFirst(cases, isUsual)) {
    it(`takes the step when called again: ${call}, ${kind}`, () => {
      const faults: string[] = [];
      assert.ok(failEach(kind, call, faults) > 5);
      assert.deepEqual(faults, []);
    });
  }
});

/** Some steps with states in a pool, one of whose reads or writes fails: gives what a step says, and the values before and after. */
function failPool(call: "copyIn" | "copyOut", place: number, length: number) {
  let [count, isOver] = [0, true];
  const failing = (name: typeof call): void => {
    if (name !== call || isOver || count++ !== place) return;
    throw new FileError(optimizerStates.name, call, "the disk is full (injected)", "ENOSPC");
  };
  const pool: StatePool = {
    name: optimizerStates.name,
    allocator: optimizerStates.allocator,
    copyIn: (ptr, src) => (failing("copyIn"), optimizerStates.copyIn(ptr, src)),
    copyOut: (dst, ptr) => (failing("copyOut"), optimizerStates.copyOut(dst, ptr)),
    [Symbol.dispose]: () => {},
  };
  const model = new Stack(device, 20, 2);
  for (const module of [...model.layers, model]) {
    fullyShard(module, { mesh: group, offloadPolicy: cpuOffloadPolicy({ optimizerStates: pool }) });
  }
  initializeParameters(model, 5);
  const optimizer = new AdamW(model.parameters(), { learningRate: 0.1 });
  const said: string[] = [];
  const values = [valuesOf(model)];
  for (let step = 0; step < length; step++) {
    {
      using _frame = scope();
      optimizer.zeroGrad();
      model.call(input(device, `x ${step}`, 3, 20)).sum().backward();
    }
    isOver = step !== 1;
    said.push(messageOf(() => optimizer.step()));
    isOver = true;
    values.push(valuesOf(model));
    if (said.at(-1) === "") continue;
    said.push(messageOf(() => optimizer.step()), messageOf(() => [...optimizer.stateViews()]));
    values.push(valuesOf(model));
  }
  optimizer.dispose();
  return { said, values };
}

describe("an optimizer whose states rest in a file", () => {
  it("takes a step again that failed before anything was updated", () => {
    const { said, values } = failPool("copyOut", 0, 3);
    assert.match(said[1] ?? "", /the disk is full/);
    assert.deepEqual(said.slice(2), ["", "", ""]);
    assert.equal(values[2], values[1]);
    assert.equal(values.at(-1), failPool("copyOut", -1, 3).values.at(-1));
  });

  for (const [call, place] of [["copyOut", 2], ["copyIn", 0], ["copyIn", 1], ["copyIn", 3]] as const) {
    it(`takes no step, and gives no states, after one that failed half-way: ${call} ${place}`, () => {
      const { said, values } = failPool(call, place, 2);
      assert.match(said[1] ?? "", /the disk is full/);
      const why = "the step before failed when some parameters were updated and others were not; build model and " +
        "optimizer anew, and load the last checkpoint";
      assert.equal(said[2], `ArgumentError: Cannot take an optimizer step: ${why}`);
      assert.equal(said[3], `ArgumentError: Cannot save or load the states of an optimizer: ${why}`);
      assert.equal(values[3], values[2]);
    });
  }
});

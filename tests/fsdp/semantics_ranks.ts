/** The ranks' code of `semantics_test.ts`. @module */
import { bfloat16, clipGradNorm, fullyShard, replicate, scope, SGD, type Tensor } from "../../mod.ts";
import { type CallKind, deviceMesh } from "../../doors/comm.ts";
import { cat, initializeParameters, Linear, Module } from "../../doors/nn.ts";
import { Parameter } from "../../src/tensor/parameter.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { gradients, input, Stack } from "./modules.ts";

const WIDTH = 20;

/** The place where a rank is late: before each call of a kind, or after the forward, or before the optimizer. */
export type Delay = CallKind | "after forward" | "before step" | "nowhere";

/** Three steps in which the last rank is late; gives losses and the weights that this rank keeps. */
export function trainLate({ device, group, rank, size }: WorldRank, delay: Delay): readonly (readonly number[])[] {
  const model = new Stack(device, WIDTH, 2);
  for (const layer of model.layers) fullyShard(layer, { mesh: group });
  fullyShard(model, { mesh: group });
  initializeParameters(model, 5);
  const sleep = (isHere: boolean): void => {
    if (isHere && rank === size - 1) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 15);
  };
  group.observe(({ kind }) => sleep(kind === delay));
  const optimizer = new SGD(model.parameters(), { learningRate: 0.1 });
  const losses: number[] = [];
  for (const name of ["a", "b", "c"]) {
    using _frame = scope();
    optimizer.zeroGrad();
    const loss = model.call(input(device, `${name} of rank ${rank}`, 2, WIDTH)).square().sum();
    sleep(delay === "after forward");
    loss.backward();
    losses.push(loss.item());
    sleep(delay === "before step");
    optimizer.step();
  }
  return [losses, ...[...model.parameters()].map((own) => [...ownedValues(own)])];
}

/** Activations in every form that a module may give and take. */
export type Form = "array" | "object" | "nested";

class Giver extends Module<[x: Tensor], Readonly<Record<string, unknown>> | readonly unknown[]> {
  readonly linear: Linear;
  readonly #form: Form;
  constructor(device: WorldRank["device"], form: Form) {
    super();
    this.linear = new Linear(device, WIDTH, WIDTH);
    this.#form = form;
  }
  forward(x: Tensor): Readonly<Record<string, unknown>> | readonly unknown[] {
    const [a, b] = [this.linear.call(x), this.linear.call(x.mul(2)).tanh()];
    if (this.#form === "array") return [a, b, "unused"];
    return this.#form === "object" ? { a, b, none: undefined } : { all: [{ a }, [b]], count: 2 };
  }
}

class Taker extends Module<[given: unknown], Tensor> {
  readonly linear: Linear;
  constructor(device: WorldRank["device"]) {
    super();
    this.linear = new Linear(device, WIDTH, WIDTH);
  }
  forward(given: unknown): Tensor {
    const parts: Tensor[] = [];
    const look = (value: unknown): void => {
      if (isTensor(value)) parts.push(value);
      else if (typeof value === "object" && value !== null) { for (const item of Object.values(value)) look(item); }
    };
    look(given);
    const [a, b] = parts;
    if (a === undefined || b === undefined) throw new Error("activations are lost");
    return this.linear.call(a.add(b));
  }
}

function isTensor(value: unknown): value is Tensor {
  return typeof value === "object" && value !== null && "requiresGrad" in value;
}

class Chain extends Module<[x: Tensor], Tensor> {
  readonly giver: Giver;
  readonly taker: Taker;
  constructor(device: WorldRank["device"], form: Form) {
    super();
    this.giver = new Giver(device, form);
    this.taker = new Taker(device);
  }
  forward(x: Tensor): Tensor {
    return this.taker.call(this.giver.call(x));
  }
}

/** Calls of a step, and whether gradients are those of plain modules. */
export function passActivations(
  { device, group }: WorldRank,
  form: Form,
): { readonly calls: readonly string[]; readonly same: boolean } {
  const [sharded, plain] = [new Chain(device, form), new Chain(device, form)];
  for (const module of [sharded.giver, sharded.taker, sharded]) fullyShard(module, { mesh: group });
  const calls: string[] = [];
  group.observe(({ kind, unit }) =>
    void (["gather", "reduce-scatter"].includes(kind) && calls.push(`${kind} ${unit}`))
  );
  for (const model of [sharded, plain]) {
    initializeParameters(model, 4);
    using _frame = scope();
    model.call(input(device, "x", 2, WIDTH)).sum().backward();
  }
  const [ours, theirs] = [gradients(sharded.parameters()), gradients(plain.parameters())];
  return { calls, same: JSON.stringify([...ours]) === JSON.stringify([...theirs]) };
}

/** Elements of each reduction of one unit that holds frozen and trained parameters, as they are frozen and trained in turn. */
export function freeze(
  { device, group }: WorldRank,
): { readonly reduced: readonly number[]; readonly grads: readonly (readonly string[])[] } {
  const model = new Stack(device, WIDTH, 2);
  for (const { linear } of model.layers) linear.weight.requiresGrad = false;
  fullyShard(model, { mesh: group });
  initializeParameters(model, 5);
  model.order = [0, 1, 0];
  const reduced: number[] = [];
  group.observe(({ kind, count }) => void (kind === "reduce-scatter" && reduced.push(count)));
  const step = (): string[] => {
    using _frame = scope();
    model.zeroGrad();
    model.call(input(device, "x", 2, WIDTH)).sum().backward();
    return [...model.parameters()].filter(({ grad }) => grad !== undefined).map(({ fqn }) => fqn);
  };
  const grads = [step()];
  for (const { linear } of model.layers) linear.weight.requiresGrad = true;
  grads.push(step());
  for (const { linear } of model.layers) if (linear.bias !== undefined) linear.bias.requiresGrad = false;
  grads.push(step());
  return { reduced, grads };
}

/** A module with a parameter of no dims. */
class Scale extends Module<[x: Tensor], Tensor> {
  readonly factor: Parameter;
  readonly linear: Linear;
  constructor(device: WorldRank["device"]) {
    super();
    this.factor = new Parameter(device, [], { init: { kind: "constant", value: 3 } });
    this.linear = new Linear(device, 2, 2, { bias: false });
  }
  forward(x: Tensor): Tensor {
    return this.linear.call(x).mul(this.factor);
  }
}

/** The sum of a scalar's gradients over ranks, each of which keeps it or nothing. */
export function scalar(
  { device, group }: WorldRank,
): { readonly kept: number; readonly grad: number; readonly expected: number } {
  const [sharded, copied] = [new Scale(device), new Scale(device)];
  fullyShard(sharded, { mesh: group });
  replicate(copied, { mesh: group });
  for (const model of [sharded, copied]) {
    initializeParameters(model, 1);
    using _frame = scope();
    model.call(input(device, `rank ${group.rank}`, 1, 2)).sum().backward();
  }
  const [kept, [grad = 0]] = [sharded.factor.storage.shard.numel, sharded.factor.grad?.toArray() ?? []];
  return {
    kept,
    grad: group.sum([kept === 0 ? 0 : grad], "gradient")[0] ?? NaN,
    expected: copied.factor.grad?.item() ?? NaN,
  };
}

/** Gradients divided by a factor against those that are divided by the ranks; and by one, times the ranks. */
export function divide(
  { device, group }: WorldRank,
  [replicas, narrow]: [replicas: number, narrow: boolean],
): readonly (readonly number[])[] {
  const mesh = replicas === 1 ? group : deviceMesh(group, { replicate: replicas, shard: group.size / replicas });
  const precision = narrow ? { paramDtype: bfloat16, reduceDtype: bfloat16 } : {};
  return [undefined, group.size, 1, 7].map((factor) => {
    const model = new Linear(device, 4, 4, { bias: false });
    const handle = fullyShard(model, { mesh, precision });
    if (factor !== undefined) handle.setGradientDivideFactor(factor);
    initializeParameters(model, 1);
    using _frame = scope();
    model.call(input(device, `rank ${group.rank}`, 2, 4)).sum().backward();
    const grad = [...model.weight.grad?.toArray() ?? []];
    handle.dispose();
    return grad;
  });
}

/** All-reduces that clipping makes, of a model on a mesh, and the norm, which all ranks' equal inputs make the same on any. */
export function countClips(
  { device, group }: WorldRank,
  [replicas, type]: readonly [replicas: number, type: number],
): { readonly count: number; readonly norm: number } {
  const normType = ([1, 2, 3, Infinity] as const)[type];
  if (normType === undefined) throw new Error(`no norm ${type}`);
  const mesh = replicas === 1 ? group : deviceMesh(group, { replicate: replicas, shard: group.size / replicas });
  const model = new Stack(device, WIDTH, 2);
  for (const layer of model.layers) fullyShard(layer, { mesh });
  fullyShard(model, { mesh });
  initializeParameters(model, 5);
  using _frame = scope();
  model.call(input(device, "x", 2, WIDTH)).sum().backward();
  let count = 0;
  group.observe(({ kind }) => void (kind === "all-reduce" && count++));
  return { norm: clipGradNorm(model.parameters(), 1, { normType }).item(), count };
}

/** The results of sharded and plain modules. */
export interface GraphReport {
  /** Gradients of the plain modules, of sharded ones by two passes over one graph, and by the sum of two losses. */
  readonly grads: readonly (readonly number[])[];
  /** The error of a second backward of a graph that is gone. */
  readonly refused: string;
  readonly calls: readonly string[];
}

/** Two losses of one forward. */
export function twoLosses({ device, group }: WorldRank): GraphReport {
  const calls: string[] = [];
  group.observe(({ kind, unit }) =>
    void (["gather", "reduce-scatter"].includes(kind) && calls.push(`${kind} ${unit}`))
  );
  let refused = "";
  const run = (how: "plain" | "retain" | "add"): readonly number[] => {
    const model = new Stack(device, WIDTH, 1);
    if (how !== "plain") { for (const module of [...model.layers, model]) fullyShard(module, { mesh: group }); }
    initializeParameters(model, 5);
    using _frame = scope();
    calls.length = 0;
    const out = model.call(input(device, "x", 2, WIDTH));
    const [first, second] = [out.sum(), out.square().sum()];
    if (how === "add") first.add(second).backward();
    else {
      first.backward(undefined, { retainGraph: true });
      second.backward();
      try {
        first.backward();
      } catch (error) {
        refused = String(error);
      }
    }
    return [...model.parameters()].flatMap(({ grad }) => [...grad?.toArray() ?? []]);
  };
  const [plain, added] = [run("plain"), run("add")];
  return { grads: [plain, run("retain"), added], refused, calls };
}

/** The gradient of a prompt that is trained before a frozen, sharded model, and of one before a plain model. */
export function softPrompt({ device, group, rank }: WorldRank): readonly (readonly number[])[] {
  return [true, false].map((isSharded) => {
    const model = new Stack(device, WIDTH, 2);
    for (const parameter of model.parameters()) parameter.requiresGrad = false;
    if (isSharded) { for (const module of [...model.layers, model]) fullyShard(module, { mesh: group }); }
    initializeParameters(model, 5);
    const prompt = new Parameter(device, [3, WIDTH], { init: { kind: "constant", value: 0 } });
    prompt.materialize();
    prompt.copyFromHost(new Float32Array(3 * WIDTH).fill(0.25));
    using _frame = scope();
    model.call(cat([prompt, input(device, `rank ${rank}`, 2, WIDTH)])).square().sum().backward();
    const grad = [...prompt.grad?.toArray() ?? []];
    prompt.zeroGrad();
    return grad;
  });
}

rankFunctions(import.meta.url, {
  twoLosses,
  softPrompt,
  trainLate,
  passActivations,
  freeze,
  scalar,
  divide,
  countClips,
});

/** The ranks' code of `state_dict_test.ts`. @module */
import { AdamW, fullyShard, replicate, scope } from "../../mod.ts";
import {
  getModelStateDict,
  getOptimizerStateDict,
  type LoadReport,
  type ModelStateDict,
  type OptimizerLoadReport,
  type OptimizerStateDict,
  setModelStateDict,
  setOptimizerStateDict,
  type StateDictOptions,
  type StateTensor,
} from "../../doors/checkpoint.ts";
import { deviceMesh } from "../../doors/comm.ts";
import { initializeParameters } from "../../doors/nn.ts";
import { input, Stack } from "../fsdp/modules.ts";
import { messageOf } from "../support/message.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** Of odd sizes, so that ranks hold unequal parts, or none of a tensor. */
export const WIDTH = 13;

/** The layout of a model over the ranks. */
export type Cut = "units" | "root" | "replicas" | "replicas of shards";

function cutModel({ device, group }: WorldRank, cut: Cut, seed: number) {
  const model = new Stack(device, WIDTH, 2);
  const release = ((): { dispose(): void } => {
    if (cut === "replicas") return replicate(model, { mesh: group });
    const mesh = cut === "replicas of shards" ? deviceMesh(group, { replicate: 2, shard: group.size / 2 }) : group;
    if (cut !== "root") { for (const layer of model.layers) fullyShard(layer, { mesh }); }
    return fullyShard(model, { mesh });
  })();
  initializeParameters(model, seed);
  return { model, release, optimizer: new AdamW(model.parameters(), { learningRate: 0.1 }) };
}

function train({ device, rank }: WorldRank, model: Stack, optimizer: AdamW): void {
  using _frame = scope();
  optimizer.zeroGrad();
  model.call(input(device, `rank ${rank}`, 3, WIDTH)).sum().backward();
  optimizer.step();
}

/** A state dict as plain data. */
export type Plain = Readonly<
  Record<string, Pick<StateTensor, "shape" | "boxes"> & { readonly values: readonly number[] }>
>;

function plain(state: ModelStateDict): Plain {
  return Object.fromEntries([...state].map(([name, tensor]) => {
    const { shape, boxes } = tensor;
    return [name, { shape, boxes, values: [...tensor.toArray()] }];
  }));
}

/** The tensors of an optimizer, as a model's. */
function tensorsOf({ state }: OptimizerStateDict): ModelStateDict {
  return new Map([...state].flatMap(([fqn, { tensors }]) => {
    return [...tensors].map(([name, tensor]) => [`${fqn}.${name}`, tensor] as const);
  }));
}

/** The state dicts that a rank got. */
export interface Got {
  /** Of a model that no parallelism has. */
  readonly expected: Plain;
  readonly sharded: Plain;
  readonly onRank0: Plain;
  readonly everywhere: Plain;
  /** Kinds of the calls that each took, and the most bytes of those that move tensors. */
  readonly calls: readonly (readonly string[])[];
  readonly mostBytes: number;
  /** More of the device's memory in use than before. */
  readonly bytesLeft: number;
}

/** Gets the same values in every way. */
export function get(rank: WorldRank, cut: Cut): Got {
  const { device, group } = rank;
  const whole = new Stack(device, WIDTH, 2);
  initializeParameters(whole, 3);
  const { model } = cutModel(rank, cut, 3);
  const calls: string[][] = [];
  let mostBytes = 0;
  group.observe(({ kind, count }) => {
    calls.at(-1)?.push(kind);
    if (kind === "broadcast" || kind === "send and receive") mostBytes = Math.max(mostBytes, count);
  });
  const inUse = device.allocator.stats.inUse;
  const counted = (options: StateDictOptions): Plain => {
    calls.push([]);
    return plain(getModelStateDict(model, options));
  };
  const sharded = counted({});
  const onRank0 = counted({ group, fullStateDict: true, cpuOffload: true, bufferBytes: 100 });
  const everywhere = counted({ group, fullStateDict: true, bufferBytes: 100 });
  const bytesLeft = device.allocator.stats.inUse - inUse;
  return { expected: plain(getModelStateDict(whole)), sharded, onRank0, everywhere, calls, mostBytes, bytesLeft };
}

/** State dicts that were kept over later calls. */
export interface Kept {
  readonly before: Plain;
  readonly cached: Plain;
  readonly fresh: Plain;
  readonly snapshot: Plain;
  readonly optimizer: { readonly before: Plain; readonly cached: Plain };
  /** The error of reading them after the memory has changed. */
  readonly stale: readonly string[];
}

/** Keeps state dicts over a step, and over the end of the sharding. */
export function keep(rank: WorldRank): Kept {
  const { model, release, optimizer } = cutModel(rank, "units", 3);
  const [cached, snapshot] = [getModelStateDict(model), getModelStateDict(model, { cpuOffload: true })];
  const cachedStates = tensorsOf(getOptimizerStateDict(model, optimizer));
  const [before, statesBefore] = [plain(cached), plain(cachedStates)];
  for (let step = 0; step < 2; step++) train(rank, model, optimizer);
  const kept = { cached: plain(cached), fresh: plain(getModelStateDict(model)), snapshot: plain(snapshot) };
  const states = { before: statesBefore, cached: plain(cachedStates) };
  optimizer.dispose();
  release.dispose();
  const stale = [cached, cachedStates].map((state) => messageOf(() => plain(state)));
  return { before, ...kept, optimizer: states, stale };
}

/** The way of a state dict from one model to another. */
export type Way = "sharded" | "full" | "from rank 0";

/** The values that a second model has taken from a first one. */
export interface Moved {
  readonly from: Plain;
  readonly to: Plain;
  readonly steps: readonly (readonly [number, number])[];
  readonly reports: readonly unknown[];
}

/** Takes a trained model's state to another one. */
export function move(rank: WorldRank, [from, to, way]: [Cut, Cut, Way]): Moved {
  const { group } = rank;
  const [first, second] = [cutModel(rank, from, 1), cutModel(rank, to, 2)];
  for (let step = 0; step < 3; step++) train(rank, first.model, first.optimizer);
  const full = { group, fullStateDict: true, bufferBytes: 1000 };
  const got = { sharded: {}, full, "from rank 0": { ...full, cpuOffload: true } }[way];
  const set = { sharded: { group }, full, "from rank 0": { ...full, broadcastFromRank0: true } }[way];
  const state = getOptimizerStateDict(first.model, first.optimizer, got);
  const reports = [
    setModelStateDict(second.model, getModelStateDict(first.model, got), set),
    setOptimizerStateDict(second.model, second.optimizer, state, set),
  ];
  const all = ({ model, optimizer }: typeof first): Plain => {
    const states = tensorsOf(getOptimizerStateDict(model, optimizer, full));
    return plain(new Map([...getModelStateDict(model, full), ...states]));
  };
  const steps = [first, second].map(({ model, optimizer }) => [...model.parameters()].map((p) => optimizer.stepsOf(p)));
  const pairs = (steps[0] ?? []).map((count, i): readonly [number, number] => [count, steps[1]?.[i] ?? NaN]);
  return { from: all(first), to: all(second), steps: pairs, reports };
}

/** The errors of refused calls, by mistake. */
export function refuse(rank: WorldRank): Readonly<Record<string, string>> {
  const { group, device } = rank;
  const { model, optimizer } = cutModel(rank, "units", 3);
  const own = getModelStateDict(model);
  const full = getModelStateDict(model, { group, fullStateDict: true });
  const without = (state: ModelStateDict, name: string): ModelStateDict => {
    return new Map([...state].filter(([other]) => other !== name));
  };
  const set = (state: ModelStateDict, options: StateDictOptions) =>
    messageOf(() => setModelStateDict(model, state, { group, ...options }));
  const wrong = new Map(without(own, "head.bias"));
  wrong.set("tail", { shape: [2], boxes: [], toArray: () => new Float32Array(0) });
  wrong.set("head.weight", { shape: [3], boxes: [], toArray: () => new Float32Array(0) });
  const { model: other } = cutModel(rank, "root", 3);
  const short = new Map(full).set("head.bias", {
    shape: [WIDTH],
    boxes: [{ offsets: [0], sizes: [WIDTH] }],
    toArray: () => new Float32Array(1),
  });
  const values = JSON.stringify(plain(getModelStateDict(model)));
  const empty = new Stack(device, WIDTH, 2);
  const texts = {
    alone: messageOf(() => setModelStateDict(model, own)),
    wholeAlone: messageOf(() => getModelStateDict(model, { fullStateDict: true })),
    shardedBroadcast: set(own, { broadcastFromRank0: true }),
    broadcastAlone: messageOf(() => setModelStateDict(empty, full, { fullStateDict: true, broadcastFromRank0: true })),
    names: set(wrong, {}),
    onOneRank: set(rank.rank === 1 ? without(own, "head.bias") : own, {}),
    onRank0: set(rank.rank === 0 ? without(full, "head.bias") : full, {
      fullStateDict: true,
      broadcastFromRank0: true,
    }),
    otherCut: messageOf(() => setModelStateDict(other, own, { group })),
    short: set(short, {}),
    noValues: messageOf(() => setModelStateDict(empty, without(full, "head.bias"), { strict: false })),
    smallBuffer: messageOf(() => getModelStateDict(model, { group, fullStateDict: true, bufferBytes: 3 })),
    optimizer: messageOf(() =>
      setOptimizerStateDict(model, optimizer, { state: new Map(), paramGroups: [], stepsTaken: 0 }, { group })
    ),
    otherModel: messageOf(() => getOptimizerStateDict(other, optimizer)),
  };
  const changed = values === JSON.stringify(plain(getModelStateDict(model))) ? "" : "it was written all the same";
  return { ...texts, changed };
}

/** The model after a part of a state dict was loaded, and the error. */
export interface Partly {
  readonly trained: readonly string[];
  readonly model: LoadReport;
  readonly optimizer: OptimizerLoadReport;
  readonly steps: Readonly<Record<string, number>>;
  readonly before: Plain;
  readonly source: Plain;
  readonly after: Plain;
}

/** Sets a part of a state dict. */
export function partly(rank: WorldRank): Partly {
  const { group } = rank;
  const [first, second] = [cutModel(rank, "units", 1), cutModel(rank, "units", 2)];
  train(rank, first.model, first.optimizer);
  for (const layer of second.model.layers) layer.linear.weight.requiresGrad = false;
  const trained = [...getModelStateDict(second.model, { ignoreFrozenParams: true }).keys()];
  const given = new Map(getModelStateDict(first.model));
  given.delete("head.weight");
  given.set("tail", { shape: [2], boxes: [], toArray: () => new Float32Array(0) });
  const before = plain(getModelStateDict(second.model));
  const model = setModelStateDict(second.model, given, { group, strict: false });
  const states = getOptimizerStateDict(first.model, first.optimizer);
  const optimizer = setOptimizerStateDict(second.model, second.optimizer, {
    ...states,
    state: new Map([...states.state].filter(([fqn]) => fqn !== "head.bias")),
    paramGroups: states.paramGroups.map((group) => ({ ...group, settings: { ...group.settings, learningRate: 7 } })),
  }, { group, strict: false });
  const steps = Object.fromEntries(
    [...second.model.namedParameters()].map(([name, p]) => [name, second.optimizer.stepsOf(p)]),
  );
  const source = plain(getModelStateDict(first.model));
  return { trained, model, optimizer, steps, before, source, after: plain(getModelStateDict(second.model)) };
}

rankFunctions(import.meta.url, { get, keep, move, refuse, partly });

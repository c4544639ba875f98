/** The ranks' code of `placement_test.ts`. @module */
import { createHash } from "node:crypto";
import {
  getModelStateDict,
  getOptimizerStateDict,
  loadCheckpoint,
  loadHfWeights,
  saveCheckpoint,
  saveHfDirectory,
} from "../../doors/checkpoint.ts";
import { AdamW, clipGradNorm, gradNorm, GradScaler, scope, type Tensor, tensor } from "../../mod.ts";
import { digestOf } from "../../scripts/mesh/training.ts";
import { messageOf } from "../support/message.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { initialized, type Layout, layOut, type Net, WIDTH } from "./modules.ts";

const [BATCH, OUT] = [8, 24];

/** The task of a rank. */
export interface Orders {
  readonly layout: Layout;
  readonly steps: number;
  /** Folder of a checkpoint to begin from. */
  readonly from?: string;
  /** Folder to save into at the end. */
  readonly to?: string;
  readonly maxNorm?: number;
  /** True if the folder is one of Hugging Face's. */
  readonly isHf?: boolean;
}

/** The results of a task. */
export interface Trained {
  /** Digests of whole weights and of whole states of the optimizer, at the beginning and at the end. */
  readonly first: string;
  readonly last: string;
  readonly states: string;
  readonly losses: readonly number[];
  readonly norms: readonly number[];
  /** Digest of what this rank keeps of parameters that no axis cuts. */
  readonly uncut: string;
  readonly shapes: readonly string[];
}

/** Numbers between −1 and 1 that depend on their place alone. */
function numbers(seed: number, length: number): Float32Array<ArrayBuffer> {
  let state = seed;
  return Float32Array.from({ length }, () => {
    state = (Math.imul(state, 1103515245) + 12345) & 0x7fffffff;
    return state / 2 ** 30 - 1;
  });
}

/** This rank's rows of a batch that depends on the step alone. */
function rows(rank: WorldRank, layout: Layout, seed: number, width: number): Tensor {
  const { replicate = 1, shard, tensor: size } = layout;
  const [parts, place] = [replicate * shard, Math.floor(rank.rank / size)];
  const per = BATCH / parts * width;
  const own = numbers(seed, BATCH * width).subarray(place * per, (place + 1) * per);
  return tensor(rank.device, own, { shape: [BATCH / parts, width] });
}

/** Weights, and states of an optimizer, of all ranks together. */
function wholeDigest({ group }: WorldRank, model: Net, optimizer?: AdamW): string {
  const options = { group, fullStateDict: true };
  if (optimizer === undefined) return digestOf(getModelStateDict(model, options));
  const { state } = getOptimizerStateDict(model, optimizer, options);
  return digestOf(
    [...state].flatMap(([fqn, { tensors }]) => [...tensors].map(([name, one]) => [`${fqn}.${name}`, one] as const)),
  );
}

/** Trains with clipping, from first values or a checkpoint. */
export async function trainLaidOut(rank: WorldRank, orders: Orders): Promise<Trained> {
  const { layout, from, to, maxNorm = 0.5, isHf = false } = orders;
  const { model, mesh } = from === undefined ? initialized(rank, layout) : layOut(rank, layout);
  const { group } = rank;
  const optimizer = new AdamW(model.parameters(), { learningRate: 1e-2, weightDecay: 0.1 });
  let step = 0;
  if (from !== undefined && isHf) await loadHfWeights(model, from, group);
  else if (from !== undefined) {
    step = (await loadCheckpoint({ directory: from, model, optimizer, group }))?.step ?? NaN;
  }
  const first = wholeDigest(rank, model);
  const [losses, norms]: [number[], number[]] = [[], []];
  for (let taken = 0; taken < orders.steps; taken++, step++) {
    using _frame = scope();
    optimizer.zeroGrad();
    const target = rows(rank, layout, 1000 + step, OUT);
    const loss = model.call(rows(rank, layout, 2000 + step, WIDTH)).sub(target).square().mean();
    loss.backward();
    norms.push(clipGradNorm(model.parameters(), maxNorm).item());
    optimizer.step();
    const over = mesh.slice(["replicate", "shard"]).group;
    losses.push((over.sum([loss.item()], "loss")[0] ?? NaN) / over.size);
  }
  if (to !== undefined && isHf) await saveHfDirectory(model, to, group);
  else if (to !== undefined) await saveCheckpoint({ directory: to, step, model, optimizer, group, state: {} });
  const uncut = createHash("sha256");
  for (const parameter of model.parameters()) {
    if (parameter.placements.length > 0) continue;
    uncut.update(new Uint8Array(ownedValues(parameter).buffer));
  }
  return {
    first,
    last: wholeDigest(rank, model),
    states: wholeDigest(rank, model, optimizer),
    losses,
    norms,
    uncut: uncut.digest("hex").slice(0, 12),
    shapes: [...model.namedParameters()].map(([name, { shape, globalShape }]) =>
      `${name} [${shape}] of [${globalShape}]`
    ),
  };
}

/** Overflows on one rank of the tensor axis: what the scaler makes of the scale, on every rank. */
export function overflowOn(rank: WorldRank, [layout, who]: [Layout, number]): readonly number[] {
  const { model } = initialized(rank, layout);
  const optimizer = new AdamW(model.parameters(), { learningRate: 1e-2 });
  using scaler = new GradScaler(rank.device, { initScale: 1024 });
  const before = [...model.parameters()].map((parameter) => [...ownedValues(parameter)]);
  using _frame = scope();
  scaler.scale(model.call(rows(rank, layout, 1, WIDTH)).square().mean()).backward();
  if (rank.rank === who) {
    const cut = [...model.parameters()].find(({ placements, grad }) => placements.length > 0 && (grad?.numel ?? 0) > 0);
    const { grad } = cut ?? {};
    if (grad === undefined) throw new Error("no gradient");
    grad.device.copyIn(grad.ptr, new Uint8Array(Float32Array.of(Infinity).buffer));
  }
  scaler.step(optimizer);
  scaler.update();
  const after = [...model.parameters()].map((parameter) => [...ownedValues(parameter)]);
  return [scaler.getScale(), Number(JSON.stringify(after) === JSON.stringify(before))];
}

/** Norms of all kinds. */
export function normsOf(rank: WorldRank, layout: Layout): readonly number[] {
  const { model } = initialized(rank, layout);
  using _frame = scope();
  model.call(rows(rank, layout, 1, WIDTH)).square().mean().backward();
  return ([1, 2, 3, Infinity] as const).map((normType) => gradNorm(model.parameters(), { normType }).item());
}

/** Calls that are refused. */
export function refusals(rank: WorldRank, act: string): string {
  const layout = { shard: 2, tensor: 2 };
  const acts: Readonly<Record<string, () => unknown>> = {
    "save over a part of the ranks": () => {
      const { model, mesh } = initialized(rank, layout);
      return getModelStateDict(model, { group: mesh.axis("shard"), fullStateDict: true });
    },
    "make whole alone": () =>
      getModelStateDict(initialized(rank, { shard: 1, tensor: 4 }).model, { fullStateDict: true }),
  };
  return messageOf(() => acts[act]?.());
}

rankFunctions(import.meta.url, { trainLaidOut, overflowOn, normsOf, refusals });

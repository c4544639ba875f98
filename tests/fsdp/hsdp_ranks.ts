/** The ranks' code of `hsdp_test.ts`. @module */
import { loadCheckpoint, saveCheckpoint } from "../../doors/checkpoint.ts";
import { deviceMesh } from "../../doors/comm.ts";
import { buildModel, initializeParameters } from "../../doors/nn.ts";
import {
  AdamW,
  clipGradNorm,
  float32,
  fullyShard,
  type FullyShardedModule,
  gradNorm,
  int32,
  scope,
  tensor,
} from "../../mod.ts";
import { openSafetensors } from "../../src/checkpoint/format/safetensors.ts";
import { listDirectory } from "../../src/runtime/files.ts";
import { messageOf } from "../support/message.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { SIZES } from "../train/loop_ranks.ts";
import { input, Stack } from "./modules.ts";

const WIDTH = 20;

/** Lengths of the axes. */
export type MeshLengths = readonly [replicate: number, shard: number];

function shardStack({ device, group }: WorldRank, [replicate, shard]: MeshLengths) {
  const model = new Stack(device, WIDTH, 2);
  const mesh = deviceMesh(group, { replicate, shard });
  for (const layer of model.layers) fullyShard(layer, { mesh });
  const sharded = fullyShard(model, { mesh });
  initializeParameters(model, 5);
  return { model, sharded };
}

function backward({ device, rank }: WorldRank, model: Stack, name: string): void {
  using _frame = scope();
  model.call(input(device, `${name} of rank ${rank}`, 3, WIDTH)).sum().backward();
}

/** The gradients of a rank during accumulation. */
export interface AccumulationReport {
  /** Of each backward: `gather layers.1 shard`, … */
  readonly calls: readonly (readonly string[])[];
  /** The errors of clipping and stepping before the all-reduce. */
  readonly refusals: readonly string[];
  readonly norm: number;
  readonly gradients: readonly (readonly number[])[];
  readonly bytesLeft: number;
}

/** Three backwards, of which `mode` says what the first two reduce. */
export function accumulate(
  rank: WorldRank,
  [lengths, mode]: [MeshLengths, "all" | "no all-reduce" | "nothing"],
): AccumulationReport {
  const calls: string[][] = [];
  const { model, sharded } = shardStack(rank, lengths);
  rank.group.observe(({ kind, unit }, { name }) => {
    const moves = ["gather", "reduce-scatter", "all-reduce"].includes(kind);
    if (moves && unit !== "gradient norm") calls.at(-1)?.push(`${kind} ${unit} ${name}`);
  });
  const optimizer = new AdamW(model.parameters());
  const set = (last: boolean, handle: FullyShardedModule): void => {
    if (mode === "no all-reduce") handle.setRequiresAllReduce(last);
    if (mode === "nothing") handle.setRequiresGradientSync(last);
  };
  let refusals: string[] = [];
  for (const name of ["a", "b", "c"]) {
    set(name === "c", sharded);
    calls.push([]);
    if (name === "c") model.order = [0]; // what earlier passes left of the other layer is summed with the last
    backward(rank, model, name);
    if (name === "a") {
      refusals = [() => clipGradNorm(model.parameters(), 1), () => optimizer.step()].map((act) =>
        mode === "all" ? "" : messageOf(act)
      );
    }
  }
  const norm = gradNorm(model.parameters()).item();
  const gradients = [...model.parameters()].map(({ grad }) => [...grad?.toArray() ?? []]);
  optimizer.dispose();
  sharded.dispose();
  const owners = rank.device.allocator.owners(1000).filter(({ owner }) => owner.includes("gradient shard"));
  return { calls, refusals, norm, gradients, bytesLeft: owners.reduce((sum, { bytes }) => sum + bytes, 0) };
}

/**
 * Clears the head's gradient between two micro-batches of which the first was not all-reduced: whether it has that of the second
 * then, and a layer that of both.
 */
export function clearBetween(rank: WorldRank): { readonly head: boolean; readonly layer: boolean } {
  const run = (names: readonly string[], clears: boolean): readonly string[] => {
    const { model, sharded } = shardStack(rank, [2, 1]);
    for (const name of names) {
      sharded.setRequiresAllReduce(name === "b");
      backward(rank, model, name);
      if (clears && name === "a") model.head.weight.zeroGrad();
    }
    const weights = [model.head.weight, model.layers[0]?.linear.weight];
    return weights.map((weight) => JSON.stringify([...weight?.grad?.toArray() ?? []]));
  };
  const [cleared, both, last] = [run(["a", "b"], true), run(["a", "b"], false), run(["b"], false)];
  return {
    head: cleared[0] === last[0] && cleared[0] !== both[0],
    layer: cleared[1] === both[1] && both[1] !== last[1],
  };
}

/** All values of a sharded model. */
function wholeValues(sharded: FullyShardedModule): readonly (readonly number[])[] {
  for (const unit of sharded.units()) {
    unit.unshard("manual");
    unit.waitForGather();
  }
  const values = sharded.modules.flatMap((module) => [...module.parameters()].map((whole) => [...whole.toArray()]));
  for (const unit of sharded.units()) unit.reshard();
  return values;
}

/** Saves with one mesh and loads with another: bytes of all tensors in the files, and whether values and steps came back. */
export async function saveAndLoad(
  { device, group }: WorldRank,
  [directory, from, to]: [string, MeshLengths, MeshLengths],
): Promise<{ readonly bytes: number; readonly expected: number; readonly same: boolean; readonly steps: number }> {
  const open = ([replicate, shard]: MeshLengths, seed: number) => {
    const model = buildModel(device, SIZES);
    const sharded = fullyShard(model, { mesh: deviceMesh(group, { replicate, shard }) });
    initializeParameters(model, seed);
    return { model, sharded, optimizer: new AdamW(model.parameters()) };
  };
  const [first, second] = [open(from, 1), open(to, 2)];
  using _frame = scope();
  const { logits } = first.model.call({ inputIds: tensor(device, [1, 2, 3], { shape: [1, 3], dtype: int32 }) });
  logits?.sum().backward();
  first.optimizer.step();
  const { model, optimizer } = first;
  const { path } = await saveCheckpoint({ directory, step: 1, model, optimizer, group, state: {} });
  let bytes = 0;
  for (const name of listDirectory(path)) {
    if (!name.endsWith(".safetensors")) continue;
    using file = await openSafetensors(`${path}/${name}`);
    for (const { byteLength } of file.entries) bytes += byteLength;
  }
  await loadCheckpoint({ directory, model: second.model, optimizer: second.optimizer, group });
  const [weight] = second.model.parameters();
  const numel = [...first.model.parameters()].reduce((sum, parameter) => sum + parameter.numel, 0);
  return {
    bytes,
    expected: 3 * numel * float32.byteLength,
    same: JSON.stringify(wholeValues(first.sharded)) === JSON.stringify(wholeValues(second.sharded)),
    steps: weight === undefined ? NaN : second.optimizer.stepsOf(weight),
  };
}

/** The last rank fails in its backward, or calls something else. */
export function fail(rank: WorldRank, how: "throws" | "differs"): string {
  const { model } = shardStack(rank, [2, 2]);
  backward(rank, model, "a");
  if (rank.rank === 3 && how === "throws") throw new Error("injected");
  if (rank.rank === 3) model.order = [1, 0];
  backward(rank, model, "b");
  rank.group.barrier("end");
  return "";
}

rankFunctions(import.meta.url, { accumulate, clearBetween, saveAndLoad, fail });

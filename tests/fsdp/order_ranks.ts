/** The code of ranks whose units are called in an unusual order. @module */
import { fullyShard, type FullyShardedModule, scope } from "../../mod.ts";
import { initializeParameters, writeParameters } from "../../doors/nn.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { input, Stack } from "./modules.ts";

const WIDTH = 20;

/** A model that is sharded in the documented order: before its parameters have names. */
function shard({ device, group }: WorldRank, depth: number): { model: Stack; units: FullyShardedModule[] } {
  const model = new Stack(device, WIDTH, depth);
  const units = [...model.layers, model].map((module) => fullyShard(module, { mesh: group }));
  initializeParameters(model, 5);
  return { model, units };
}

function lossOf({ device }: WorldRank, model: Stack, name: string): number {
  using _frame = scope();
  const loss = model.call(input(device, name, 3, WIDTH)).sum();
  loss.backward();
  return loss.item();
}

/** Steps units in another order on rank 1; returns how long it took to find out. */
export function stepInOtherOrder(rank: WorldRank): number {
  const { model } = shard(rank, 3);
  lossOf(rank, model, "a");
  const layers = rank.rank === 1 ? model.layers.toReversed() : model.layers;
  rank.group.barrier("before");
  const started = performance.now();
  try {
    for (const layer of layers) writeParameters(layer.parameters(), () => {});
    rank.group.barrier("after");
  } catch (error) {
    const seconds = (performance.now() - started) / 1000;
    throw new Error(`${seconds < 2 ? "at once" : `after ${seconds} s`}: ${error}`);
  }
  return NaN;
}

/** Disposes models in another order on rank 1, and trains the next one. */
export function disposeInOtherOrder(rank: WorldRank): { losses: number[]; bytes: number } {
  let before = 0;
  const losses: number[] = [];
  for (let turn = 0; turn < 3; turn++) {
    // The plane has allocated its own memory by the first turn.
    if (turn === 1) before = rank.device.allocator.stats.inUse;
    const models = [shard(rank, 2), shard(rank, 3), shard(rank, 1)];
    for (const { model } of models) losses.push(lossOf(rank, model, `rank ${rank.rank}`));
    for (const { model } of models) model.zeroGrad();
    const handles = models.flatMap(({ units }) => units);
    for (const handle of rank.rank === 1 ? handles.toReversed() : handles) handle.dispose();
  }
  return { losses, bytes: rank.device.allocator.stats.inUse - before };
}

rankFunctions(import.meta.url, { stepInOtherOrder, disposeInOtherOrder });

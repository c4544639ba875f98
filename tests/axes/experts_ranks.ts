/** Ranks of `experts_test.ts`. @module */
import {
  AdamW,
  type CausalLm,
  clipGradNorm,
  dryRun,
  evaluate,
  expertsOf,
  fullyShard,
  openModel,
  parallelizeExperts,
  scope,
} from "../../mod.ts";
import { ownedPtr, writeParameters } from "../../doors/nn.ts";
import type { Batch } from "../../src/data/micro_batch.ts";
import { Router } from "../../src/nn/router.ts";
import { type AxesRank, batchOf, type FamilyOrders, laidOut } from "../../scripts/axes/training.ts";
import { type MeshOrders, type MeshReport, trainOnMesh as trainFrom } from "../../scripts/mesh/training.ts";
import { twinOf } from "../../src/comm/data/dry.ts";
import { memoryPeak } from "../../src/train/dry_run.ts";
import { Run } from "../../src/train/run.ts";
import { messageOf } from "../support/message.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** Trains from first values or from a checkpoint, and may save one. */
export function trainOnMesh(rank: WorldRank, orders: MeshOrders): Promise<MeshReport> {
  return trainFrom(rank, orders);
}

/** The loss of an evaluation whose last batch has rows for some of the ranks only. */
export async function evaluateRows(
  rank: WorldRank,
  orders: FamilyOrders,
): Promise<readonly [loss: number, tokens: number]> {
  const { run, model } = await laidOut(rank, orders);
  const { rank: place, size } = run.samples;
  const rows = [3, 8, 5, 6, 7].map((seed) =>
    Int32Array.from({ length: 6 }, (_, i) => (seed * 7 + i * i) % model.vocabSize)
  );
  const own = rows.filter((_, i) => i % size === place);
  const batches = own.map((inputIds) => ({ microBatches: [{ inputIds, labels: inputIds, batch: 1, seq: 6 }] }));
  const { loss, tokens } = await evaluate(run, model, batches);
  return [loss, tokens];
}

/** Lets all routers choose the same experts for all tokens. */
function routeAlike(model: CausalLm): void {
  const weights = [...model.namedModules()].flatMap(([, one]) => one instanceof Router ? [one.weight] : []);
  writeParameters(weights, (weight) => {
    const { device, dtype, storage: { shard: { numel: n } } } = weight;
    if (n > 0) device.kernels.fill({ dtype, n, value: 0, dst: ownedPtr(weight) });
  });
}

/** A step in which the same experts get all rows. */
async function crowded(
  rank: AxesRank,
  orders: FamilyOrders,
): Promise<{ readonly run: Run; readonly step: () => number }> {
  const { run, model } = await laidOut(rank, orders);
  routeAlike(model);
  const step = (): number => {
    using _frame = scope();
    const loss = run.backward(model, batchOf(run, model, 0)).item();
    for (const parameter of model.parameters()) parameter.zeroGrad();
    return loss;
  };
  return { run, step };
}

/** The loss and this rank's peak where the same experts, of one rank, get all rows, and the peak that a dry run states. */
export async function crowd(
  rank: WorldRank,
  orders: FamilyOrders,
): Promise<{ readonly loss: number; readonly peak: number; readonly stated: number }> {
  const { run, step } = await crowded(rank, orders);
  step();
  rank.device.allocator.resetPeak();
  const loss = step();
  const { peakBytes: peak } = memoryPeak(run);
  const { device, group: { size: worldSize, rank: place } } = rank;
  const dry = async ({ device, group }: Run): Promise<() => void> => (await crowded({ device, group }, orders)).step;
  const options = { worldSize, rank: place, device, ...twinOf(rank.group) };
  const { peakBytes: stated } = await dryRun(dry, options);
  return { loss, peak, stated };
}

/** The errors of experts that cannot be divided, or are sharded over the axis that divides them. */
export async function mistakes(
  { device, group }: WorldRank,
  configs: readonly FamilyOrders["config"][],
): Promise<readonly string[]> {
  const run = new Run({ device, group, axes: { shard: 1, expert: group.size }, print: () => undefined });
  const axis = run.mesh.get("expert");
  const errors: string[] = [];
  for (const config of configs) {
    const model = await openModel(run, config, { seed: 3 });
    errors.push(messageOf(() => parallelizeExperts(model, axis)));
  }
  const [config = {}] = configs.slice(-1);
  const model = await openModel(run, config, { seed: 3 });
  parallelizeExperts(model, axis);
  errors.push(messageOf(() => parallelizeExperts(model, axis)));
  errors.push(messageOf(() => fullyShard(model, { mesh: run.mesh.flatten(["shard", "expert"], "all") })));
  const copied = await openModel(run, config, { seed: 3 });
  for (const experts of expertsOf(copied).values()) fullyShard(experts, { mesh: run.mesh.get("shard") });
  fullyShard(copied, { mesh: run.mesh.get("all") });
  await copied.load();
  const row = Int32Array.of(1, 2);
  const batch = { microBatches: [{ inputIds: row, labels: row, batch: 1, seq: 2 }] };
  errors.push(messageOf(() => run.backward(copied, batch)));
  return errors;
}

/** Kinds of parameters that are frozen, by a part of their names. */
const FROZEN: readonly RegExp[] = [/experts/, /gate\.weight/, /^((?!experts).)*$/, /^((?!gate\.weight).)*$/];

/** The first half of all rows, which one rank or the first of two ranks has. */
function firstHalf({ samples: { rank, size } }: Run, { microBatches }: Batch): Batch {
  if (rank > 0) return { microBatches: [] };
  return {
    microBatches: microBatches.map(({ batch, seq, inputIds, labels, ...others }) => {
      const rows = batch * size / 2;
      const part = (all: Int32Array): Int32Array => all.subarray(0, rows * seq);
      return { ...others, batch: rows, seq, inputIds: part(inputIds), labels: part(labels) };
    }),
  };
}

/** Losses and norms of steps with frozen parts, and of a step in which the second of two ranks has no rows. */
export async function trainParts(rank: WorldRank, orders: FamilyOrders): Promise<readonly (readonly number[])[]> {
  const figures: (readonly number[])[] = [];
  for (const pattern of [...FROZEN, undefined]) {
    const { run, model } = await laidOut(rank, orders);
    for (const [name, parameter] of model.namedParameters()) {
      if (pattern?.test(name) ?? false) parameter.requiresGrad = false;
    }
    const trained = [...model.parameters()].filter(({ requiresGrad }) => requiresGrad);
    const optimizer = new AdamW(trained, { learningRate: 3e-3, eps: 1e-4 });
    for (let step = 0; step < 2; step++) {
      using _frame = scope();
      const given = batchOf(run, model, step);
      const batch = pattern === undefined ? firstHalf(run, given) : given;
      optimizer.zeroGrad();
      const loss = run.backward(model, batch).item();
      figures.push([loss, clipGradNorm(model.parameters(), 0.1).item()]);
      optimizer.step();
    }
  }
  return figures;
}

rankFunctions(import.meta.url, { evaluateRows, crowd, mistakes, trainOnMesh, trainParts });

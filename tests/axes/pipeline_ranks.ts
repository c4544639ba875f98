/** What ranks of `pipeline_test.ts` do. @module */
import {
  AdamW,
  addLora,
  clipGradNorm,
  describeSharding,
  fullyShard,
  int32,
  openModel,
  parallelizeModule,
  parallelizePipeline,
  scope,
  shardModel,
  tensor,
  tensorPlanOf,
} from "../../mod.ts";
import {
  batchFor,
  type FamilyOrders,
  type FamilyReport,
  laidOut,
  trainFamily as train,
} from "../../scripts/axes/training.ts";
import { type MeshOrders, type MeshReport, trainOnMesh as trainFrom } from "../../scripts/mesh/training.ts";
import { Run } from "../../src/train/run.ts";
import { messageOf } from "../support/message.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** Trains a family over axes. */
export function trainFamily(rank: WorldRank, orders: FamilyOrders): Promise<FamilyReport> {
  return train(rank, orders);
}

/** Trains from first values or from a checkpoint, and may save one. */
export function trainOnMesh(rank: WorldRank, orders: MeshOrders): Promise<MeshReport> {
  return trainFrom(rank, orders);
}

/** Kinds of parameters that are frozen, by their names: all of the first stage, the last block, all but the last stage. */
const FROZEN: readonly RegExp[] = [/embed_tokens|layers\.0\./, /layers\.1\./, /embed_tokens|layers/];

/** Losses and norms of steps with frozen parts, the numbers of messages in each, and bytes that are left. */
export async function trainParts(
  rank: WorldRank,
  orders: FamilyOrders,
): Promise<readonly { readonly figures: readonly number[]; readonly messages: number; readonly left: number }[]> {
  const reports = [];
  for (const pattern of FROZEN) {
    const { run, model } = await laidOut(rank, orders);
    for (const [name, parameter] of model.namedParameters()) if (pattern.test(name)) parameter.requiresGrad = false;
    const trained = [...model.parameters()].filter(({ requiresGrad }) => requiresGrad);
    const optimizer = new AdamW(trained, { learningRate: 3e-3, eps: 1e-4 });
    const figures: number[] = [];
    let messages = 0;
    const stop = run.group.observe(({ kind }) => void (messages += Number(kind === "send and receive")));
    const inUse: number[] = [];
    for (let step = 0; step < 3; step++) {
      using _frame = scope();
      optimizer.zeroGrad();
      figures.push(run.backward(model, batchFor(run, model, step, orders)).item());
      figures.push(clipGradNorm(model.parameters(), 0.1).item());
      figures.push(clipGradNorm(model.parameters(), 1e9, { normType: Infinity }).item());
      optimizer.step();
      inUse.push(rank.device.allocator.stats.inUse);
    }
    stop();
    reports.push({ figures, messages, left: (inUse[2] ?? NaN) - (inUse[1] ?? NaN) });
  }
  return reports;
}

/** The errors of stages that cannot be, each the same on all ranks, and bytes in use behind them. */
export async function mistakes(
  { device, group }: WorldRank,
  config: FamilyOrders["config"],
): Promise<readonly string[]> {
  const run = new Run({ device, group, axes: { pipeline: group.size, shard: 1 }, print: () => undefined });
  const axis = run.mesh.get("pipeline");
  const open = (): ReturnType<typeof openModel> => openModel(run, config, { seed: 3 });
  const before = device.allocator.stats.inUse;
  const said: string[] = [];
  const few = await open();
  said.push(messageOf(() => parallelizePipeline(few, axis, { schedule: "interleaved", stagesPerRank: 2 })));
  said.push(messageOf(() => parallelizePipeline(few, axis, { stagesPerRank: 2 })));
  said.push(messageOf(() => parallelizePipeline(few, axis, { schedule: "interleaved", stagesPerRank: 1 })));
  const adapted = await open();
  addLora(adapted, { r: 2 });
  said.push(messageOf(() => parallelizePipeline(adapted, axis)));
  const { layers } = parallelizePipeline(few, axis);
  said.push(messageOf(() => parallelizePipeline(few, axis)));
  const other = few.layers.find((block) => !layers.includes(block));
  said.push(other === undefined ? "" : messageOf(() => fullyShard(other, { mesh: run.mesh.get("shard") })));
  said.push(messageOf(() => parallelizeModule(few, run.mesh.get("shard"), tensorPlanOf(few))));
  said.push(String(device.allocator.stats.inUse - before));
  await few.load();
  const row = { inputIds: Int32Array.of(1, 2), labels: Int32Array.of(2, 3), batch: 1, seq: 2 };
  said.push(messageOf(() => run.backward(few, { microBatches: [row] })));
  const inputIds = tensor(device, [1, 2], { shape: [1, 2], dtype: int32 });
  said.push(messageOf(() => few.call({ inputIds })));
  const own = { ...row, inputIds: Int32Array.of(1, group.rank) };
  said.push(messageOf(() => run.backward(few, { microBatches: [own, own] })));
  const whole = await open();
  await whole.load();
  said.push(messageOf(() => run.backward(whole, { microBatches: [row, row] })));
  said.push(messageOf(() => parallelizePipeline(whole, axis)));
  const tied = await openModel(run, { ...config, tie_word_embeddings: true }, { seed: 3 });
  parallelizePipeline(tied, axis);
  await tied.load();
  for (const parameter of tied.parameters()) parameter.registerPostAccumulateGradHook(() => undefined);
  said.push(messageOf(() => run.backward(tied, { microBatches: [row, row] })));
  const described = await open();
  parallelizePipeline(described, axis);
  shardModel(described, { mesh: run.mesh.get("shard"), fsdpPlan: "auto" });
  said.push(await describeSharding(described).predictPeak().then(() => "", String));
  return said;
}

rankFunctions(import.meta.url, { trainFamily, trainOnMesh, trainParts, mistakes });

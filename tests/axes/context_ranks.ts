/** Ranks of `context_test.ts`. @module */
import { type CausalLm, evaluate, generate, int32, openModel, parallelizeContext, scope, tensor } from "../../mod.ts";
import type { MicroBatch } from "../../src/data/micro_batch.ts";
import { IGNORE_INDEX } from "../../doors/nn.ts";
import { keyOf, uniformInt } from "../../doors/testing.ts";
import { batchOf, type FamilyOrders, laidOut } from "../../scripts/axes/training.ts";
import { evaluationMode } from "../../src/train/evaluation_mode.ts";
import { logLikelihoods } from "../../src/train/log_likelihood.ts";
import { Run } from "../../src/train/run.ts";
import { messageOf } from "../support/message.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** Rows of 13 tokens, which no number of parts divides: of two documents each, or of one. */
const SEQ = 13;
const BORDER = 5;

/** An evaluation's rows. */
export interface RowOrders extends FamilyOrders {
  readonly hasDocuments: boolean;
  /** Another id at this place of each row. */
  readonly changedAt?: number;
  /** Only the second document's tokens have labels. */
  readonly countsSecond?: boolean;
}

function rowsOf({ vocabSize }: CausalLm, { hasDocuments, changedAt, countsSecond = false }: RowOrders): MicroBatch {
  const key = keyOf(5, "rows");
  const ids = Int32Array.from({ length: 2 * SEQ }, (_, i) => {
    return (uniformInt(key, i, vocabSize) + Number(i % SEQ === changedAt)) % vocabSize;
  });
  const labels = Int32Array.from({ length: 2 * SEQ }, (_, i) => {
    const isLast = i % SEQ === BORDER - 1 || i % SEQ === SEQ - 1;
    return isLast || (countsSecond && i % SEQ < BORDER) ? IGNORE_INDEX : ids[i + 1] ?? NaN;
  });
  const documentStarts = hasDocuments ? ids.map((_, i) => i % SEQ < BORDER ? 0 : BORDER) : undefined;
  return { inputIds: ids, labels, batch: 2, seq: SEQ, documentStarts };
}

/** The loss of an evaluation, and the correct tokens. */
export async function evaluateRows(rank: WorldRank, orders: RowOrders): Promise<readonly [number, number]> {
  const { run, model } = await laidOut(rank, orders);
  const isReader = run.samples.rank === 0;
  const { loss, correct } = await evaluate(run, model, isReader ? [{ microBatches: [rowsOf(model, orders)] }] : []);
  return [loss, correct];
}

/** Log-likelihoods of texts of several lengths, of one and of two scored tokens among them. */
export async function scoreTexts(rank: WorldRank, orders: FamilyOrders): Promise<readonly number[]> {
  const { model } = await laidOut(rank, orders);
  using _mode = evaluationMode(model);
  const key = keyOf(5, "texts");
  const texts = [[2, 1], [9, 4], [7, 5], [14, 1]].map(([length = 0, from = 0], text) => {
    return { ids: Array.from({ length }, (_, i) => uniformInt(key, 100 * text + i, model.vocabSize)), from };
  });
  return [...logLikelihoods(model, texts), ...logLikelihoods(model, texts.slice(0, 1))];
}

/** The error of a model that cannot share positions; "" if it can. */
export async function refuse({ device, group }: WorldRank, config: FamilyOrders["config"]): Promise<string> {
  const run = new Run({ device, group, axes: { shard: 1, context: group.size }, print: () => undefined });
  const model = await openModel(run, config, { seed: 3 });
  return messageOf(() => parallelizeContext(model, run.mesh.get("context")));
}

/** The error of a forward of full rows; ids that are generated. */
export async function callItself(rank: WorldRank, orders: FamilyOrders): Promise<readonly [string, readonly number[]]> {
  const { model } = await laidOut(rank, orders);
  using _frame = scope();
  const inputIds = tensor(rank.device, [1, 2, 3, 4], { shape: [1, 4], dtype: int32 });
  return [messageOf(() => model.call({ inputIds })), generate(model, [1, 2], { maxNewTokens: 3, temperature: 0 })];
}

/** Bytes of a forward and backward beyond the model, of rows as long as the model allows. */
export async function activationBytes(rank: WorldRank, orders: FamilyOrders): Promise<number> {
  const { run, model } = await laidOut(rank, orders);
  const seq = model.maxPositions;
  const inputIds = new Int32Array(seq).fill(1);
  const batch = { microBatches: [{ inputIds, labels: inputIds, batch: 1, seq }] };
  run.backward(model, batch).dispose();
  for (const parameter of model.parameters()) parameter.zeroGrad();
  const { inUse } = rank.device.allocator.stats;
  rank.device.allocator.resetPeak();
  run.backward(model, batch).dispose();
  return rank.device.allocator.stats.peak - inUse;
}

/** The errors of a backward: of other rows on each rank, of rows that are parts, and of positions shared over another axis. */
export async function mistakes(rank: WorldRank, config: FamilyOrders["config"]): Promise<readonly string[]> {
  const { run, model } = await laidOut(rank, { config, axes: { context: 2 } });
  const inputIds = Int32Array.of(1, 2, 3, 4 + rank.rank);
  const rows: MicroBatch = { inputIds, labels: inputIds, batch: 1, seq: 4 };
  const same = { ...rows, inputIds: Int32Array.of(1, 2, 3, 4), labels: Int32Array.of(1, 2, 3, 4) };
  const parts = { ...same, part: { positionIds: inputIds, rowLength: 8 } };
  const short = { ...same, labels: Int32Array.of(1, 2, 3) };
  const said = (one: MicroBatch): string =>
    messageOf(() => {
      using _frame = scope();
      run.backward(model, { microBatches: [one] });
    });
  const other = new Run({ device: rank.device, group: rank.group, axes: { shard: 2 }, print: () => undefined });
  return [said(rows), said(parts), said(short), messageOf(() => other.backward(model, { microBatches: [same] }))];
}

/** The error of a training that draws by places in a row. */
export async function drawInTraining(rank: WorldRank, orders: FamilyOrders): Promise<string> {
  const { run, model } = await laidOut(rank, orders);
  return messageOf(() => {
    using _frame = scope();
    run.backward(model, batchOf(run, model, 0));
  });
}

rankFunctions(import.meta.url, {
  ...{ evaluateRows, refuse, callItself, activationBytes, mistakes, drawInTraining, scoreTexts },
});

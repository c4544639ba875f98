/** The ranks' code of `evaluate_test.ts`. @module */
import type { Batch } from "../../src/data/micro_batch.ts";
import { scope } from "../../src/tensor/scope.ts";
import { evaluate, type Evaluation } from "../../src/train/evaluate.ts";
import { openModel } from "../../src/train/open_model.ts";
import { Run } from "../../src/train/run.ts";
import { textData } from "../../src/train/text_data.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { microBatch, type Mode, parallelize, SIZES } from "./loop_ranks.ts";

/** The data that a rank evaluates: the batches of each rank, as seed and ignored labels of their micro-batches; or a file. */
export interface EvaluateOrders {
  readonly mode: Mode;
  readonly batches?: readonly (readonly (readonly (readonly [seed: number, ignored: number])[])[])[];
  readonly file?: string;
  /** The rank whose data cannot be read after its first batch. */
  readonly broken?: number;
}

/** The results of a rank. */
export interface EvaluateReport {
  readonly first: Evaluation;
  readonly second: Evaluation;
  /** Squared norms of all gradients before and after. */
  readonly gradients: readonly (readonly number[])[];
  /** Bytes in use before and after each. */
  readonly inUse: readonly number[];
}

/** Evaluates twice, in the middle of training. */
export async function evaluateTwice(
  { device, group, rank }: WorldRank,
  orders: EvaluateOrders,
): Promise<EvaluateReport> {
  const run = new Run({ device, group, print: () => undefined });
  const batches = (orders.batches?.[rank] ?? []).map((list) => ({
    microBatches: list.map(([seed, ignored]) => microBatch(seed, ignored)),
  }));
  const isBroken = orders.broken === rank;
  const model = await openModel(run, orders.file === undefined ? SIZES : { ...SIZES, vocab_size: 257 }, { seed: 3 });
  parallelize(model, orders.mode, run);
  await model.load();
  using file = orders.file === undefined
    ? undefined
    : await textData(run, model, orders.file, { sequenceLength: 12, batch: 2 * group.size });
  const data = (): AsyncIterable<Batch> | Iterable<Batch> => file ?? (isBroken ? broken(batches) : batches);
  const gradients = (): number[] => {
    using _frame = scope();
    return [...model.parameters()].map(({ grad }) => grad?.square().sum().item() ?? NaN);
  };
  run.backward(model, { microBatches: [microBatch(rank, 1)] }).dispose();
  const before = gradients();
  const inUse = [device.allocator.stats.inUse];
  const first = await evaluate(run, model, data());
  inUse.push(device.allocator.stats.inUse);
  const second = await evaluate(run, model, data());
  inUse.push(device.allocator.stats.inUse);
  return { first, second, gradients: [before, gradients()], inUse };
}

async function* broken(batches: readonly Batch[]): AsyncGenerator<Batch> {
  yield* batches.slice(0, 1);
  await Promise.resolve();
  throw new RangeError("the disk is gone");
}

rankFunctions(import.meta.url, { evaluateTwice });

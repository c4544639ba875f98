/** The ranks' code of `packed_test.ts`. @module */
import type { Packing } from "../../src/data/samples/rows.ts";
import { SGD } from "../../src/optim/sgd.ts";
import { evaluate } from "../../src/train/evaluate.ts";
import { openModel } from "../../src/train/open_model.ts";
import { Run } from "../../src/train/run.ts";
import { textData } from "../../src/train/text_data.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { type Mode, parallelize, SIZES } from "./loop_ranks.ts";

/** The data and the settings of a rank's training. */
export interface PackedOrders {
  readonly mode: Mode;
  readonly file: string;
  readonly packing: Packing;
  /** Micro-batches of a step on each rank. */
  readonly microBatches: number;
  readonly steps: number;
}

/** The results of a rank. */
export interface PackedReport {
  /** Of each step. */
  readonly losses: readonly number[];
  /** Mean loss of all text afterwards, and how many tokens it has. */
  readonly mean: number;
  readonly tokens: number;
  readonly lines: readonly string[];
}

/** Trains on documents and evaluates on them. */
export async function trainPacked({ device, group }: WorldRank, orders: PackedOrders): Promise<PackedReport> {
  const lines: string[] = [];
  const run = new Run({ device, group, print: (line) => lines.push(line) });
  const model = await openModel(run, { ...SIZES, vocab_size: 257, max_position_embeddings: 32 }, { seed: 3 });
  parallelize(model, orders.mode, run);
  await model.load();
  const optimizer = new SGD(model.parameters(), { learningRate: 0.05 });
  const { packing, microBatches } = orders;
  using data = await textData(run, model, orders.file, { sequenceLength: 32, batch: 8, microBatches, packing });
  const losses: number[] = [];
  for await (const batch of data.take(orders.steps)) {
    losses.push(run.backward(model, batch).item());
    optimizer.step();
    optimizer.zeroGrad();
  }
  const { loss: mean, tokens } = await evaluate(run, model, data);
  return { losses, mean, tokens, lines };
}

rankFunctions(import.meta.url, { trainPacked });

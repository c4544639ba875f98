/** The ranks' code of `fine_tuning_test.ts`. @module */
import type { Packing } from "../../src/data/samples/rows.ts";
import { clipGradNorm } from "../../src/optim/clip.ts";
import { AdamW } from "../../src/optim/adamw.ts";
import { getModelStateDict } from "../../src/checkpoint/state_dict/model_state.ts";
import { evaluate } from "../../src/train/evaluate.ts";
import { openModel } from "../../src/train/open_model.ts";
import { Run } from "../../src/train/run.ts";
import { textData } from "../../src/train/text_data.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { type Mode, parallelize, SIZES } from "./loop_ranks.ts";

/** The settings of a rank's training. */
export interface FineTuningOrders {
  readonly mode: Mode;
  readonly file: string;
  readonly packing: Packing;
  /** Micro-batches of a step on each rank. */
  readonly microBatches: number;
  readonly neftuneNoiseAlpha?: number;
  readonly emaDecay?: number;
}

/** The results of a rank. */
export interface FineTuningReport {
  /** Of each step. */
  readonly losses: readonly number[];
  readonly norms: readonly number[];
  /** Mean loss of all text afterwards, with the weights and with their averages. */
  readonly evaluated: readonly number[];
  /** All weights, and all averages. */
  readonly weights: readonly number[];
  readonly averages: readonly number[];
}

/** Trains some steps on text. */
export async function fineTune({ device, group }: WorldRank, orders: FineTuningOrders): Promise<FineTuningReport> {
  const { mode, file, packing, microBatches, neftuneNoiseAlpha, emaDecay } = orders;
  const run = new Run({ device, group, print: () => undefined });
  const model = await openModel(run, { ...SIZES, vocab_size: 257, max_position_embeddings: 32 }, { seed: 3 });
  model.neftuneNoiseAlpha = neftuneNoiseAlpha;
  parallelize(model, mode, run);
  await model.load();
  const optimizer = new AdamW(model.parameters(), {
    learningRate: 0.01,
    ...emaDecay === undefined ? {} : { emaDecay },
  });
  using data = await textData(run, model, file, { sequenceLength: 32, batch: 8, microBatches, packing });
  const [losses, norms]: [number[], number[]] = [[], []];
  for await (const batch of data.take(3)) {
    losses.push(run.backward(model, batch).item());
    norms.push(clipGradNorm(model.parameters(), 1).item());
    optimizer.step();
    optimizer.zeroGrad();
  }
  const all = (): number[] =>
    [...getModelStateDict(model, { group, fullStateDict: true }).values()].flatMap((one) => [...one.toArray()]);
  const measure = async (): Promise<number> => (await evaluate(run, model, data)).loss;
  const evaluated = [await measure()];
  const averages = emaDecay === undefined ? [] : await optimizer.withAverages(async () => {
    evaluated.push(await measure());
    return all();
  });
  evaluated.push(await measure());
  return { losses, norms, evaluated, weights: all(), averages };
}

rankFunctions(import.meta.url, { fineTune });

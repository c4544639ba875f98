/** The ranks' code of `loop_test.ts`. @module */
import type { Batch, MicroBatch } from "../../src/data/micro_batch.ts";
import { replicate } from "../../src/ddp/replicate.ts";
import { fullyShard } from "../../src/fsdp/fully_shard.ts";
import type { CausalLm } from "../../src/models/causal_lm.ts";
import { clipGradNorm } from "../../src/optim/clip.ts";
import { SGD } from "../../src/optim/sgd.ts";
import { openModel } from "../../src/train/open_model.ts";
import { Run } from "../../src/train/run.ts";
import { messageOf } from "../support/message.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { scope } from "../../src/tensor/scope.ts";

/** The model of these tests. */
export const SIZES: Readonly<Record<string, string | number>> = {
  ...{ model_type: "llama", vocab_size: 32, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2 },
  ...{ num_attention_heads: 2, num_key_value_heads: 1, max_position_embeddings: 12, initializer_range: 0.2 },
};

/** The parallelism of a model. */
export type Mode = "plain" | "fsdp" | "ddp";

/** Parallelizes a model. */
export function parallelize(model: CausalLm, mode: Mode, run: Pick<Run, "mesh">): void {
  if (mode === "ddp") replicate(model, { mesh: run.mesh });
  if (mode !== "fsdp") return;
  for (const block of model.layers) fullyShard(block, { mesh: run.mesh });
  fullyShard(model, { mesh: run.mesh });
}

/** A micro-batch of 6 tokens, of which the last `ignored` count for nothing. */
export function microBatch(seed: number, ignored: number): MicroBatch {
  const inputIds = Int32Array.from({ length: 6 }, (_, i) => (seed * 7 + i * i * 3) % 32);
  return { inputIds, labels: inputIds.map((id, i) => i < 6 - ignored ? (id + 5) % 32 : -100), batch: 1, seq: 6 };
}

/** The data of a rank: the micro-batches of each rank, as seed and ignored labels, and the number of calls of backward. */
export interface LoopOrders {
  readonly mode: Mode;
  readonly batches: readonly (readonly (readonly [seed: number, ignored: number])[])[];
  readonly passes?: number;
}

/** The results of a step. */
export interface LoopReport {
  readonly error: string;
  readonly loss: number;
  readonly norm: number;
  readonly lines: readonly string[];
  /** This rank's weights after an SGD step. */
  readonly weights: readonly number[];
}

/** One step of the public loop. */
export async function loop({ device, group, rank }: WorldRank, orders: LoopOrders): Promise<LoopReport> {
  const lines: string[] = [];
  const run = new Run({ device, group, print: (line) => lines.push(line) });
  const model = await openModel(run, SIZES, { seed: 3 });
  parallelize(model, orders.mode, run);
  await model.load();
  const parameters = [...model.parameters()];
  const optimizer = new SGD(parameters, { learningRate: 0.1 });
  const batch: Batch = {
    microBatches: (orders.batches[rank] ?? []).map(([seed, ignored]) => microBatch(seed, ignored)),
    step: 7,
  };
  using _frame = scope();
  const report = { loss: NaN, norm: NaN };
  const error = messageOf(() => {
    for (let pass = 0; pass < (orders.passes ?? 1); pass++) report.loss = run.backward(model, batch).item();
    const gradNorm = clipGradNorm(parameters, 1e9);
    run.log({ loss: report.loss, gradNorm });
    report.norm = gradNorm.item();
    optimizer.step();
  });
  return { error, ...report, lines, weights: parameters.flatMap((parameter) => [...ownedValues(parameter)]) };
}

rankFunctions(import.meta.url, { loop });

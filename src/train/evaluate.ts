/**
 * Evaluation: the mean loss over all tokens of a held-out text, and how many of them are the model's first choice, divided among the
 * ranks in any way.
 *
 * Note [Bits of an evaluation] On the CPU a token's loss does not depend on the rows beside its own (`evaluation_rows.ts`), and losses
 * are added without rounding. So all numbers are the same bits on any number of ranks, in micro-batches of any size.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Batch } from "../data/micro_batch.ts";
import { ArgumentError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { IGNORE_INDEX } from "../nn/functional.ts";
import { requirePositionRanks, requireStageRanks } from "./axes.ts";
import { countAll, ignoredRow, ownPositions } from "./backward.ts";
import { evaluationMode } from "./evaluation_mode.ts";
import { evaluationRows } from "./evaluation_rows.ts";
import { ExactSum, totalOf } from "./exact_sum.ts";
import { requireOpenedModel } from "./opened_model.ts";
import { requireRun } from "./required_run.ts";
import type { Run } from "./run.ts";
import { scoreInStages } from "./token_scores.ts";

/** Result of an evaluation; the same on every rank. */
export interface Evaluation {
  /** Mean cross-entropy of all tokens, in nats. */
  readonly loss: number;
  /** e to the power of {@link loss}. */
  readonly perplexity: number;
  /** Number of predicted tokens, over all ranks. */
  readonly tokens: number;
  /** Tokens among them that the model finds likelier than every other one. */
  readonly correct: number;
  /** {@link correct} divided by {@link tokens}: TRL's `mean_token_accuracy`, by tokens instead of batches. */
  readonly accuracy: number;
}

/**
 * Measures a model's loss and accuracy on all of `data`, without gradients and in evaluation mode: cross-entropy alone, without losses
 * that balance routers. On the CPU the numbers are the same bits on any number of ranks, but for models with experts whose positions
 * ranks share. Afterwards each module is in its earlier mode, and
 * sharded if it was. It needs no scope. Every rank must call it; their numbers of batches may differ.
 *
 * @param data this rank's part: a {@link TextData} is read once from its begin to its end
 * @throws {ArgumentError} if no token on any rank has a label, or the ranks of the run's context axis do not share the model's positions
 * @throws the error of reading `data`; on the other ranks a {@link CollectiveError} naming it
 * @example
 * ```ts
 * import { evaluate, launch, openModel, textData } from "fullyshard";
 * await using run = await launch();
 * const sizes = { vocab_size: 257, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2, num_attention_heads: 4 };
 * const model = await openModel(run, { model_type: "llama", ...sizes });
 * await model.load();
 * using heldOut = await textData(run, model, "LICENSE", { sequenceLength: 64, batch: 8 });
 * const { loss, perplexity } = await evaluate(run, model, heldOut);
 * if (Math.abs(loss - Math.log(257)) > 0.1 || perplexity > 300) throw new Error("it knows nothing yet");
 * ```
 */
export async function evaluate(
  run: Pick<Run, "group"> & Partial<Pick<Run, "data" | "mesh">>,
  model: CausalLm,
  data: AsyncIterable<Batch> | Iterable<Batch>,
): Promise<Evaluation> {
  requireRun("evaluate", run);
  requireOpenedModel("evaluate", model);
  const { group, data: ranks = group, mesh } = run;
  if (mesh !== undefined) {
    requirePositionRanks("evaluate", model, mesh);
    requireStageRanks("evaluate", model, mesh);
  }
  using _mode = evaluationMode(model);
  const batches = iterate(data);
  const sum = new ExactSum();
  let [tokens, ownCorrect] = [0, 0];
  try {
    for (;;) {
      const next = await group.together("read a batch to evaluate on", () => batches.next());
      const microBatches = next.done ? [] : ownPositions(model, evaluationRows(model, next.value.microBatches));
      const counts = countAll(microBatches, ranks);
      if (counts.microBatches === 0) break;
      tokens += counts.tokens;
      for (let i = 0; i < counts.microBatches; i++) {
        const microBatch = microBatches[i] ?? ignoredRow(model);
        const scores = scoreInStages(model, microBatch);
        if (scores === undefined) continue; // another stage has them
        const { losses, likeliest } = scores;
        for (const [place, label] of microBatch.labels.entries()) {
          if (label === IGNORE_INDEX) continue;
          sum.add(at(losses, place, "loss of token"));
          if (likeliest[place] === label) ownCorrect++;
        }
      }
    }
  } finally {
    await batches.return(undefined);
  }
  if (tokens === 0) throw new ArgumentError("Cannot evaluate on data in which no token has a label: give at least one");
  const ofStage = totalOf(ranks.exchangeText(String(sum), "evaluation loss")) / tokens;
  const [ownTotal = NaN] = ranks.sum([ownCorrect], "correct tokens");
  const [loss = NaN, correct = NaN] = ofLastStage(model, [ofStage, ownTotal]);
  return { loss, perplexity: model.device.math.exp(loss), tokens, correct, accuracy: correct / tokens };
}

/** The numbers of the rank that has a model's last stage. */
function ofLastStage({ pipeline }: Pick<CausalLm, "pipeline">, numbers: readonly number[]): readonly number[] {
  if (pipeline === undefined) return numbers;
  const { group, stages } = pipeline;
  const all = group.exchange(new Uint8Array(Float64Array.from(numbers).buffer), "evaluation of the last stage");
  return [...new Float64Array(at(all, pipeline.rankOf(stages.length - 1), "numbers of rank").slice().buffer)];
}

async function* iterate(data: AsyncIterable<Batch> | Iterable<Batch>): AsyncGenerator<Batch, undefined> {
  yield* data;
}

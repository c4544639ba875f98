/**
 * Evaluation: the mean loss over all tokens of a held-out text, divided among the ranks in any way.
 *
 * @module
 */
import { noGrad } from "../autograd/mode.ts";
import type { Batch } from "../data/micro_batch.ts";
import { ArgumentError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { scope } from "../tensor/scope.ts";
import { countAll, forward, IGNORED_ROW } from "./backward.ts";
import { evaluationMode } from "./evaluation_mode.ts";
import type { Run } from "./run.ts";

/** Result of an evaluation; the same on every rank. */
export interface Evaluation {
  /** Mean cross-entropy of all tokens, in nats. */
  readonly loss: number;
  /** e to the power of {@link loss}. */
  readonly perplexity: number;
  /** Number of predicted tokens, over all ranks. */
  readonly tokens: number;
}

/**
 * Measures a model's loss on all of `data`, without gradients and in evaluation mode. Afterwards each module is in its earlier
 * mode, and sharded if it was. It needs no scope. Every rank must call it; their numbers of batches may differ.
 *
 * @param data this rank's part: a {@link TextData} is read once from its begin to its end
 * @throws {ArgumentError} if no token on any rank has a label
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
  { group, data: ranks = group }: Pick<Run, "group"> & Partial<Pick<Run, "data">>,
  model: CausalLm,
  data: AsyncIterable<Batch> | Iterable<Batch>,
): Promise<Evaluation> {
  using _mode = evaluationMode(model);
  const batches = iterate(data);
  let [sum, tokens] = [0, 0];
  try {
    for (;;) {
      const next = await group.together("read a batch to evaluate on", () => batches.next());
      const microBatches = next.done ? [] : next.value.microBatches;
      const counts = countAll(microBatches, ranks);
      if (counts.microBatches === 0) break;
      tokens += counts.tokens;
      for (let i = 0; i < counts.microBatches; i++) {
        using _frame = scope();
        sum += noGrad(() => forward(model, microBatches[i] ?? IGNORED_ROW, model.device)).item();
      }
    }
  } finally {
    await batches.return(undefined);
  }
  if (tokens === 0) throw new ArgumentError("Cannot evaluate on data in which no token has a label: give at least one");
  const [total = NaN] = ranks.sum([sum], "evaluation loss");
  const loss = total / tokens;
  return { loss, perplexity: model.device.math.exp(loss), tokens };
}

async function* iterate(data: AsyncIterable<Batch> | Iterable<Batch>): AsyncGenerator<Batch, undefined> {
  yield* data;
}

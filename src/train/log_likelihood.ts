/**
 * Log-likelihoods of texts, token by token summed: how likely a model finds the last tokens of each, given those before.
 *
 * @module
 */
import { at } from "../at.ts";
import type { ScoredText } from "../data/choices/encode_choices.ts";
import type { MicroBatch } from "../data/micro_batch.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { IGNORE_INDEX } from "../nn/functional.ts";
import { evaluationRows } from "./evaluation_rows.ts";
import { scoreRows } from "./token_scores.ts";

/**
 * The log-likelihood, in nats, of the scored tokens of each text. On the CPU it is the same bits whatever texts are beside. Called inside
 * of `evaluationMode`.
 *
 * @param texts computed at once, padded to the longest
 */
export function logLikelihoods(model: CausalLm, texts: readonly ScoredText[]): readonly number[] {
  const sums: number[] = [];
  for (const rows of evaluationRows(model, [microBatchOf(texts)])) {
    const losses = scoreRows(model, rows);
    for (let row = 0; row < rows.batch; row++) {
      let sum = 0;
      for (let place = row * rows.seq; place < (row + 1) * rows.seq; place++) {
        if (rows.labels[place] !== IGNORE_INDEX) sum -= at(losses, place, "loss of token");
      }
      sums.push(sum);
    }
  }
  return sums;
}

/** Each text but its last token, with labels where the next token is scored. */
function microBatchOf(texts: readonly ScoredText[]): MicroBatch {
  const lengths = Int32Array.from(texts, ({ ids }) => ids.length - 1);
  const [batch, seq] = [texts.length, Math.max(...lengths)];
  const inputIds = new Int32Array(batch * seq);
  const labels = new Int32Array(batch * seq).fill(IGNORE_INDEX);
  for (const [row, { ids, from }] of texts.entries()) {
    inputIds.set(ids.slice(0, -1), row * seq);
    labels.set(ids.slice(from), row * seq + from - 1);
  }
  return { inputIds, labels, batch, seq, lengths };
}

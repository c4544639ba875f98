/**
 * Log-probabilities of answers: sums over their tokens, on the host, as they are added in one order whatever padding is beside them.
 *
 * @module
 */
import { at } from "../at.ts";
import { requireSameRows } from "../axes/positions.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import type { Batch, MicroBatch } from "../data/micro_batch.ts";
import { InternalError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { IGNORE_INDEX } from "../nn/functional.ts";
import { countAll, IGNORED_ROW } from "./backward.ts";
import { evaluationRows } from "./evaluation_rows.ts";
import type { Run } from "./run.ts";
import { scoreRows } from "./token_scores.ts";

/** Numbers of an answer in messages between ranks: see {@link AnswerTable}. */
const WORDS = 5;

/** Each row's sum of log-probabilities of tokens with labels, in nats. @param losses of its tokens, row-major [batch, seq] */
export function logProbsOf(losses: ArrayLike<number>, { batch, seq, labels }: MicroBatch): readonly number[] {
  return Array.from({ length: batch }, (_, row) => {
    let sum = 0;
    for (let i = row * seq; i < (row + 1) * seq; i++) {
      if (labels[i] !== IGNORE_INDEX) sum -= at(losses, i, "loss of token");
    }
    return sum;
  });
}

/** The same rows with labels on their prompts too. @param isTaken tells which rows get them. @default all */
export function withPrompts(microBatch: MicroBatch, isTaken: (row: number) => boolean = () => true): MicroBatch {
  const { batch, seq, inputIds, lengths } = microBatch;
  const labels = Int32Array.from(microBatch.labels);
  for (let row = 0; row < batch; row++) {
    const begin = row * seq;
    const end = isTaken(row) ? begin + (lengths === undefined ? seq : at(lengths, row, "length of row")) - 1 : begin;
    // The last token has an answer's label, if any.
    for (let i = begin; i < end; i++) if (labels[i] === IGNORE_INDEX) labels[i] = at(inputIds, i + 1, "token");
  }
  return { ...microBatch, labels };
}

/**
 * The examples that this rank counts and sends to other ranks: its own. Of ranks that share positions, the first alone counts them.
 * Every rank must call it.
 *
 * @throws {ArgumentError} if ranks that share positions have other rows
 */
export function countedHere<T>(
  { positions }: Pick<CausalLm, "positions">,
  microBatches: readonly MicroBatch[],
  examples: readonly T[],
): readonly T[] {
  if (positions === undefined) return examples;
  requireSameRows(microBatches, positions);
  // A dry run's rank hears nothing of others, and counts for itself.
  return positions.rank === 0 || positions.kind === "dry" ? examples : [];
}

/** Number of each row's tokens with labels. */
export function targetsOf({ batch, seq, labels }: MicroBatch): readonly number[] {
  return Array.from({ length: batch }, (_, row) => {
    return labels.subarray(row * seq, (row + 1) * seq).filter((label) => label !== IGNORE_INDEX).length;
  });
}

/** Log-probabilities of the answers of all pairs of some data, by the number of the row: pair i has rows 2i and 2i + 1. */
export interface AnswerTable {
  /** In nats. */
  readonly logProbs: Float64Array;
  /** Tokens of each answer. */
  readonly tokens: Float64Array;
  /** Loss of all tokens of the row that were measured: with prompts, of these too. */
  readonly textLosses: Float64Array;
  /** Their number. */
  readonly textTokens: Float64Array;
  /** Of rows with labels, for each pair 1 if its answer is desirable; else 0. */
  readonly desirable: Float64Array;
}

/**
 * Measures the answers of all pairs of some data, without gradients: on the CPU the same bits on any number of ranks (see Note [Rows
 * of an evaluation]). Every rank must call it, in evaluation mode, and gets all of them.
 *
 * @param data this rank's part of the pairs
 * @param hasPrompts true to measure the tokens of prompts too
 */
export async function measureAnswers(
  { group, data: ranks }: Pick<Run, "group" | "data">,
  model: CausalLm,
  data: AsyncIterable<Batch>,
  hasPrompts: boolean = false,
): Promise<AnswerTable> {
  const own: { readonly rows: number[]; readonly words: number[] } = { rows: [], words: [] };
  const batches = data[Symbol.asyncIterator]();
  try {
    for (;;) {
      const next = await group.together("read pairs to measure", () => batches.next());
      const microBatches = next.done ? [] : next.value.microBatches;
      const parts = evaluationRows(model, microBatches);
      const counted = countedHere(model, parts, parts);
      const { microBatches: count } = countAll(parts, ranks);
      if (count === 0) break;
      const desirable: number[] = [];
      for (const { pairs = [], isDesirable } of counted.length === 0 ? [] : microBatches) {
        for (const [i, pair] of pairs.entries()) {
          own.rows.push(2 * pair, 2 * pair + 1);
          desirable.push(...new Array<number>(2).fill(isDesirable === undefined ? 0 : at(isDesirable, i, "label")));
        }
      }
      let measured = 0;
      for (let i = 0; i < count; i++) {
        const part = parts[i] ?? IGNORED_ROW;
        const scored = hasPrompts ? withPrompts(part) : part;
        const losses = scoreRows(model, scored);
        if (i >= counted.length) continue;
        const [logProbs, texts, textTokens] = [logProbsOf(losses, part), logProbsOf(losses, scored), targetsOf(scored)];
        for (const [row, tokens] of targetsOf(part).entries()) {
          const label = at(desirable, measured++, "label");
          own.words.push(at(logProbs, row, "row"), tokens, -at(texts, row, "row"), at(textTokens, row, "row"), label);
        }
      }
    }
  } finally {
    await batches.return?.();
  }
  return allAnswers(ranks, own);
}

/** The answers that all ranks have measured. */
function allAnswers(
  ranks: ProcessGroup,
  { rows, words }: { readonly rows: readonly number[]; readonly words: readonly number[] },
): AnswerTable {
  if (words.length !== rows.length * WORDS) throw new InternalError("rows of pairs and measured rows differ");
  const given = Float64Array.from([...rows, ...words]);
  const parts = ranks.exchange(new Uint8Array(given.buffer), "log-probabilities of answers").map((bytes) => {
    return new Float64Array(bytes.slice().buffer);
  });
  const count = parts.reduce((sum, { length }) => sum + length / (1 + WORDS), 0);
  const column = (): Float64Array => new Float64Array(count).fill(NaN);
  const table = { logProbs: column(), tokens: column(), textLosses: column(), textTokens: column() };
  const labels = column();
  for (const part of parts) {
    const own = part.length / (1 + WORDS);
    for (let i = 0; i < own; i++) {
      const row = at(part, i, "row");
      const columns = [table.logProbs, table.tokens, table.textLosses, table.textTokens, labels];
      for (const [word, into] of columns.entries()) into[row] = at(part, own + i * WORDS + word, "number of an answer");
    }
  }
  return { ...table, desirable: labels.filter((_, row) => row % 2 === 0) };
}

/**
 * Rows with labels as samples, two for each: the prompt with its own answer, and with the answer of another row, from which the distance
 * from the reference is estimated. Tokens are those of TRL's `KTOTrainer`.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { ConfigError } from "../../errors.ts";
import { countOf } from "../../words.ts";
import { rowError, type RowPlace } from "../rows/row.ts";
import { IGNORED } from "../samples/sample.ts";
import { answerIds } from "./answer_ids.ts";
import { commonLength } from "./boundaries.ts";
import type { EncodedRow, RowEncoding } from "./encode_row.ts";
import type { LabeledContents } from "./labeled.ts";

/** Tokens of a row with a label. */
export interface LabeledIds {
  readonly prompt: readonly number[];
  readonly completion: readonly number[];
  readonly isDesirable: boolean;
}

/**
 * Tokenizes a row. The prompt ends where its own tokens and those with the completion part.
 *
 * @throws {ConfigError} naming file and line of a row that the template refuses, whose prompt alone is as long as a sample may be, or
 * that has a completion without tokens; or if there is no template
 */
export function labeledIds(contents: LabeledContents, place: RowPlace, encoding: RowEncoding): LabeledIds {
  const refuse = (expected: string, got: string): ConfigError => rowError(encoding.name, place, { expected, got });
  const answered = contents.kind === "text"
    ? { kind: contents.kind, prompt: contents.prompt, answers: [contents.completion] }
    : { ...contents, answers: [contents.completion] };
  const { prompt, answers } = answerIds(answered, encoding, refuse);
  const whole = at(answers, 0, "answer");
  const promptLength = commonLength(prompt, whole);
  const { maxLength } = encoding;
  if (promptLength >= maxLength) {
    const got = `a prompt of ${promptLength} tokens: take a longer sequenceLength`;
    throw refuse(`a token of the completion among the first ${maxLength}`, got);
  }
  // The first token is never predicted, as nothing comes before it.
  if (Math.min(whole.length, maxLength) <= Math.max(1, promptLength)) {
    const got = `${countOf(whole.length, "token")}, ${promptLength} of them the prompt's`;
    throw refuse('a completion under "completion" with a token that follows others', got);
  }
  return {
    prompt: whole.slice(0, promptLength),
    completion: whole.slice(promptLength),
    isDesirable: contents.isDesirable,
  };
}

/** The sample of a prompt and a completion, which alone has labels; cut off behind `maxLength` tokens. */
export function labeledSample(
  { prompt, isDesirable }: LabeledIds,
  completion: readonly number[],
  maxLength: number,
): EncodedRow {
  const all = [...prompt, ...completion];
  const ids = Int32Array.from(all.slice(0, maxLength));
  const labels = ids.map((id, i) => i < prompt.length ? IGNORED : id);
  return { ids, labels, cut: all.length - ids.length, isDesirable };
}

/**
 * Two samples per row: its own completion, then the completion of the previous row (for the first row, of the last).
 */
export function blockSamples(rows: readonly LabeledIds[], maxLength: number): readonly EncodedRow[] {
  return rows.flatMap((row, i) => {
    const other = at(rows, (i + rows.length - 1) % rows.length, "row of a block");
    return [labeledSample(row, row.completion, maxLength), labeledSample(row, other.completion, maxLength)];
  });
}

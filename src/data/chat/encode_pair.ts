/**
 * A row of preferences as two samples, which begin with the same prompt: the chosen answer and the rejected one, tokenized as TRL's
 * `DPOTrainer` does it, or with {@link RowEncoding.ends} its `ORPOTrainer`.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { ConfigError } from "../../errors.ts";
import { countOf } from "../../words.ts";
import { rowError, type RowPlace } from "../rows/row.ts";
import { IGNORED } from "../samples/sample.ts";
import { type Answered, answerIds } from "./answer_ids.ts";
import { commonLength } from "./boundaries.ts";
import { type EncodedRow, ended, type PairEnds, type RowEncoding } from "./encode_row.ts";
import type { PairContents } from "./preference.ts";

/** The samples of a row: both of them begin with the prompt, and only what follows has labels. */
export type EncodedPair = readonly [chosen: EncodedRow, rejected: EncodedRow];

/**
 * Makes two samples of a row. The prompt ends where its own tokens and those of an answer part, so that both answers are predicted
 * from the same tokens.
 *
 * @throws {ConfigError} naming file and line of a row that the template refuses, whose prompt alone is as long as a sample may be, or
 * that has an answer without tokens; or if there is no template
 */
export function encodePair(contents: PairContents, place: RowPlace, encoding: RowEncoding): EncodedPair {
  const refuse = (expected: string, got: string): ConfigError => rowError(encoding.name, place, { expected, got });
  const { prompt, answers } = answerIds(answeredOf(contents), encoding, refuse);
  const { maxLength, ends } = encoding;
  const ids = { prompt, chosen: at(answers, 0, "answer"), rejected: at(answers, 1, "answer") };
  const both = Math.min(commonLength(prompt, ids.chosen), commonLength(prompt, ids.rejected));
  const sampleOf = (which: "chosen" | "rejected"): EncodedRow => {
    const { all, promptLength } = ends === undefined
      ? { all: ids[which], promptLength: both }
      : withEnds(ids.prompt, ids[which], ends, encoding);
    if (promptLength >= maxLength) {
      const got = `a prompt of ${promptLength} tokens: take a longer sequenceLength`;
      throw refuse(`a token of the answers among the first ${maxLength}`, got);
    }
    const kept = Int32Array.from(all.slice(0, maxLength));
    const labels = kept.map((id, i) => i < promptLength ? IGNORED : id);
    // The first token is never predicted, as nothing comes before it.
    if (labels.subarray(1).some((label) => label !== IGNORED)) {
      return { ids: kept, labels, cut: all.length - kept.length };
    }
    throw refuse(
      `an answer under "${which}" with a token that follows others`,
      `${countOf(all.length, "token")}, ${promptLength} of them the prompt's`,
    );
  };
  return [sampleOf("chosen"), sampleOf("rejected")];
}

function answeredOf(contents: PairContents): Answered {
  return contents.kind === "text"
    ? { kind: contents.kind, prompt: contents.prompt, answers: [contents.chosen, contents.rejected] }
    : { ...contents, answers: [contents.chosen, contents.rejected] };
}

/**
 * A sample with the tokens around it, and where its answer begins: behind the prompt's own tokens, or one before, where the last of them
 * is merged with the answer.
 */
function withEnds(
  prompt: readonly number[],
  sample: readonly number[],
  { beginId }: PairEnds,
  { tokenizer }: RowEncoding,
): { readonly all: readonly number[]; readonly promptLength: number } {
  const merged = commonLength(prompt, sample) === prompt.length ? 0 : 1;
  const [before, answer] = [sample.slice(0, prompt.length - merged), sample.slice(prompt.length - merged)];
  const begin = beginId === undefined || before[0] === beginId ? before : [beginId, ...before];
  return { all: [...begin, ...ended(answer, tokenizer)], promptLength: begin.length };
}

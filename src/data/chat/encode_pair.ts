/**
 * A row of preferences as two samples, which begin with the same prompt: the chosen answer and the rejected one, tokenized as TRL's
 * `DPOTrainer` does it, or with {@link RowEncoding.ends} its `ORPOTrainer`.
 *
 * @module
 */
import type { ConfigError } from "../../errors.ts";
import { countOf } from "../../words.ts";
import { rowError, type RowPlace } from "../rows/row.ts";
import { IGNORED } from "../samples/sample.ts";
import { commonLength } from "./boundaries.ts";
import type { RefuseRow } from "./columns.ts";
import { type EncodedRow, ended, type PairEnds, type RowEncoding } from "./encode_row.ts";
import { TemplateFailure } from "./failure.ts";
import { noTemplate } from "./load_template.ts";
import type { ChatPair, PairContents, TextPair } from "./preference.ts";

/** The samples of a row: both of them begin with the prompt, and only what follows has labels. */
export type EncodedPair = readonly [chosen: EncodedRow, rejected: EncodedRow];

/** Ids of the prompt alone, and of the prompt with each answer. */
interface PairIds {
  readonly prompt: readonly number[];
  readonly chosen: readonly number[];
  readonly rejected: readonly number[];
}

/**
 * Makes two samples of a row. The prompt ends where its own tokens and those of an answer part, so that both answers are predicted
 * from the same tokens.
 *
 * @throws {ConfigError} naming file and line of a row that the template refuses, whose prompt alone is as long as a sample may be, or
 * that has an answer without tokens; or if there is no template
 */
export function encodePair(contents: PairContents, place: RowPlace, encoding: RowEncoding): EncodedPair {
  const refuse = (expected: string, got: string): ConfigError => rowError(encoding.name, place, { expected, got });
  const ids = contents.kind === "chat" ? chatIds(contents, encoding, refuse) : textIds(contents, encoding);
  const { maxLength, ends } = encoding;
  const both = Math.min(commonLength(ids.prompt, ids.chosen), commonLength(ids.prompt, ids.rejected));
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

/** Texts, each answer with the end-of-text token behind it. */
function textIds({ prompt, chosen, rejected }: TextPair, { tokenizer, ends }: RowEncoding): PairIds {
  const whole = (answer: string): readonly number[] => {
    const ids = tokenizer.encode(prompt + answer);
    return ends === undefined ? ended(ids, tokenizer) : ids;
  };
  return { prompt: tokenizer.encode(prompt), chosen: whole(chosen), rejected: whole(rejected) };
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

/** Chats by the template; the prompt's text ends with what begins an assistant's turn. */
function chatIds(pair: ChatPair, { tokenizer, templates }: RowEncoding, refuse: RefuseRow): PairIds {
  if (templates === undefined) throw noTemplate(tokenizer.path);
  const { prompt, chosen, rejected, tools, variables } = pair;
  const template = templates.pick(tools !== undefined);
  try {
    return {
      prompt: tokenizer.encode(template.render({ messages: prompt, tools, variables, addGenerationPrompt: true })),
      chosen: tokenizer.encode(template.render({ messages: [...prompt, ...chosen], tools, variables })),
      rejected: tokenizer.encode(template.render({ messages: [...prompt, ...rejected], tools, variables })),
    };
  } catch (error) {
    if (!(error instanceof TemplateFailure)) throw error;
    throw refuse(`a chat that the template of '${template.file}' takes`, error.message);
  }
}

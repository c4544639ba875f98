/**
 * A row of preferences as two samples, which begin with the same prompt: the chosen answer and the rejected one, tokenized as TRL's
 * `DPOTrainer` does it.
 *
 * @module
 */
import type { ConfigError } from "../../errors.ts";
import { countOf } from "../../words.ts";
import { rowError, type RowPlace } from "../rows/row.ts";
import { IGNORED } from "../samples/sample.ts";
import { commonLength } from "./boundaries.ts";
import type { RefuseRow } from "./columns.ts";
import { type EncodedRow, ended, type RowEncoding } from "./encode_row.ts";
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
  const { maxLength } = encoding;
  const promptLength = Math.min(commonLength(ids.prompt, ids.chosen), commonLength(ids.prompt, ids.rejected));
  if (promptLength >= maxLength) {
    const got = `a prompt of ${promptLength} tokens: take a longer sequenceLength`;
    throw refuse(`a token of the answers among the first ${maxLength}`, got);
  }
  const sampleOf = (which: "chosen" | "rejected"): EncodedRow => {
    const kept = Int32Array.from(ids[which].slice(0, maxLength));
    const labels = kept.map((id, i) => i < promptLength ? IGNORED : id);
    // The first token is never predicted, as nothing comes before it.
    if (labels.subarray(1).some((label) => label !== IGNORED)) {
      return { ids: kept, labels, cut: ids[which].length - kept.length };
    }
    throw refuse(
      `an answer under "${which}" with a token that follows others`,
      `${countOf(ids[which].length, "token")}, ${promptLength} of them the prompt's`,
    );
  };
  return [sampleOf("chosen"), sampleOf("rejected")];
}

/** Texts, each answer with the end-of-text token behind it. */
function textIds({ prompt, chosen, rejected }: TextPair, { tokenizer }: RowEncoding): PairIds {
  return {
    prompt: tokenizer.encode(prompt),
    chosen: ended(tokenizer.encode(prompt + chosen), tokenizer),
    rejected: ended(tokenizer.encode(prompt + rejected), tokenizer),
  };
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

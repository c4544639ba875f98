/**
 * The tokens of a text with each of its choices, as EleutherAI's lm-evaluation-harness makes them: white space at the end of the text
 * belongs to the choice; text and choice are encoded together, and the tokens behind as many as the text alone has are the choice's.
 *
 * @module
 */
import { countOf } from "../../words.ts";
import { rowError } from "../rows/row.ts";
import { eosOf } from "../token_stream.ts";
import type { Tokenizer } from "../tokenizer.ts";
import type { ChoiceRow } from "./choice_row.ts";

/** Tokens, of which the last ones are scored. */
export interface ScoredText {
  readonly ids: readonly number[];
  /** Place of the first token that is scored, from 1: a token is predicted from those before it. */
  readonly from: number;
}

/** Options for encoding choices. */
export interface ChoiceEncoding {
  readonly tokenizer: Tokenizer;
  /** Id of the token that begins texts. @default texts have none, and an empty one begins with the end of text */
  readonly bosId?: number | undefined;
  /** True if each text begins with it, as the harness's `add_bos_token` has it; else an empty text alone. */
  readonly addBosToken: boolean;
  /** The text between a text and its choices, the harness's `target_delimiter`. */
  readonly delimiter: string;
  /** Most tokens that a model takes. The last token of a choice is only predicted, and does not count. */
  readonly maxLength: number;
  /** True if the beginnings of longer texts are cut off, as the harness does. */
  readonly truncates: boolean;
  /** The name of the data in errors. */
  readonly name: string;
}

/** A question, encoded. */
export interface EncodedChoices {
  readonly row: ChoiceRow;
  /** One for each choice. */
  readonly texts: readonly ScoredText[];
  /** True if some text was cut. */
  readonly isCut: boolean;
}

/**
 * Encodes a question.
 *
 * @throws {ConfigError} naming file and line of a choice without tokens of its own, or of a text that is too long
 */
export function encodeChoices(row: ChoiceRow, encoding: ChoiceEncoding): EncodedChoices {
  const refuse = (expected: string, got: string): Error => rowError(encoding.name, row, { expected, got });
  const { tokenizer, addBosToken, delimiter, maxLength, truncates } = encoding;
  const context = row.context.trimEnd();
  const between = row.context.slice(context.length) + delimiter;
  const head = encodeWithin(row, tokenizer, context, encoding.name);
  let isCut = false;
  const texts = row.choices.map((choice, i): ScoredText => {
    const all = encodeWithin(row, tokenizer, context + between + choice, encoding.name);
    const scored = all.slice(head.length);
    const what = `choice ${i} (${JSON.stringify(choice.slice(0, 40))})`;
    if (scored.length === 0) {
      throw refuse("a token of its own for each choice", `none for ${what}: it joins the text before it`);
    }
    const start = head.length > 0 && !addBosToken ? [] : [startOf(encoding)];
    const ids = [...start, ...all];
    const tooMany = ids.length - 1 - maxLength;
    if (tooMany <= 0) return { ids, from: ids.length - scored.length };
    if (!truncates || scored.length > maxLength) {
      const remedy = scored.length > maxLength
        ? "the choice alone is longer"
        : "shorten it, or cut the beginnings of such texts by '--truncate'";
      const got = `${countOf(ids.length - 1, "token")} with ${what}: ${remedy}`;
      throw refuse(`at most ${maxLength} tokens, the model's positions`, got);
    }
    isCut = true;
    const kept = ids.slice(tooMany);
    return { ids: kept, from: kept.length - scored.length };
  });
  return { row, texts, isCut };
}

/** The token before an empty text. */
function startOf({ bosId, tokenizer }: ChoiceEncoding): number {
  return bosId ?? eosOf(tokenizer);
}

/** Ids of a text of a row. @throws {ConfigError} naming the row, if some of the text has no id */
function encodeWithin(row: ChoiceRow, tokenizer: Tokenizer, text: string, name: string): readonly number[] {
  try {
    return tokenizer.encode(text);
  } catch (error) {
    if (!(error instanceof RangeError)) throw error;
    throw rowError(name, row, { expected: `text that '${tokenizer.path}' encodes`, got: error.message });
  }
}

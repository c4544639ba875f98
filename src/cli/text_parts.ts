/**
 * The text that a model draws, part by part.
 *
 * @module
 */
import type { Tokenizer } from "../data/tokenizer.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { eventTurn } from "../runtime/signals.ts";
import { type GenerateOptions, generateTokens } from "../train/generate.ts";

/** The ids that end a text: the tokenizer's end of text, and those of the model. */
export function endIds({ eosIds, vocabSize }: CausalLm, { eosId }: Tokenizer): readonly number[] {
  return (eosId === undefined ? eosIds : [eosId, ...eosIds]).filter((id) => id < vocabSize);
}

/**
 * Draws tokens behind a prompt and yields the parts of their text, each when its characters are whole.
 *
 * @param stops asked behind each token; true ends the text
 * @returns all ids that were drawn
 * @throws {ArgumentError} if the prompt is empty, or the model has too few positions
 */
export async function* textParts(
  { model, tokenizer }: { readonly model: CausalLm; readonly tokenizer: Tokenizer },
  prompt: readonly number[],
  options: GenerateOptions,
  stops: () => boolean,
): AsyncGenerator<string, readonly number[]> {
  const ids: number[] = [];
  let shown = "";
  for (const id of generateTokens(model, prompt, options)) {
    if (id < tokenizer.vocabSize) ids.push(id);
    const text = tokenizer.decode(ids);
    // A character of several tokens is shown when it is whole.
    if (!text.endsWith("\ufffd") && text.startsWith(shown)) {
      yield text.slice(shown.length);
      shown = text;
    }
    await eventTurn();
    if (stops()) break;
  }
  const text = tokenizer.decode(ids);
  if (text.startsWith(shown)) yield text.slice(shown.length);
  return ids;
}

/**
 * Marks of a chat template that the tokenizer has no token for: the template is then mostly another tokenizer's.
 *
 * @module
 */
import { ArgumentError } from "../../errors.ts";
import { shownName } from "../../words.ts";
import type { Tokenizer } from "../tokenizer.ts";
import type { ChatTemplates } from "./load_template.ts";

/** Marks in the forms of special tokens, as templates spell them out: `<|im_start|>`, `<start_of_turn>`. */
const MARK = /<\|[\w-]+\|>|<(?:start|end)_of_\w+>/g;

/**
 * One sentence about marks that become several tokens each; undefined where each mark is one token. No error, as some models learned such
 * marks as text.
 */
export function describeMarks(templates: ChatTemplates, tokenizer: Tokenizer): string | undefined {
  for (const { source, file } of templates.all) {
    const marks = [...new Set(Array.from(source.matchAll(MARK), ([mark]) => mark))];
    const split = marks.flatMap((mark) => {
      const count = tokensOf(mark, tokenizer);
      return count === 1 ? [] : [`${count === 0 ? "none" : count} for ${shownName(mark)}`];
    });
    if (split.length === 0) continue;
    return `The chat template of '${file}' writes marks that the tokenizer '${tokenizer.path}' does not have: expected each to be one ` +
      `token, got ${
        split.slice(0, 4).join(", ")
      }. They are trained on as any text: where the template is another model's, take ` +
      "its tokenizer ('--tokenizer'), or a template of this tokenizer ('--chat-template')";
  }
  return undefined;
}

/** The number of tokens of a text; none where the tokenizer cannot spell it. */
function tokensOf(text: string, tokenizer: Tokenizer): number {
  try {
    return tokenizer.encode(text).length;
  } catch (error) {
    if (error instanceof ArgumentError) return 0;
    throw error;
  }
}

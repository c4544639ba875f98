/**
 * The `pattern` of a part: a string or an expression of Oniguruma.
 *
 * @module
 */
import { JsonPart } from "./part.ts";
import { literalRegex, RegexError, translateRegex } from "./regex.ts";

/**
 * Reads the `pattern` of a part as an expression that finds all matches.
 *
 * @throws {CheckpointError} naming syntax that is not supported
 */
export function patternOf(part: JsonPart): RegExp {
  const pattern = new JsonPart(part.raw("pattern"), part.file, `${part.path}.pattern`);
  if (pattern.raw("String") !== null) return literalRegex(pattern.string("String"));
  const text = pattern.string("Regex");
  try {
    const { source, flags } = translateRegex(text);
    return new RegExp(source, flags);
  } catch (error) {
    if (error instanceof RegexError || error instanceof SyntaxError) pattern.refuse("Regex", error.message);
    throw error;
  }
}

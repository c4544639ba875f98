/**
 * The begin-of-text token of a tokenizer's folder. Texts are encoded without it; what needs it puts it in front.
 *
 * @module
 */
import { CheckpointError, ConfigError } from "../errors.ts";
import { isJsonObject, kindOf } from "../json.ts";
import { readJson } from "./end_of_text.ts";
import type { Tokenizer } from "./tokenizer.ts";

/**
 * The id of `bos_token` of `tokenizer_config.json` or `special_tokens_map.json` beside the tokenizer; undefined where neither names one.
 *
 * @throws {CheckpointError} naming a file whose `bos_token` is no text, or not one token of the tokenizer
 */
export async function findBeginOfText(tokenizer: Tokenizer): Promise<number | undefined> {
  if (tokenizer.files.length === 0) return undefined;
  for (const name of ["tokenizer_config.json", "special_tokens_map.json"]) {
    const file = tokenizer.path.replace(/[^/]*$/, name);
    const value = (await readJson(file))["bos_token"];
    const content = isJsonObject(value) ? value["content"] : value;
    if (content === undefined || content === null || content === "") continue;
    if (typeof content !== "string") {
      throw new CheckpointError(file, `bos_token must be a string or have one as content, got ${kindOf(content)}`);
    }
    const [id, ...others] = tokenizer.encode(content);
    if (id !== undefined && others.length === 0) return id;
    const got = `${JSON.stringify(content)}, which is ${others.length === 0 ? "none" : others.length + 1}`;
    throw new CheckpointError(file, `bos_token must be one token of '${tokenizer.path}', got ${got}`);
  }
  return undefined;
}

/**
 * Requires the token where `addBosToken` asks for it.
 *
 * @param id from {@link findBeginOfText}
 * @throws {ConfigError} if there is none
 */
export function requireBeginOfText(id: number | undefined, { path }: Tokenizer): asserts id is number {
  if (id !== undefined) return;
  const expected = "a bos_token in tokenizer_config.json";
  throw new ConfigError([{ path: "addBosToken", expected, got: `none beside '${path}'` }]);
}

/**
 * The ids that end a text by `eos_token_id` of a `config.json` or `generation_config.json`.
 *
 * @module
 */
import { CheckpointError } from "./errors.ts";

/**
 * Reads `eos_token_id`: one id or several. Missing, null or an empty list, the file says nothing. Models of several kinds of input
 * have it in `text_config`.
 *
 * @param file named in errors
 * @throws {CheckpointError} if it is neither an id nor a list of ids
 */
export function eosIdsOf(config: Readonly<Record<string, unknown>>, file: string): readonly number[] {
  const { eos_token_id: own, text_config: inner } = config;
  if (own === undefined || own === null) {
    if (typeof inner !== "object" || inner === null || Array.isArray(inner)) return [];
    return eosIdsOf({ eos_token_id: Object.entries(inner).find(([key]) => key === "eos_token_id")?.[1] }, file);
  }
  const ids: readonly unknown[] = Array.isArray(own) ? own : [own];
  return ids.map((id) => {
    if (typeof id === "number" && Number.isSafeInteger(id) && id >= 0) return id;
    const expected = "eos_token_id: expected a token id or a list of ids";
    throw new CheckpointError(file, `${expected}, got ${JSON.stringify(own).slice(0, 80)}`);
  });
}

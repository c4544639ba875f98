/**
 * The `config.json` of Qwen3.5's text models.
 *
 * @module
 */
import * as z from "zod";
import { DECODER_KEYS, size } from "../decoder_config.ts";
import { HYBRID_KEYS, type HybridConfig, resolveHybrid } from "../hybrid.ts";
import { parseRawConfig } from "../raw_config.ts";
import { ROPE_KEYS } from "../rope_config.ts";

/** Resolved configuration of the model. */
export interface Qwen35Config extends HybridConfig {
  readonly intermediateSize: number;
}

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  ...HYBRID_KEYS,
  num_key_value_heads: size.nullish().default(4),
  intermediate_size: size.default(12288),
});

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveQwen35Config(hfConfig: Readonly<Record<string, unknown>>): Qwen35Config {
  const raw = parseRawConfig(schema, hfConfig);
  return { ...resolveHybrid(raw), intermediateSize: raw.intermediate_size };
}

/**
 * The `config.json` of GLM's mixtures of experts with sparse attention.
 *
 * @module
 */
import * as z from "zod";
import { ConfigError } from "../../errors.ts";
import type { KeySelection } from "../../nn/latent_attention.ts";
import { DECODER_KEYS, positive, requireImplemented, size } from "../decoder_config.ts";
import { GLM_KEYS, type GlmConfig, resolveGlm } from "../glm.ts";
import { LATENT_KEYS, resolveLatent } from "../latent_config.ts";
import { parseRawConfig } from "../raw_config.ts";
import { ROPE_KEYS } from "../rope_config.ts";

const schema = z.looseObject({
  ...DECODER_KEYS,
  ...ROPE_KEYS,
  ...LATENT_KEYS,
  ...GLM_KEYS,
  max_position_embeddings: size.default(202752),
  rms_norm_eps: positive.default(1e-5),
  q_lora_rank: size.default(2048),
  qk_nope_head_dim: size.default(192),
  v_head_dim: size.default(256),
  intermediate_size: size.default(12288),
  moe_intermediate_size: size.default(2048),
  n_routed_experts: size.default(256),
  n_shared_experts: size.default(1),
  num_experts_per_tok: size.default(8),
  routed_scaling_factor: positive.default(2.5),
  first_k_dense_replace: z.int().nonnegative().default(3),
  mlp_bias: z.boolean().default(false),
  index_topk: size.default(2048),
  index_head_dim: size.default(128),
  index_n_heads: size.default(32),
  indexer_types: z.array(z.enum(["full", "shared"])).nullish(),
  index_topk_pattern: z.union([z.string().regex(/^[FS]*$/, "letters F and S"), z.array(z.enum(["full", "shared"]))])
    .nullish(),
  index_topk_freq: z.int().nullish(),
  index_skip_topk_offset: z.int().nullish(),
});

/** An indexer of its own (`full`), or the selection of the nearest layer before it that has one (`shared`). */
type IndexerType = "full" | "shared";

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveGlmMoeDsaConfig(hfConfig: Readonly<Record<string, unknown>>): GlmConfig {
  const raw = parseRawConfig(schema, hfConfig);
  requireImplemented({ mlp_bias: [raw.mlp_bias, false] });
  const config = resolveGlm(raw, resolveLatent(raw, { interleaved: true, mlpBias: false }), raw.first_k_dense_replace);
  const types = indexerTypesOf(raw, config.numLayers);
  const indexer = { numHeads: raw.index_n_heads, headDim: raw.index_head_dim, topK: raw.index_topk };
  const keySelections = types.map((type, layer): KeySelection =>
    type === "shared" ? { type } : { type: "indexer", indexer, isShared: types[layer + 1] === "shared" }
  );
  return { ...config, keySelections };
}

/**
 * The type of each layer's indexer, as transformers derives it:
 * 1. `indexer_types`, if it is given;
 * 2. `index_topk_pattern`, a list of types or a text with a letter for each layer (F: full, S: shared);
 * 3. full in the first `index_skip_topk_offset` layers (default 2), then in every `index_topk_freq`-th layer (default 1) after them.
 *
 * @throws {ConfigError} if there is not a type for each layer, or if the first layer has no selection to share
 */
function indexerTypesOf(raw: z.output<typeof schema>, numLayers: number): readonly IndexerType[] {
  const given = raw.indexer_types ?? raw.index_topk_pattern;
  const [every, offset] = [Math.max(raw.index_topk_freq ?? 1, 1), raw.index_skip_topk_offset ?? 2];
  const types = given == null
    ? Array.from({ length: numLayers }, (_, i) => Math.max(i - offset + 1, 0) % every === 0 ? "full" : "shared")
    : typeof given === "string"
    ? Array.from(given, (letter) => letter === "F" ? "full" : "shared")
    : given;
  const key = raw.indexer_types != null
    ? "indexer_types"
    : given != null
    ? "index_topk_pattern"
    : "index_skip_topk_offset";
  const path = `config.json ${key}`;
  if (types.length !== numLayers) {
    throw new ConfigError([{ path, expected: `one for each of ${numLayers} layers`, got: String(types.length) }]);
  }
  if (types[0] === "shared") {
    const expected = "a first layer with an indexer ('full'), as no layer before it selects keys";
    throw new ConfigError([{ path, expected, got: given == null ? String(offset) : "'shared'" }]);
  }
  return types;
}

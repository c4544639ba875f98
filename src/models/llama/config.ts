/**
 * Llama's configuration: the raw `config.json` of Hugging Face, in the spelling of transformers 4 and 5, and the resolved one.
 *
 * @module
 */
import * as z from "zod";
import { ConfigError, type ConfigProblem, UnsupportedError } from "../../errors.ts";
import type { RopeScaling } from "../../nn/rotary.ts";
import { parseRawConfig } from "../raw_config.ts";

/** Everything that decides what the model computes. */
export interface LlamaConfig {
  readonly vocabSize: number;
  readonly hiddenSize: number;
  readonly intermediateSize: number;
  readonly numLayers: number;
  readonly numHeads: number;
  readonly numKvHeads: number;
  readonly headDim: number;
  readonly maxPositions: number;
  readonly rmsNormEps: number;
  readonly ropeTheta: number;
  readonly ropeScaling: RopeScaling;
  readonly tieWordEmbeddings: boolean;
  readonly attentionBias: boolean;
  readonly mlpBias: boolean;
  readonly initializerRange: number;
  /** The row of the embedding that lookups give no gradient, or -1. */
  readonly padTokenId: number;
}

const size = z.int().positive();

const ropeSchema = z.looseObject({
  rope_type: z.string().optional(),
  type: z.string().optional(),
  rope_theta: z.number().positive().optional(),
  factor: z.number().positive().optional(),
  low_freq_factor: z.number().positive().optional(),
  high_freq_factor: z.number().positive().optional(),
  original_max_position_embeddings: size.optional(),
});

/** Keys that matter; others (`transformers_version`, `use_cache` …) change nothing that is computed. */
const rawSchema = z.looseObject({
  vocab_size: size,
  hidden_size: size,
  intermediate_size: size,
  num_hidden_layers: size,
  num_attention_heads: size,
  num_key_value_heads: size.nullish(),
  head_dim: size.nullish(),
  hidden_act: z.string().default("silu"),
  max_position_embeddings: size.default(2048),
  initializer_range: z.number().positive().default(0.02),
  rms_norm_eps: z.number().positive().default(1e-6),
  pad_token_id: z.int().nullish(),
  tie_word_embeddings: z.boolean().default(false),
  rope_theta: z.number().positive().nullish(),
  rope_scaling: ropeSchema.nullish(),
  rope_parameters: ropeSchema.nullish(),
  attention_bias: z.boolean().default(false),
  attention_dropout: z.number().default(0),
  mlp_bias: z.boolean().default(false),
});

/** Keys that a kind of scaling cannot do without. */
const ROPE_KEYS = {
  linear: ["factor"],
  llama3: ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"],
} as const;

function resolveRope(raw: z.infer<typeof rawSchema>): RopeScaling {
  const key = raw.rope_parameters == null ? "rope_scaling" : "rope_parameters";
  const rope = raw[key] ?? {};
  const type = rope.rope_type ?? rope.type ?? "default";
  if (type === "default") return { type };
  if (type !== "linear" && type !== "llama3") {
    throw new UnsupportedError(`Cannot use rope_type '${type}' for llama: default, linear and llama3 are implemented`);
  }
  const missing = ROPE_KEYS[type].filter((name) => rope[name] === undefined);
  if (missing.length > 0) {
    const expected = `a number, for rope_type ${type}`;
    throw new ConfigError(missing.map((name) => ({ path: `config.json ${key}.${name}`, expected, got: "nothing" })));
  }
  const { factor = NaN, low_freq_factor: lowFreqFactor = NaN, high_freq_factor: highFreqFactor = NaN } = rope;
  if (type === "linear") return { type, factor };
  if (highFreqFactor <= lowFreqFactor) {
    const expected = `more than low_freq_factor, ${lowFreqFactor}`;
    throw new ConfigError([{ path: `config.json ${key}.high_freq_factor`, expected, got: String(highFreqFactor) }]);
  }
  const originalMaxPositions = rope.original_max_position_embeddings ?? NaN;
  return { type, factor, lowFreqFactor, highFreqFactor, originalMaxPositions };
}

/**
 * Resolves a parsed `config.json`.
 *
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveLlamaConfig(hfConfig: Readonly<Record<string, unknown>>): LlamaConfig {
  const raw = parseRawConfig(rawSchema, hfConfig);
  if (raw.hidden_act !== "silu") {
    throw new UnsupportedError(`Cannot use hidden_act '${raw.hidden_act}' for llama: silu is implemented`);
  }
  if (raw.attention_dropout !== 0) {
    throw new UnsupportedError(
      `Cannot use attention_dropout ${raw.attention_dropout}: dropout is not implemented, set it to 0`,
    );
  }
  const numKvHeads = raw.num_key_value_heads ?? raw.num_attention_heads;
  const headDim = raw.head_dim ?? raw.hidden_size / raw.num_attention_heads;
  const { pad_token_id: pad } = raw;
  // Counted from the back when negative, as PyTorch's embedding does.
  const padTokenId = pad == null ? -1 : pad < 0 ? raw.vocab_size + pad : pad;
  const problems: ConfigProblem[] = [];
  const require = (holds: boolean, key: string, expected: string, got: string): void => {
    if (!holds) problems.push({ path: `config.json ${key}`, expected, got });
  };
  const dimGot = `${headDim} (hidden_size / num_attention_heads)`;
  require(Number.isInteger(headDim) && headDim % 2 === 0, "head_dim", "an even integer", dimGot);
  const divides = raw.num_attention_heads % numKvHeads === 0;
  require(divides, "num_key_value_heads", `a divisor of ${raw.num_attention_heads}`, `${numKvHeads}`);
  const isId = pad == null || (padTokenId >= 0 && padTokenId < raw.vocab_size);
  require(isId, "pad_token_id", `an id below vocab_size ${raw.vocab_size}`, `${pad}`);
  if (problems.length > 0) throw new ConfigError(problems);
  return {
    vocabSize: raw.vocab_size,
    hiddenSize: raw.hidden_size,
    intermediateSize: raw.intermediate_size,
    numLayers: raw.num_hidden_layers,
    numHeads: raw.num_attention_heads,
    numKvHeads,
    headDim,
    maxPositions: raw.max_position_embeddings,
    rmsNormEps: raw.rms_norm_eps,
    ropeTheta: raw.rope_parameters?.rope_theta ?? raw.rope_theta ?? 10000,
    ropeScaling: resolveRope(raw),
    tieWordEmbeddings: raw.tie_word_embeddings,
    attentionBias: raw.attention_bias,
    mlpBias: raw.mlp_bias,
    initializerRange: raw.initializer_range,
    padTokenId,
  };
}

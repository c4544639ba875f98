/**
 * Rotary parameters of a `config.json`, in the spelling of transformers 4 and 5, for all layers or for each type of them.
 *
 * @module
 */
import * as z from "zod";
import { ConfigError, UnsupportedError } from "../errors.ts";
import type { RopeScaling, RotaryOptions } from "../nn/rotary.ts";
import { whichAre } from "../words.ts";
import { positive, size } from "./decoder_config.ts";

/** The parameters of one kind of rotation. */
interface RawRope {
  readonly rope_type?: string | undefined;
  readonly type?: string | undefined;
  readonly rope_theta?: number | null | undefined;
  readonly partial_rotary_factor?: number | null | undefined;
  readonly factor?: number | null | undefined;
  readonly low_freq_factor?: number | undefined;
  readonly high_freq_factor?: number | undefined;
  readonly original_max_position_embeddings?: number | null | undefined;
  readonly attention_factor?: number | null | undefined;
  readonly beta_fast?: number | null | undefined;
  readonly beta_slow?: number | null | undefined;
  readonly mscale?: number | null | undefined;
  readonly mscale_all_dim?: number | null | undefined;
  readonly short_mscale?: number | null | undefined;
  readonly long_mscale?: number | null | undefined;
  readonly truncate?: boolean | undefined;
  readonly short_factor?: readonly number[] | undefined;
  readonly long_factor?: readonly number[] | undefined;
}

/** Parameters for all layers, or by type of layer. */
type RawRopes = RawRope & {
  readonly full_attention?: RawRope | null | undefined;
  readonly sliding_attention?: RawRope | null | undefined;
};

const ropeKeys = {
  rope_type: z.string().optional(),
  type: z.string().optional(),
  rope_theta: positive.nullish(),
  partial_rotary_factor: positive.nullish(),
  factor: positive.nullish(),
  low_freq_factor: positive.optional(),
  high_freq_factor: positive.optional(),
  original_max_position_embeddings: size.nullish(),
  attention_factor: positive.nullish(),
  beta_fast: positive.nullish(),
  beta_slow: positive.nullish(),
  mscale: z.number().nullish(),
  mscale_all_dim: z.number().nullish(),
  short_mscale: positive.nullish(),
  long_mscale: positive.nullish(),
  truncate: z.boolean().optional(),
  short_factor: z.array(positive).optional(),
  long_factor: z.array(positive).optional(),
};
const rope = z.looseObject(ropeKeys).nullish();
const ropes: z.ZodType<RawRopes | null | undefined> = z.looseObject({
  ...ropeKeys,
  full_attention: rope,
  sliding_attention: rope,
}).nullish();

/** The scaling in the spelling of transformers 4; an empty one counts as none. */
const scaling: typeof ropes = ropes.transform((given) => {
  return given == null || Object.keys(given).length === 0 ? undefined : given;
});

/** Keys of a rotary embedding, to be spread into a schema. */
export const ROPE_KEYS: {
  readonly max_position_embeddings: z.ZodDefault<z.ZodInt>;
  readonly rope_theta: z.ZodOptional<z.ZodNullable<z.ZodNumber>>;
  readonly rope_scaling: typeof ropes;
  readonly rope_parameters: typeof ropes;
  readonly partial_rotary_factor: z.ZodOptional<z.ZodNullable<z.ZodNumber>>;
  readonly original_max_position_embeddings: z.ZodOptional<z.ZodNullable<z.ZodInt>>;
} = {
  max_position_embeddings: size.default(2048),
  rope_theta: positive.nullish(),
  rope_scaling: scaling,
  rope_parameters: ropes,
  partial_rotary_factor: positive.nullish(),
  original_max_position_embeddings: size.nullish(),
};

/** Keys that were checked by a schema of {@link ROPE_KEYS}. */
interface RawKeys {
  readonly max_position_embeddings: number;
  readonly rope_theta?: number | null | undefined;
  readonly rope_scaling?: RawRopes | null | undefined;
  readonly rope_parameters?: RawRopes | null | undefined;
  readonly partial_rotary_factor?: number | null | undefined;
  readonly original_max_position_embeddings?: number | null | undefined;
}

/** Choices of a family about its rotary embedding. */
export interface RopeFamily {
  readonly headDim: number;
  /** The base where the config has none. */
  readonly theta: number;
  /** The share of a head that is turned where the config has none; of a family without it, always all. */
  readonly partial?: number;
  /** The scalings that transformers has for the family. @default all */
  readonly types?: readonly RopeScaling["type"][];
  /**
   * True if longrope has separate factors of cosines and sines, `short_mscale` and `long_mscale`, and uses short factors for
   * texts of any length. @default false
   */
  readonly mscales?: boolean;
}

const TYPES: readonly RopeScaling["type"][] = ["default", "linear", "llama3", "yarn", "longrope"];

/**
 * Resolves the rotary embedding of all layers.
 *
 * @throws {ConfigError} for parameters that are missing or do not fit
 * @throws {UnsupportedError} for scalings that are not implemented
 */
export function resolveRope(raw: RawKeys, family: RopeFamily): RotaryOptions {
  const key = raw.rope_scaling == null ? "rope_parameters" : "rope_scaling";
  return resolveOne(raw, raw[key] ?? {}, key, family);
}

/** The rotary embeddings of a model whose layers of different types turn heads by different angles. */
export type Rotations = Readonly<Record<"full_attention" | "sliding_attention", RotaryOptions>>;

/**
 * The same holds where each type of layers has options of its own.
 *
 * @param theta the base of each type where `rope_parameters` has none
 * @param scaled the types that `rope_scaling`, the spelling of transformers 4, is meant for
 */
export function resolveRotations(
  raw: RawKeys,
  headDim: number,
  theta: Readonly<Record<keyof Rotations, number>>,
  scaled: readonly (keyof Rotations)[],
): Rotations {
  const of = (type: keyof Rotations): RotaryOptions => {
    const legacy = scaled.includes(type) ? raw.rope_scaling : undefined;
    // transformers looks for `truncate` beside the types and not in them.
    const rope = { ...raw.rope_parameters?.[type], ...legacy, truncate: raw.rope_parameters?.truncate };
    const own = { ...raw, rope_theta: undefined, original_max_position_embeddings: undefined };
    return resolveOne(own, rope, `rope_parameters.${type}`, { headDim, theta: theta[type] });
  };
  return { full_attention: of("full_attention"), sliding_attention: of("sliding_attention") };
}

function resolveOne(raw: RawKeys, rope: RawRope, key: string, family: RopeFamily): RotaryOptions {
  const share = rope.partial_rotary_factor ?? raw.partial_rotary_factor ?? family.partial ?? 1;
  if (family.partial === undefined && share !== 1) {
    throw new UnsupportedError(`Cannot use partial_rotary_factor ${share}: heads of this model are turned as a whole`);
  }
  if (share === 1 && family.headDim % 2 !== 0) {
    throw new ConfigError([{ path: "config.json head_dim", expected: "an even integer", got: String(family.headDim) }]);
  }
  const dim = Math.trunc(family.headDim * share);
  if (dim % 2 !== 0 || dim > family.headDim || dim === 0) {
    const expected = `a share of ${family.headDim} elements that is an even number of them`;
    throw new ConfigError([{ path: `config.json ${key}.partial_rotary_factor`, expected, got: String(share) }]);
  }
  return {
    dim,
    theta: rope.rope_theta ?? raw.rope_theta ?? family.theta,
    scaling: resolveScaling(raw, rope, `config.json ${key}`, family, dim),
    maxPositions: raw.max_position_embeddings,
  };
}

function resolveScaling(raw: RawKeys, rope: RawRope, path: string, family: RopeFamily, dim: number): RopeScaling {
  const { types = TYPES } = family;
  const named = rope.rope_type ?? rope.type ?? "default";
  const type = types.find((one) => one === named);
  if (type === undefined) {
    throw new UnsupportedError(`Cannot use rope_type '${named}': ${whichAre(types, "implemented")}`);
  }
  const given = <T>(name: string, value: T | null | undefined): T => {
    if (value != null) return value;
    throw new ConfigError([{ path: `${path}.${name}`, expected: `a number, for rope_type ${type}`, got: "nothing" }]);
  };
  const originalMaxPositions = raw.original_max_position_embeddings ?? rope.original_max_position_embeddings ??
    raw.max_position_embeddings;
  switch (type) {
    case "default":
      return { type };
    case "linear":
      return { type, factor: given("factor", rope.factor) };
    case "llama3": {
      const factor = given("factor", rope.factor);
      const lowFreqFactor = given("low_freq_factor", rope.low_freq_factor);
      const highFreqFactor = given("high_freq_factor", rope.high_freq_factor);
      if (highFreqFactor <= lowFreqFactor) {
        const expected = `more than low_freq_factor, ${lowFreqFactor}`;
        throw new ConfigError([{ path: `${path}.high_freq_factor`, expected, got: String(highFreqFactor) }]);
      }
      return { type, factor, lowFreqFactor, highFreqFactor, originalMaxPositions };
    }
    case "yarn":
      return {
        type,
        factor: rope.factor ?? raw.max_position_embeddings / originalMaxPositions,
        attentionFactor: rope.attention_factor ?? undefined,
        mscale: rope.mscale ?? undefined,
        mscaleAllDim: rope.mscale_all_dim ?? undefined,
        betaFast: rope.beta_fast ?? 32,
        betaSlow: rope.beta_slow ?? 1,
        truncate: rope.truncate ?? true,
        originalMaxPositions,
      };
    case "longrope": {
      const [shortFactors, longFactors] = [
        given("short_factor", rope.short_factor),
        given("long_factor", rope.long_factor),
      ];
      for (const [name, { length }] of [["short_factor", shortFactors], ["long_factor", longFactors]] as const) {
        if (length === dim / 2) continue;
        throw new ConfigError([{ path: `${path}.${name}`, expected: `${dim / 2} numbers`, got: String(length) }]);
      }
      const factor = rope.factor ?? raw.max_position_embeddings / originalMaxPositions;
      const both = { type, factor, shortFactors, originalMaxPositions };
      if (family.mscales ?? false) {
        const longAttentionFactor = given("long_mscale", rope.long_mscale);
        const attentionFactor = given("short_mscale", rope.short_mscale);
        return { ...both, longFactors: shortFactors, attentionFactor, longAttentionFactor };
      }
      const attentionFactor = rope.attention_factor ?? undefined;
      return { ...both, longFactors, attentionFactor, longAttentionFactor: attentionFactor };
    }
  }
}

/**
 * Keys of GGUF files that follow from a decoder's config, as llama.cpp names them, and the refusal of what it computes otherwise.
 *
 * @module
 */
import { float32, type GgufValue, string, uint32 } from "../../checkpoint/gguf/format.ts";
import type { PlannedTensor } from "../../checkpoint/gguf/plan.ts";
import type { PortableMath } from "../../device/device.ts";
import { UnsupportedError } from "../../errors.ts";
import type { RotaryOptions } from "../../nn/rotary.ts";
import type { DecoderConfig } from "../decoder_config.ts";

/** Keys with their values, without the name of the architecture before them. */
export type Keys = Readonly<Record<string, GgufValue>>;

/** Sizes that every decoder has. */
export function sizeKeys(
  { maxPositions, hiddenSize, numLayers, numHeads, numKvHeads, vocabSize, intermediateSize }:
    & DecoderConfig
    & { readonly intermediateSize: number },
): Keys {
  return {
    vocab_size: uint32(vocabSize),
    context_length: uint32(maxPositions),
    embedding_length: uint32(hiddenSize),
    block_count: uint32(numLayers),
    feed_forward_length: uint32(intermediateSize),
    "attention.head_count": uint32(numHeads),
    "attention.head_count_kv": uint32(numKvHeads),
  };
}

/** Sizes of heads, and the norms' epsilon. */
export function rmsKeys({ rmsNormEps, headDim }: { readonly rmsNormEps: number; readonly headDim: number }): Keys {
  return {
    "attention.layer_norm_rms_epsilon": float32(rmsNormEps),
    "attention.key_length": uint32(headDim),
    "attention.value_length": uint32(headDim),
  };
}

/** The rotation of heads: its keys, and tensors with factors on its frequencies. */
export interface RopeParts {
  readonly keys: Keys;
  readonly tensors: readonly PlannedTensor[];
  readonly notes: readonly string[];
}

/**
 * The rotation of a decoder's heads.
 *
 * @throws {UnsupportedError} for scalings that llama.cpp computes otherwise
 */
export function ropeParts(options: RotaryOptions, math: PortableMath): RopeParts {
  const { dim, theta, scaling } = options;
  const keys: Keys = { "rope.dimension_count": uint32(dim), "rope.freq_base": float32(theta) };
  switch (scaling.type) {
    case "default":
      return { keys, tensors: [], notes: [] };
    case "linear": {
      const { type, factor } = scaling;
      return {
        keys: { ...keys, "rope.scaling.type": string(type), "rope.scaling.factor": float32(factor) },
        tensors: [],
        notes: [],
      };
    }
    case "llama3":
      return { keys, tensors: [factorsTensor("rope_freqs", llama3Factors(options, scaling, math))], notes: [] };
    case "yarn": {
      const { factor, originalMaxPositions, attentionFactor, mscale, mscaleAllDim, truncate } = scaling;
      const odd = [attentionFactor, mscale, mscaleAllDim].some((value) => value !== undefined) || !truncate;
      if (odd) {
        throw new UnsupportedError(
          "Cannot write rope_type 'yarn' with attention_factor, mscale, mscale_all_dim or truncate false into GGUF: " +
            "llama.cpp derives the factor on cosines from 'factor' alone",
        );
      }
      return {
        keys: {
          ...keys,
          "rope.scaling.type": string("yarn"),
          "rope.scaling.factor": float32(factor),
          "rope.scaling.original_context_length": uint32(originalMaxPositions),
          "rope.scaling.yarn_beta_fast": float32(scaling.betaFast),
          "rope.scaling.yarn_beta_slow": float32(scaling.betaSlow),
        },
        tensors: [],
        notes: [],
      };
    }
    case "longrope": {
      const { factor, originalMaxPositions: original, shortFactors, longFactors } = scaling;
      const attention = scaling.attentionFactor ??
        (factor <= 1 ? 1 : Math.sqrt(1 + math.log(factor) / math.log(original)));
      return {
        keys: {
          ...keys,
          "rope.scaling.original_context_length": uint32(original),
          "rope.scaling.attn_factor": float32(attention),
        },
        tensors: [
          factorsTensor("rope_factors_long", longFactors),
          factorsTensor("rope_factors_short", shortFactors),
        ],
        notes: [
          `longrope: llama.cpp takes the long factors for all texts where its context is larger than ${original}, ` +
          `and transformers only for texts that are longer`,
        ],
      };
    }
  }
}

function factorsTensor(name: string, values: readonly number[]): PlannedTensor {
  return { name: `${name}.weight`, shape: [values.length], exact: true, source: { kind: "values", values } };
}

/** The divisors of the frequencies: 1 for high frequencies, the factor for low ones, and values between for the rest. */
function llama3Factors(
  { dim, theta }: RotaryOptions,
  { factor, lowFreqFactor, highFreqFactor, originalMaxPositions }: Extract<
    RotaryOptions["scaling"],
    { readonly type: "llama3" }
  >,
  math: PortableMath,
): readonly number[] {
  return Array.from({ length: dim / 2 }, (_, i) => {
    const wavelength = 2 * Math.PI * math.pow(theta, 2 * i / dim);
    if (wavelength < originalMaxPositions / highFreqFactor) return 1;
    if (wavelength > originalMaxPositions / lowFreqFactor) return factor;
    const smooth = (originalMaxPositions / wavelength - lowFreqFactor) / (highFreqFactor - lowFreqFactor);
    return 1 / ((1 - smooth) / factor + smooth);
  });
}

/**
 * The longest text for which a model whose tokens see so far back computes what llama.cpp does, which has no windows in the
 * architecture: the window, or all positions.
 */
export function windowParts(
  { maxPositions }: DecoderConfig,
  windows: readonly (number | undefined)[],
): { readonly keys: Keys; readonly notes: readonly string[] } {
  const window = Math.min(...windows.map((one) => one ?? Infinity));
  if (window >= maxPositions) return { keys: {}, notes: [] };
  return {
    keys: { context_length: uint32(window) },
    notes: [
      `context_length is ${window}, the sliding window, and not ${maxPositions}: llama.cpp has no windows in this ` +
      `architecture, so longer texts would be computed otherwise`,
    ],
  };
}

/**
 * Refuses options of a config that llama.cpp's code for the architecture does not have.
 *
 * @param options values by key, each with the one that llama.cpp computes
 * @throws {UnsupportedError} naming the first
 */
export function requireComputed(
  architecture: string,
  options: Readonly<Record<string, readonly [value: unknown, computed: unknown]>>,
): void {
  for (const [key, [value, computed]] of Object.entries(options)) {
    if (value === computed) continue;
    throw new UnsupportedError(
      `Cannot write a model with ${key} ${
        String(value)
      } into GGUF: llama.cpp's architecture '${architecture}' computes ` +
        `as with ${String(computed)}`,
    );
  }
}

/**
 * The Qwen families of linear and full attention: the keys of their `config.json`, and their blocks.
 *
 * @module
 */
import * as z from "zod";
import { at } from "../at.ts";
import type { Device } from "../device/device.ts";
import { ConfigError } from "../errors.ts";
import { SelfAttention } from "../nn/attention.ts";
import type { Activation } from "../nn/feed_forward.ts";
import { GatedDeltaNet, type GatedDeltaNetOptions } from "../nn/gated_delta_net.ts";
import { RMSNorm } from "../nn/norm.ts";
import { PreNormBlock, type PreNormParts } from "../nn/pre_norm_block.ts";
import { type RotaryOptions, RotaryTables } from "../nn/rotary.ts";
import { blocksOf, type DecoderParts } from "./decoder.ts";
import {
  type DecoderConfig,
  positive,
  resolveActivation,
  resolveDecoder,
  resolveLayerTypes,
  size,
} from "./decoder_config.ts";
import { resolveRope } from "./rope_config.ts";

/** Resolved configuration of these models, without feed-forwards. */
export interface HybridConfig extends DecoderConfig {
  readonly activation: Activation;
  readonly rmsNormEps: number;
  readonly rope: RotaryOptions;
  readonly attentionBias: boolean;
  readonly layerTypes: readonly ("full_attention" | "linear_attention")[];
  /** Layers of linear attention. */
  readonly linear: GatedDeltaNetOptions;
}

/** Keys in addition to the common keys of decoders, to be spread into a schema, which may override them. */
export const HYBRID_KEYS: {
  readonly head_dim: z.ZodDefault<z.ZodOptional<z.ZodNullable<z.ZodInt>>>;
  readonly hidden_act: z.ZodDefault<z.ZodString>;
  readonly max_position_embeddings: z.ZodDefault<z.ZodInt>;
  readonly rms_norm_eps: z.ZodDefault<z.ZodNumber>;
  readonly attention_bias: z.ZodDefault<z.ZodBoolean>;
  readonly linear_conv_kernel_dim: z.ZodDefault<z.ZodInt>;
  readonly linear_key_head_dim: z.ZodDefault<z.ZodInt>;
  readonly linear_value_head_dim: z.ZodDefault<z.ZodInt>;
  readonly linear_num_key_heads: z.ZodDefault<z.ZodInt>;
  readonly linear_num_value_heads: z.ZodDefault<z.ZodInt>;
  readonly full_attention_interval: z.ZodDefault<z.ZodInt>;
  readonly layer_types: z.ZodOptional<z.ZodNullable<z.ZodArray<z.ZodString>>>;
} = {
  head_dim: size.nullish().default(256),
  hidden_act: z.string().default("silu"),
  max_position_embeddings: size.default(32768),
  rms_norm_eps: positive.default(1e-6),
  attention_bias: z.boolean().default(false),
  linear_conv_kernel_dim: size.default(4),
  linear_key_head_dim: size.default(128),
  linear_value_head_dim: size.default(128),
  linear_num_key_heads: size.default(16),
  linear_num_value_heads: size.default(32),
  full_attention_interval: size.default(4),
  layer_types: z.array(z.string()).nullish(),
};

/** Keys that were checked by a schema of {@link HYBRID_KEYS}. */
type RawHybrid = Parameters<typeof resolveDecoder>[0] & Parameters<typeof resolveRope>[0] & {
  readonly hidden_act: string;
  readonly rms_norm_eps: number;
  readonly attention_bias: boolean;
  readonly linear_conv_kernel_dim: number;
  readonly linear_key_head_dim: number;
  readonly linear_value_head_dim: number;
  readonly linear_num_key_heads: number;
  readonly linear_num_value_heads: number;
  readonly full_attention_interval: number;
  readonly layer_types?: readonly string[] | null | undefined;
};

/**
 * Resolves the common keys.
 *
 * @param projections of linear attention
 * @throws {ConfigError} if heads do not fit each other
 * @throws {UnsupportedError} for options that would change the result and are not implemented
 */
export function resolveHybrid(
  raw: RawHybrid,
  projections: GatedDeltaNetOptions["projections"] = "separate",
): HybridConfig {
  const decoder = resolveDecoder(raw);
  const types = ["full_attention", "linear_attention"] as const;
  const activation = resolveActivation("hidden_act", raw.hidden_act);
  const [keyHeads, valueHeads] = [raw.linear_num_key_heads, raw.linear_num_value_heads];
  if (valueHeads % keyHeads !== 0) {
    const expected = `a divisor of linear_num_value_heads ${valueHeads}`;
    throw new ConfigError([{ path: "config.json linear_num_key_heads", expected, got: String(keyHeads) }]);
  }
  return {
    ...decoder,
    activation,
    rmsNormEps: raw.rms_norm_eps,
    rope: resolveRope(raw, { headDim: decoder.headDim, theta: 10000, partial: 0.25 }),
    attentionBias: raw.attention_bias,
    layerTypes: resolveLayerTypes(
      raw.layer_types,
      decoder.numLayers,
      types,
      (i) => types[(i + 1) % raw.full_attention_interval === 0 ? 0 : 1],
    ),
    linear: {
      hiddenSize: decoder.hiddenSize,
      keyHeads,
      valueHeads,
      keyDim: raw.linear_key_head_dim,
      valueDim: raw.linear_value_head_dim,
      convWidth: raw.linear_conv_kernel_dim,
      activation,
      eps: raw.rms_norm_eps,
      init: decoder.init,
      projections,
    },
  };
}

/** Prefixes of tensors in files of Qwen3.5: extra layers predict a second token, and multimodal models contain the text model. */
export const QWEN3_5_FILES: NonNullable<DecoderParts["otherFiles"]> = {
  prefixes: new Map([["model.language_model.", "model."]]),
  ignored: [/^mtp/, /^model\.visual/],
};

/** The blocks, and the norm behind them: gated attention in some layers and linear attention in the others, norms zero-centered. */
export function hybridParts(
  device: Device,
  config: HybridConfig,
  mlp: (layer: number) => PreNormParts["mlp"],
): Pick<DecoderParts, "layers" | "norm"> {
  const { hiddenSize, rmsNormEps, attentionBias: bias, layerTypes, linear } = config;
  const norm = (width: number = hiddenSize): RMSNorm => new RMSNorm(device, width, rmsNormEps, { zeroCentered: true });
  const rotary = new RotaryTables(device, config.rope);
  const qkNorm = { over: "head", make: norm } as const;
  const attention = { ...config, rotary, qkNorm, gated: true, qkvBias: bias, outBias: bias };
  return {
    layers: blocksOf(config, (i) => {
      const isLinear = at(layerTypes, i, "layer type") === "linear_attention";
      return new PreNormBlock({
        selfAttn: isLinear ? new GatedDeltaNet(device, linear) : new SelfAttention(device, attention),
        mlp: mlp(i),
        inputLayernorm: norm(),
        postAttentionLayernorm: norm(),
        names: isLinear ? { selfAttn: "linear_attn" } : {},
      });
    }),
    norm: norm(),
  };
}

/**
 * The text models of Gemma 3 (Google 2025; transformers `modeling_gemma3.py`). Beside Llama:
 * - norms before and behind attention and feed-forward, and of each head's queries and keys; all of them zero-centered;
 * - five layers with a window to one without, each type with a rotation of its own;
 * - embeddings times the root of their width.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { Device } from "../../device/device.ts";
import { SelfAttention } from "../../nn/attention.ts";
import { GatedFeedForward } from "../../nn/feed_forward.ts";
import { RMSNorm } from "../../nn/norm.ts";
import { PostNormBlock } from "../../nn/post_norm_block.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import { attentionPlan, gatedPlan, HEAD_NORMS } from "../tensor_plans.ts";
import type { Gemma3Config } from "./config.ts";

/** Names in files of the models that see images, whose text model lies inside. */
const GEMMA3_FILES = {
  prefixes: new Map([["language_model.model.", "model."], ["model.language_model.", "model."], [
    "language_model.lm_head.",
    "lm_head.",
  ]]),
  ignored: [/^(model\.)?(vision_tower|multi_modal_projector)\./],
};

/** Gemma 3 with a language-model head. */
export class Gemma3ForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Gemma3Config, hfConfig: Readonly<Record<string, unknown>>) {
    const { hiddenSize, rmsNormEps, attentionBias: bias, attentionScale: scale } = config;
    const norm = (width: number = hiddenSize): RMSNorm =>
      new RMSNorm(device, width, rmsNormEps, { zeroCentered: true });
    const rotaries = {
      full_attention: new RotaryTables(device, config.rotations.full_attention),
      sliding_attention: new RotaryTables(device, config.rotations.sliding_attention),
    };
    const qkNorm = { over: "head", make: norm } as const;
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Gemma3", body: "Gemma3TextModel" },
      tensorPlan: { blocks: { ...attentionPlan(config, HEAD_NORMS), ...gatedPlan() } },
      embedScale: { factor: Math.sqrt(hiddenSize), isRounded: true },
      layers: blocksOf(config, (i) => {
        const [rotary, window] = [rotaries[at(config.layerTypes, i, "layer type")], config.windows[i]];
        const options = { ...config, rotary, window, qkNorm, scale, qkvBias: bias, outBias: bias };
        return new PostNormBlock({
          selfAttn: new SelfAttention(device, options),
          mlp: new GatedFeedForward(device, config),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
          preFeedforwardLayernorm: norm(),
          postFeedforwardLayernorm: norm(),
        });
      }),
      norm: norm(),
      logitsSoftcap: config.logitsSoftcap,
      otherFiles: GEMMA3_FILES,
    });
  }
}

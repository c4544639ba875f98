/**
 * The text models of Qwen3.5 (Qwen Team 2026; transformers `modeling_qwen3_5.py`): three layers of linear attention to one of gated
 * attention, rotary embedding on a quarter of each head, zero-centered norms.
 *
 * @module
 */
import type { Device } from "../../device/device.ts";
import { GatedFeedForward } from "../../nn/feed_forward.ts";
import { DecoderForCausalLm } from "../decoder.ts";
import { hybridParts, QWEN3_5_FILES } from "../hybrid.ts";
import { attentionPlan, gatedPlan, HEAD_NORMS, LINEAR_ATTENTION_PLAN } from "../tensor_plans.ts";
import type { Qwen35Config } from "./config.ts";

/** Qwen3.5 with a language-model head. */
export class Qwen35ForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: Qwen35Config, hfConfig: Readonly<Record<string, unknown>>) {
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Qwen3_5" },
      tensorPlan: { blocks: { ...attentionPlan(config, HEAD_NORMS), ...LINEAR_ATTENTION_PLAN, ...gatedPlan() } },
      ...hybridParts(device, config, () => new GatedFeedForward(device, config)),
      otherFiles: QWEN3_5_FILES,
    });
  }
}

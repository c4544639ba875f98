/**
 * Mixtral (Jiang et al. 2024; transformers `modeling_mixtral.py`): Mistral with a mixture of experts in every layer, whose weights
 * add up to 1.
 *
 * @module
 */
import type { DirectoryTensor } from "../../checkpoint/state_dict/state_dict.ts";
import type { Device } from "../../device/device.ts";
import { SelfAttention } from "../../nn/attention.ts";
import { MixtureOfExperts } from "../../nn/mixture_of_experts.ts";
import { RMSNorm } from "../../nn/norm.ts";
import { PreNormBlock } from "../../nn/pre_norm_block.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import { expertFiles } from "../expert_files.ts";
import { attentionPlan, EXPERTS_PLAN } from "../tensor_plans.ts";
import type { MixtralConfig } from "./config.ts";

const PROJECTIONS = { gate: "w1", up: "w3", down: "w2" };

/** Mixtral with a language-model head. */
export class MixtralForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: MixtralConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const norm = (): RMSNorm => new RMSNorm(device, config.hiddenSize, config.rmsNormEps);
    const rotary = new RotaryTables(device, config.rope);
    const router = { topK: config.topK, normalize: true };
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Mixtral" },
      tensorPlan: { blocks: { ...attentionPlan(config), ...EXPERTS_PLAN } },
      layers: blocksOf(config, () =>
        new PreNormBlock({
          selfAttn: new SelfAttention(device, { ...config, rotary }),
          mlp: new MixtureOfExperts(device, { ...config, router }),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
        })),
      norm: norm(),
      balance: config.balance,
    });
  }

  override directoryTensors(): Iterable<DirectoryTensor> {
    const rename = (name: string): string => name.replace(".mlp.", ".block_sparse_moe.");
    return expertFiles(this, { projections: PROJECTIONS, rename });
  }
}

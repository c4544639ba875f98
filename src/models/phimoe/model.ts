/**
 * Phi-3.5-MoE (Abdin et al. 2024; transformers `modeling_phimoe.py`): Mixtral with LayerNorm, optional biases, and a SparseMixer
 * router, which draws experts in training and takes the best ones in evaluation.
 *
 * @module
 */
import type { DirectoryTensor } from "../../checkpoint/state_dict/state_dict.ts";
import type { Device } from "../../device/device.ts";
import { SelfAttention } from "../../nn/attention.ts";
import { MixtureOfExperts } from "../../nn/mixture_of_experts.ts";
import { LayerNorm } from "../../nn/norm.ts";
import { PreNormBlock } from "../../nn/pre_norm_block.ts";
import { RotaryTables } from "../../nn/rotary.ts";
import { blocksOf, DecoderForCausalLm } from "../decoder.ts";
import { expertFiles } from "../expert_files.ts";
import { attentionPlan, EXPERTS_PLAN } from "../tensor_plans.ts";
import type { PhimoeConfig } from "./config.ts";

const PROJECTIONS = { gate: "w1", up: "w3", down: "w2" };

/** PhiMoE with a language-model head. */
export class PhimoeForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: PhimoeConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const { hiddenSize, topK, jitter, attentionBias: bias, headBias, balance } = config;
    const norm = (): LayerNorm => new LayerNorm(device, hiddenSize, { eps: config.layerNormEps });
    const rotary = new RotaryTables(device, config.rope);
    const router = { topK, jitter, scoring: "sparseMixer" } as const;
    super(device, config, hfConfig, {
      hfClasses: { prefix: "Phimoe" },
      tensorPlan: { blocks: { ...attentionPlan(config), ...EXPERTS_PLAN } },
      layers: blocksOf(config, () =>
        new PreNormBlock({
          selfAttn: new SelfAttention(device, { ...config, rotary, qkvBias: bias, outBias: bias }),
          mlp: new MixtureOfExperts(device, { ...config, router, names: { gate: "router" } }),
          inputLayernorm: norm(),
          postAttentionLayernorm: norm(),
        })),
      norm: norm(),
      balance,
      headBias,
    });
  }

  override directoryTensors(): Iterable<DirectoryTensor> {
    const rename = (name: string): string =>
      name.replace(".mlp.router.", ".mlp.gate.").replace(".mlp.", ".block_sparse_moe.");
    return expertFiles(this, { projections: PROJECTIONS, rename });
  }
}

/**
 * GLM-4-MoE-Lite (Z.ai 2026; transformers `modeling_glm4_moe_lite.py`): latent attention, and in most layers a mixture of experts,
 * which are chosen by their sigmoids and a bias that is not trained, beside one for all tokens.
 *
 * @module
 */
import type { DirectoryTensor } from "../../checkpoint/state_dict/state_dict.ts";
import type { Device } from "../../device/device.ts";
import { DecoderForCausalLm } from "../decoder.ts";
import { expertFiles } from "../expert_files.ts";
import { type GlmConfig, glmParts } from "../glm.ts";

/** GLM-4-MoE-Lite with a language-model head. */
export class Glm4MoeLiteForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: GlmConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const hfClasses = { prefix: "Glm4MoeLite", mixture: "Glm4MoeLiteMoE" };
    super(device, config, hfConfig, {
      hfClasses,
      ...glmParts(device, config),
      // The layer that predicts a second token.
      otherFiles: { ignored: [/model\.layers\.47/] },
    });
  }

  override directoryTensors(): Iterable<DirectoryTensor> {
    return expertFiles(this);
  }
}

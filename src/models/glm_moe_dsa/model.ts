/**
 * GLM-5 (Z.ai 2026; transformers `modeling_glm_moe_dsa.py`): GLM-4-MoE-Lite whose queries attend
 * to the keys that an indexer selects. A layer has an indexer of its own or reuses the selection of the last one that has.
 *
 * @module
 */
import type { DirectoryTensor } from "../../checkpoint/state_dict/state_dict.ts";
import type { Device } from "../../device/device.ts";
import { DecoderForCausalLm } from "../decoder.ts";
import { expertFiles } from "../expert_files.ts";
import { type GlmConfig, glmParts } from "../glm.ts";

/** GLM-5 with a language-model head. */
export class GlmMoeDsaForCausalLm extends DecoderForCausalLm {
  constructor(device: Device, config: GlmConfig, hfConfig: Readonly<Record<string, unknown>>) {
    const hfClasses = { prefix: "GlmMoeDsa", mixture: "GlmMoeDsaMoE" };
    super(device, config, hfConfig, {
      hfClasses,
      ...glmParts(device, config),
      // The layer that predicts a second token.
      otherFiles: { ignored: [/model\.layers\.78/] },
    });
  }

  override directoryTensors(): Iterable<DirectoryTensor> {
    return expertFiles(this);
  }
}

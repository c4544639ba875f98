/**
 * Llama's entry in the registry.
 *
 * @module
 */
import type { ModelFamily } from "../family.ts";
import { resolveLlamaConfig } from "./config.ts";
import { LlamaForCausalLm } from "./model.ts";

/** `model_type: llama`. */
export const LLAMA: ModelFamily = {
  modelType: "llama",
  build: (device, hfConfig) => new LlamaForCausalLm(device, resolveLlamaConfig(hfConfig), hfConfig),
};

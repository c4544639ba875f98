/**
 * The list of model families: how to read the Hugging Face config of each and build the model.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import { UnsupportedError } from "../errors.ts";
import { whichAre } from "../words.ts";
import type { CausalLm } from "./causal_lm.ts";
import { resolveLlamaConfig } from "./llama/config.ts";
import { LlamaForCausalLm } from "./llama/model.ts";

/** One family of models. */
export interface ModelFamily {
  /** `model_type` in `config.json`. */
  readonly modelType: string;
  /**
   * Builds the model, without memory.
   *
   * @param hfConfig a parsed `config.json`
   * @throws {ConfigError} listing everything in it that is wrong, {@link UnsupportedError} for options not implemented
   */
  build(device: Device, hfConfig: Readonly<Record<string, unknown>>): CausalLm;
}

/** All families. */
export const FAMILIES: readonly ModelFamily[] = [{
  modelType: "llama",
  build: (device, hfConfig) => new LlamaForCausalLm(device, resolveLlamaConfig(hfConfig), hfConfig),
}];

/**
 * Builds the model that a Hugging Face config describes, without memory: shard it, then initialize or load it.
 *
 * @param hfConfig a parsed `config.json`
 * @throws {UnsupportedError} if the family or an option of it is not implemented
 * @throws {ConfigError} if the config does not fit the family
 */
export function buildModel(device: Device, hfConfig: Readonly<Record<string, unknown>>): CausalLm {
  const family = FAMILIES.find(({ modelType }) => modelType === hfConfig["model_type"]);
  if (family === undefined) {
    const known = FAMILIES.map(({ modelType }) => modelType);
    const asked = hfConfig["model_type"] === undefined ? "no model_type" : `model_type '${hfConfig["model_type"]}'`;
    throw new UnsupportedError(`Cannot build a model of ${asked}: ${whichAre(known, "supported")}`);
  }
  return family.build(device, hfConfig);
}

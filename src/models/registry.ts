/**
 * The list of model families.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import { UnsupportedError } from "../errors.ts";
import type { CausalLm } from "./causal_lm.ts";
import type { ModelFamily } from "./family.ts";
import { LLAMA } from "./llama/family.ts";

/** All families. */
export const FAMILIES: readonly ModelFamily[] = [LLAMA];

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
    const known = FAMILIES.map(({ modelType }) => modelType).join(", ");
    throw new UnsupportedError(`Cannot build model_type '${hfConfig["model_type"]}': there are ${known}`);
  }
  return family.build(device, hfConfig);
}

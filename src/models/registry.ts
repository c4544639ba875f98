/**
 * The list of model families: how to read the Hugging Face config of each and build the model.
 *
 * @module
 */
import { didYouMean } from "../config/nearest.ts";
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

/** A family of a configuration and a model. */
function family<Config>(
  modelType: string,
  resolve: (hfConfig: Readonly<Record<string, unknown>>) => Config,
  Model: new (device: Device, config: Config, hfConfig: Readonly<Record<string, unknown>>) => CausalLm,
): ModelFamily {
  return { modelType, build: (device, hfConfig) => new Model(device, resolve(hfConfig), hfConfig) };
}

/** All families. */
export const FAMILIES: readonly ModelFamily[] = [
  family("llama", resolveLlamaConfig, LlamaForCausalLm),
];

/**
 * Builds the model that a Hugging Face config describes, without memory: shard it, then initialize or load it.
 *
 * @param hfConfig a parsed `config.json`
 * @throws {UnsupportedError} if the family or an option of it is not implemented
 * @throws {ConfigError} if the config does not fit the family
 */
export function buildModel(device: Device, hfConfig: Readonly<Record<string, unknown>>): CausalLm {
  const asked = hfConfig["model_type"];
  const family = FAMILIES.find(({ modelType }) => modelType === asked);
  if (family === undefined) {
    const known = FAMILIES.map(({ modelType }) => modelType);
    const what = asked === undefined ? "no model_type" : `model_type '${asked}'`;
    const hint = typeof asked === "string" ? didYouMean(asked, known) : "";
    throw new UnsupportedError(`Cannot build a model of ${what}: ${whichAre(known, "supported")}${hint}`);
  }
  return family.build(device, hfConfig);
}

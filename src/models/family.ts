/**
 * What a model family is: how to read its Hugging Face config and build the model.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import type { CausalLm } from "./causal_lm.ts";

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

/**
 * The families whose models are written into GGUF files.
 *
 * @module
 */
import { type GgufMetadata, type GgufValue, string } from "../../checkpoint/gguf/format.ts";
import type { GgufPlan } from "../../checkpoint/gguf/plan.ts";
import { didYouMean } from "../../config/nearest.ts";
import { UnsupportedError } from "../../errors.ts";
import { whichAre } from "../../words.ts";
import type { CausalLm } from "../causal_lm.ts";
import { DENSE_FAMILIES } from "./dense.ts";
import type { FamilyPlan } from "./layer_names.ts";
import { MIXTURE_FAMILIES } from "./mixtures.ts";
import { namedTensors } from "./names.ts";
import { POST_NORM_FAMILIES } from "./post_norm.ts";

/** All families, by `model_type`. */
const FAMILIES: Readonly<Record<string, FamilyPlan>> = {
  ...DENSE_FAMILIES,
  ...POST_NORM_FAMILIES,
  ...MIXTURE_FAMILIES,
};

/** The families that GGUF files are written of, by `model_type`. */
export const GGUF_FAMILIES: readonly string[] = Object.keys(FAMILIES);

/**
 * The contents of a model's GGUF file besides the tokenizer.
 *
 * @param model without memory is enough
 * @throws {UnsupportedError} for a family that is not mapped, naming those that are, or for options that llama.cpp computes otherwise
 */
export function ggufPlan(model: CausalLm): GgufPlan {
  const { hfConfig, device: { math } } = model;
  const family = String(hfConfig["model_type"]);
  const parts = Object.hasOwn(FAMILIES, family) ? FAMILIES[family]?.(hfConfig, math) : undefined;
  if (parts === undefined) {
    const hint = didYouMean(family, GGUF_FAMILIES);
    throw new UnsupportedError(
      `Cannot write a model of model_type '${family}' into GGUF: ${whichAre(GGUF_FAMILIES, "supported")}${hint}`,
    );
  }
  const { architecture, keys, names, tensors = [], notes = [] } = parts;
  const metadata: GgufMetadata = new Map<string, GgufValue>([
    ["general.architecture", string(architecture)],
    ["general.type", string("model")],
    ...Object.entries(keys).map(([key, value]) => [`${architecture}.${key}`, value] as const),
  ]);
  const all = [...tensors, ...namedTensors(model.namedParameters(), names)];
  return { architecture, metadata, tensors: all, notes };
}

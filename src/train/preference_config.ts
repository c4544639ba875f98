/**
 * The keys of a run that learns preferences, by the names of TRL's `DPOConfig`, `ORPOConfig` and `KTOConfig`, and what such a run cannot be combined with.
 *
 * @module
 */
import { needs } from "../config/needs.ts";
import * as z from "zod";
import { type Section, section } from "../config/section.ts";
import { ConfigError, type ConfigProblem, UnsupportedError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { StepConfig } from "./config.ts";
import { LABELED_LOSSES, type LabeledLossName, type LabeledLossSettings } from "./labeled_loss.ts";
import { ODDS_RATIO, PAIR_LOSSES, type PairLossName, type PairLossSettings } from "./preference_loss.ts";

/** Ways to learn preferences. */
export const PREFERENCES = ["dpo", "orpo", "kto"] as const;

/**
 * Preferences that are learned, if any.
 *
 * @internal
 */
export interface PreferenceConfig {
  readonly preference?: typeof PREFERENCES[number] | undefined;
  /** Default: {@link USUAL_BETA}. */
  readonly beta?: number | undefined;
  /** Default: sigmoid; with kto, kto. */
  readonly lossType?: PairLossName | LabeledLossName | undefined;
  /** Default: 0. */
  readonly labelSmoothing?: number | undefined;
  /** Default: 1. */
  readonly desirableWeight?: number | undefined;
  /** Default: 1. */
  readonly undesirableWeight?: number | undefined;
  /** Default: unless the reference is the model without its adapter. */
  readonly precomputeRefLogProbs?: boolean | undefined;
}

const USUAL_BETA = 0.1;

/** Keys of preferences. */
export const preferenceSection: Section<PreferenceConfig> = section(
  "preference",
  z.strictObject({
    preference: z.enum(PREFERENCES).optional().describe(
      "Learn from preferences: dpo, orpo (no reference model): rows of prompt, chosen, rejected; kto: rows of " +
        "prompt, completion, label (default: learn text)",
    ).meta({ otherNames: ["rl", "stage", "dpo", "orpo", "kto", "rlhf", "preference-optimization"] }),
    beta: z.number().positive().optional().describe(
      "dpo and kto: strength of the KL penalty towards the reference; orpo: weight of the odds-ratio loss " +
        `(default: ${USUAL_BETA})`,
    ).meta({ otherNames: ["dpo-beta", "pref-beta", "rl-beta", "orpo-alpha", "orpo-beta"] }),
    lossType: z.enum([...PAIR_LOSSES, ...LABELED_LOSSES]).optional().describe(
      `With preference dpo: the loss of a pair: ${
        PAIR_LOSSES.join(", ")
      } (default: sigmoid); with kto that of an answer: ${LABELED_LOSSES.join(", ")} (default: kto)`,
    ).meta({ shown: "name", otherNames: ["dpo-loss-type", "pref-loss", "dpo-loss"] }),
    labelSmoothing: z.number().nonnegative().lt(0.5).optional().describe(
      "With lossType robust: the share of pairs whose answers are thought to be the wrong way round (default: 0)",
    ).meta({ otherNames: ["dpo-label-smoothing", "label-smoothing-factor"] }),
    desirableWeight: z.number().nonnegative().optional().describe(
      "With preference kto: weight of the losses of desirable answers (default: 1)",
    ).meta({ otherNames: ["kto-chosen-weight"] }),
    undesirableWeight: z.number().nonnegative().optional().describe(
      "With preference kto: weight of the losses of the other answers (default: 1)",
    ).meta({ otherNames: ["kto-rejected-weight"] }),
    precomputeRefLogProbs: z.boolean().optional().describe(
      "dpo and kto: compute reference log-probabilities once, before step 1 (default: true, except for a new " +
        "adapter, whose base model is the reference)",
    ).meta({ otherNames: ["precompute-ref-logps"] }),
  }),
);

/** The loss of a run that learns preferences; undefined for a run that does not. */
export function preferenceLossOf(config: PreferenceConfig): PairLossSettings | LabeledLossSettings | undefined {
  const { preference, beta = USUAL_BETA, lossType, labelSmoothing = 0 } = config;
  if (preference === undefined) return undefined;
  if (preference === "orpo") return { lossType: ODDS_RATIO, beta, labelSmoothing };
  if (preference === "kto") {
    const { desirableWeight = 1, undesirableWeight = 1 } = config;
    return { lossType: isLabeled(lossType) ? lossType : "kto", beta, desirableWeight, undesirableWeight };
  }
  return { lossType: lossType === undefined || isLabeled(lossType) ? "sigmoid" : lossType, beta, labelSmoothing };
}

function isLabeled(lossType: string | undefined): lossType is LabeledLossName {
  return LABELED_LOSSES.some((name) => name === lossType);
}

/** True if the model is compared with a reference. */
export function hasReference({ preference }: Pick<PreferenceConfig, "preference">): boolean {
  return preference === "dpo" || preference === "kto";
}

/** True if the model without its adapter is what the run begins from: a new adapter, beside which nothing else is trained. */
export function baseIsReference(
  { loraR, loraModulesToSave }: Pick<StepConfig, "loraR" | "loraModulesToSave">,
): boolean {
  return loraR !== undefined && loraModulesToSave.length === 0;
}

/** True if the reference's log-probabilities are computed before the first step. */
export function precomputes(config: StepConfig): boolean {
  return config.precomputeRefLogProbs ?? !baseIsReference(config);
}

/**
 * Refuses settings of preferences in a run without any, and settings that a run with preferences does not have.
 *
 * @throws {ConfigError} naming each
 */
export function requirePreference(config: StepConfig): void {
  const { preference, beta, lossType, labelSmoothing, precomputeRefLogProbs } = config;
  const { desirableWeight, undesirableWeight } = config;
  const problems: ConfigProblem[] = [];
  if (preference === undefined) {
    const own = { beta, lossType, labelSmoothing, desirableWeight, undesirableWeight, precomputeRefLogProbs };
    for (const [path, value] of Object.entries(own)) {
      if (value !== undefined) problems.push(needs(path, "preference", value));
    }
    if (problems.length > 0) throw new ConfigError(problems);
    return;
  }
  const { packing = "none", loraDropout = 0, ppSize, cudaGraphs } = config;
  const { neftuneNoiseAlpha: noise } = config;
  const refused: readonly (readonly [path: string, isRefused: boolean, expected: string, got: string])[] = [
    ["packing", packing !== "none", "'none' with preference, whose answers are rows of their own", `'${packing}'`],
    ["loraDropout", loraDropout > 0, "0 with preference, which compares the model with itself", String(loraDropout)],
    ["ppSize", ppSize > 1, "1 with preference, whose pairs do not go through stages yet", String(ppSize)],
    ["neftuneNoiseAlpha", noise !== undefined, "nothing with preference, whose steps draw no noise", String(noise)],
    ["cudaGraphs", cudaGraphs, "false with preference: the host computes the loss of pairs in each step", "true"],
  ];
  for (const [path, isRefused, expected, got] of refused) if (isRefused) problems.push({ path, expected, got });
  if (preference === "orpo") {
    const ofOthers = { lossType, labelSmoothing, desirableWeight, undesirableWeight, precomputeRefLogProbs };
    for (const [path, value] of Object.entries(ofOthers)) {
      const expected = "nothing with preference 'orpo', which has one loss and no reference";
      if (value !== undefined) problems.push({ path, expected, got: String(value) });
    }
    if (problems.length > 0) throw new ConfigError(problems);
    return;
  }
  if (preference === "dpo") {
    for (const [path, value] of Object.entries({ desirableWeight, undesirableWeight })) {
      if (value !== undefined) problems.push(needs(path, "preference 'kto'", value));
    }
  } else if (config.globalBatch < 2) {
    const expected = "at least 2 with preference 'kto', which gives a prompt the answer of another row";
    problems.push({ path: "globalBatch", expected, got: String(config.globalBatch) });
  }
  if (lossType !== undefined && isLabeled(lossType) !== (preference === "kto")) {
    const names = preference === "kto" ? LABELED_LOSSES : PAIR_LOSSES;
    const expected = `one of ${names.join(", ")} with preference '${preference}'`;
    problems.push({ path: "lossType", expected, got: `'${lossType}'` });
  } else if (labelSmoothing !== undefined && lossType !== "robust") {
    problems.push(needs("labelSmoothing", "lossType 'robust'", labelSmoothing));
  }
  if (config.streaming === true && precomputes(config)) {
    const expected = `false with preference '${preference}', whose reference reads all data before the first step`;
    problems.push({ path: "streaming", expected: `${expected}, but with precomputeRefLogProbs false`, got: "true" });
  }
  if (precomputeRefLogProbs === false && !baseIsReference(config)) {
    const expected =
      "true, but for a new adapter (loraR) without loraModulesToSave: no second copy of the model is kept";
    problems.push({ path: "precomputeRefLogProbs", expected, got: "false" });
  }
  if (problems.length > 0) throw new ConfigError(problems);
}

/**
 * Refuses a model that adds another loss to its tokens' losses.
 *
 * @throws {UnsupportedError}
 */
export function requirePreferenceModel({ countsPadding, hfClass }: CausalLm): void {
  if (!countsPadding) return;
  throw new UnsupportedError(
    `Cannot learn preferences with ${hfClass}, whose config asks for a loss that balances routers (output_router_logits): no step ` +
      "of preferences adds it; set output_router_logits to false in config.json",
  );
}

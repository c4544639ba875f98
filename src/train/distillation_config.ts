/**
 * The keys of a run that learns from a teacher, and what such a run cannot be combined with.
 *
 * @module
 */
import { needs } from "../config/needs.ts";
import * as z from "zod";
import { type Section, section } from "../config/section.ts";
import { ConfigError, type ConfigProblem } from "../errors.ts";
import { path, size } from "./config_values.ts";
import type { StepConfig } from "./config.ts";
import type { DistillationSettings } from "./distillation_loss.ts";

/**
 * The teacher of a run, if any.
 *
 * @internal
 */
export interface DistillationConfig {
  readonly teacher?: string | undefined;
  /** Default: {@link USUAL}. */
  readonly distillTopK?: number | undefined;
  readonly distillBeta?: number | undefined;
  readonly distillTemperature?: number | undefined;
  readonly distillAlpha?: number | undefined;
}

const USUAL: DistillationSettings = { topK: 64, beta: 0, temperature: 1, alpha: 0 };

/** Keys of distillation. */
export const distillationSection: Section<DistillationConfig> = section(
  "distillation",
  z.strictObject({
    teacher: path.optional().describe(
      "Learn the token probabilities of this model: a Hugging Face folder, or a name in its cache, with the same " +
        "tokenizer",
    ).meta({ otherNames: ["teacher-model", "teacher-model-name-or-path", "kd-teacher"] }),
    distillTopK: size.optional().describe(
      "With teacher: its likeliest tokens, compared one by one, the rest as one; the vocabulary size compares all " +
        `(default: ${USUAL.topK})`,
    ).meta({ otherNames: ["loss-top-k", "kd-top-k"] }),
    distillBeta: z.number().min(0).max(1).optional().describe(
      "With teacher: 0: KL(teacher ‖ model); 1: KL(model ‖ teacher); between: generalized Jensen-Shannon (default: " +
        `${USUAL.beta})`,
    ).meta({ otherNames: ["gkd-beta", "jsd-beta"] }),
    distillTemperature: z.number().positive().optional().describe(
      `With teacher: divisor of both models' logits (default: ${USUAL.temperature})`,
    ).meta({ otherNames: ["kd-temperature"] }),
    distillAlpha: z.number().min(0).lt(1).optional().describe(
      `With teacher: weight of the data's own loss, beside 1 - alpha for the teacher's (default: ${USUAL.alpha})`,
    ).meta({ otherNames: ["kd-alpha", "kd-ce-alpha"] }),
  }),
);

/** The loss of a run that learns from a teacher; undefined for a run that does not. */
export function distillationOf(config: DistillationConfig): DistillationSettings | undefined {
  if (config.teacher === undefined) return undefined;
  const { distillTopK: topK = USUAL.topK, distillBeta: beta = USUAL.beta } = config;
  const { distillTemperature: temperature = USUAL.temperature, distillAlpha: alpha = USUAL.alpha } = config;
  return { topK, beta, temperature, alpha };
}

/**
 * Refuses settings of a teacher in a run without one, and settings that a run with a teacher does not have.
 *
 * @throws {ConfigError} naming each
 */
export function requireDistillation(config: StepConfig): void {
  const { teacher, distillTopK, distillBeta, distillTemperature, distillAlpha } = config;
  const problems: ConfigProblem[] = [];
  if (teacher === undefined) {
    const own = { distillTopK, distillBeta, distillTemperature, distillAlpha };
    for (const [path, value] of Object.entries(own)) {
      if (value !== undefined) problems.push(needs(path, "teacher", value));
    }
  } else {
    const { preference, epSize, ppSize, cudaGraphs } = config;
    const refused: readonly (readonly [path: string, isRefused: boolean, expected: string, got: string])[] = [
      ["preference", preference !== undefined, "nothing with teacher, whose tokens are learned", `'${preference}'`],
      ["epSize", epSize > 1, "1 with teacher, whose experts are not divided yet", String(epSize)],
      ["ppSize", ppSize > 1, "1 with teacher, whose rows do not go through stages yet", String(ppSize)],
      ["cudaGraphs", cudaGraphs, "false with teacher: the host computes the loss in each step", "true"],
    ];
    for (const [path, isRefused, expected, got] of refused) if (isRefused) problems.push({ path, expected, got });
  }
  if (problems.length > 0) throw new ConfigError(problems);
}

/**
 * Opens what a run learns besides text: of answers the loss, and the reference before any weight changes; or the teacher.
 *
 * @module
 */
import type { CausalLm } from "../models/causal_lm.ts";
import type { Logger } from "../runtime/log.ts";
import type { RunConfig, StepConfig } from "./config.ts";
import { requireDistillation } from "./distillation_config.ts";
import type { Distillation } from "./distillation_step.ts";
import { evaluationMode } from "./evaluation_mode.ts";
import type { HeldOut } from "./held_out.ts";
import {
  hasReference,
  precomputes,
  preferenceLossOf,
  requirePreference,
  requirePreferenceModel,
} from "./preference_config.ts";
import type { PreferenceObjective } from "./preference_step.ts";
import { measureReference, openReference } from "./reference.ts";
import type { Run } from "./run.ts";
import { openTeacher } from "./teacher.ts";
import type { TextData } from "./text_data.ts";

/** The data of a run. */
interface RunData {
  readonly data: TextData;
  readonly heldOut: HeldOut | undefined;
}

/**
 * What a run learns of pairs; undefined for a run that learns text. The model stays in evaluation mode, as TRL's `disable_dropout` has
 * it: with dropout, the model would differ from itself as the reference. Every rank must call it, with the weights that the run begins
 * with.
 *
 * @throws {UnsupportedError} for a model that adds another loss to its tokens' losses
 */
async function openPreference(
  config: RunConfig,
  run: Run,
  model: CausalLm,
  { data, heldOut }: RunData,
  log: Logger,
): Promise<PreferenceObjective | undefined> {
  const loss = preferenceLossOf(config);
  if (loss === undefined) return undefined;
  requirePreferenceModel(model);
  model.eval();
  using _mode = evaluationMode(model); // reshards at its end
  if (hasReference(config) && precomputes(config)) {
    log.info("Computing reference log-probabilities with the model's initial weights");
  }
  const reference = await openReference(run, model, data, config);
  if (hasReference(config)) await heldOut?.measureReference((set) => measureReference(run, model, set, config));
  return { loss, reference };
}

/** A run's objective in place of text. */
export interface Objective {
  readonly preference?: PreferenceObjective | undefined;
  readonly distillation?: Distillation | undefined;
}

/**
 * Opens what a run learns besides text: of preferences, or from a teacher. Every rank must call it, with the weights that the run begins
 * with.
 *
 * @throws {UnsupportedError} {@link ConfigError} as {@link openPreference} and {@link openTeacher}
 */
export async function openObjective(
  config: RunConfig,
  run: Run,
  model: CausalLm,
  data: RunData,
  log: Logger,
): Promise<Objective> {
  return {
    preference: await openPreference(config, run, model, data, log),
    distillation: await openTeacher(run, model, config, {
      tokenizer: data.data.tokenizer,
      note: (text) => log.info(text),
    }),
  };
}

/**
 * Refuses settings of preferences and of a teacher that do not fit each other or the run.
 *
 * @throws {ConfigError} naming each
 */
export function requireObjective(config: StepConfig): void {
  requirePreference(config);
  requireDistillation(config);
}

/** Settings of what is learned besides text in a checkpoint; none for a run that learns text. */
export function objectiveSettings(
  config: RunConfig,
  { preference, distillation }: Objective,
): Readonly<Record<string, string | number>> {
  const ofTeacher = distillation === undefined || config.teacher === undefined
    ? {}
    : { teacher: config.teacher, ...distillation.settings };
  if (preference === undefined || config.preference === undefined) return ofTeacher;
  const { loss, reference: { digest } } = preference;
  return { preference: config.preference, ...loss, ...digest === undefined ? {} : { reference: digest } };
}

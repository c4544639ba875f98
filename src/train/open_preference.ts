/**
 * Opens what a run learns of pairs of answers: the loss, and the reference before any weight changes.
 *
 * @module
 */
import type { CausalLm } from "../models/causal_lm.ts";
import type { Logger } from "../runtime/log.ts";
import type { RunConfig } from "./config.ts";
import { evaluationMode } from "./evaluation_mode.ts";
import type { HeldOut } from "./held_out.ts";
import { hasReference, precomputes, preferenceLossOf, requirePreferenceModel } from "./preference_config.ts";
import type { PreferenceObjective } from "./preference_step.ts";
import { measureReference, openReference } from "./reference.ts";
import type { Run } from "./run.ts";
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
export async function openPreference(
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
    log.info("Measuring all answers by the reference: the model as it is now");
  }
  const reference = await openReference(run, model, data, config);
  if (hasReference(config)) await heldOut?.measureReference((set) => measureReference(run, model, set, config));
  return { loss, reference };
}

/** Settings of preferences in a checkpoint; none for a run that learns text. */
export function preferenceSettings(
  config: RunConfig,
  objective: PreferenceObjective | undefined,
): Readonly<Record<string, string | number>> {
  if (objective === undefined || config.preference === undefined) return {};
  const { loss, reference: { digest } } = objective;
  return { preference: config.preference, ...loss, ...digest === undefined ? {} : { reference: digest } };
}

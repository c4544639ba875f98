/**
 * The part of a run's state that is no tensor: settings, the place in the data, the loss scale, the best evaluation.
 *
 * @module
 */
import type { SaveCheckpointOptions } from "../checkpoint/sharded/save_plan.ts";
import type { DataLoader } from "../data/loader.ts";
import { runtime } from "../runtime/processes.ts";
import { ADAPTER_SETTINGS, adapterScales, adapterSettings } from "./adapter_config.ts";
import type { RunConfig } from "./config.ts";
import type { Evaluations } from "./evaluations.ts";
import { objectiveSettings } from "./open_preference.ts";
import type { StepContext } from "./step.ts";

/** Settings that checkpoints have where they are set. */
export const OPTIONAL_SETTINGS: readonly string[] = ["neftuneNoiseAlpha", ...ADAPTER_SETTINGS];

/** The state after a step, besides weights and optimizer. */
export function stateOf(
  config: RunConfig,
  step: number,
  context: StepContext,
  loader: DataLoader,
  { best }: Evaluations,
): Pick<SaveCheckpointOptions, "step" | "state" | "environment"> {
  const { model, scaler, baseWeights } = context;
  const base = baseWeights === undefined ? {} : { baseWeights };
  const state = {
    settings: { ...settingsOf(config, context), ...adapterScales(model), ...base },
    data: { ...loader.state() },
    ...scaler === undefined ? {} : { scaler: { ...scaler.state() } },
    ...best === undefined ? {} : { best: { ...best } },
  };
  return { step, state, environment: machineOf() };
}

/** Settings that later steps depend on, besides weights, data and the optimizer's groups. */
export function settingsOf(
  config: RunConfig,
  context: StepContext,
): Record<string, string | number | boolean> {
  const { steps, globalBatch, maxGradNorm, precision, neftuneNoiseAlpha } = config;
  const optional = neftuneNoiseAlpha === undefined ? {} : { neftuneNoiseAlpha };
  const all = { steps, globalBatch, maxGradNorm, precision, ...optional };
  return { ...all, ...adapterSettings(context.model, config), ...objectiveSettings(config, context) };
}

/** Properties of this machine, which a resume elsewhere compares. */
export function machineOf(): Record<string, string> {
  const { name, version } = runtime();
  return { runtime: name, runtimeVersion: version };
}

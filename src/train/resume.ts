/**
 * The start of a run that resumes: from a checkpoint, or from the state that lost ranks have left in memory.
 *
 * @module
 */
import { trainedPart } from "../adapters/files.ts";
import { loadCheckpoint, type LoadedCheckpoint } from "../checkpoint/sharded/load.ts";
import type { DataLoader } from "../data/loader.ts";
import { CheckpointError } from "../errors.ts";
import { countOf } from "../words.ts";
import type { Logger } from "../runtime/log.ts";
import { requireSameScales } from "./adapter_config.ts";
import { requireSameBase } from "./base_weights.ts";
import type { RunConfig } from "./config.ts";
import { type ElasticRun, resumePlaces } from "./elastic.ts";
import type { Evaluations } from "./evaluations.ts";
import { addCompanions } from "./kept_files.ts";
import { lastStepOf } from "./metrics.ts";
import { otherBatch } from "./notices.ts";
import type { Run } from "./run.ts";
import { machineOf, OPTIONAL_SETTINGS, settingsOf } from "./run_state.ts";
import { parseSavedState } from "./saved_state.ts";
import type { StepContext } from "./step.ts";

/** The parts of a run whose state is restored, besides model and optimizer. */
export interface ResumedParts {
  readonly loader: DataLoader;
  readonly evaluations: Evaluations;
  readonly log: Logger;
}

/** The state that a run resumed from. */
export interface ResumedRun {
  readonly step: number;
  /** The step of the newest checkpoint on the disk that the run has written or resumed from. */
  readonly saved: number;
  /** The checkpoint on the disk; undefined if the run resumed from memory. */
  readonly path: string | undefined;
}

/**
 * Restores the state that a run resumes from. Every rank must call it.
 *
 * @returns undefined if there is none, so that the run begins
 * @throws {CheckpointError} {@link ConfigError} {@link FileError} as `loadCheckpoint` and `DataLoader.restore`
 */
export async function resumeRun(
  { group }: Pick<Run, "group">,
  config: RunConfig,
  elastic: ElasticRun | undefined,
  context: StepContext,
  { loader, evaluations, log: own }: ResumedParts,
): Promise<ResumedRun | undefined> {
  const log = own.once();
  const found = await load(context, config, elastic, log);
  if (found === undefined) return undefined;
  const { path, step, state, skipped, differences, changes } = found.loaded;
  for (const reason of skipped) log.warn(`Skipped an incomplete checkpoint: ${reason}`);
  for (const difference of differences) log.warn(`Results may differ in the last bits: ${difference}`);
  const saved = parseSavedState(state, path);
  requireSameScales(context.model, saved.settings);
  requireSameBase(context, saved.settings);
  for (const change of changes) log.warn(`Setting changed since the checkpoint: ${change}`);
  await group.together("restore the data's place", () => loader.restore({ ...saved.data, step }));
  await group.together("look for the best checkpoint", () => evaluations.restore(saved.best, loader));
  if (saved.scaler !== undefined) context.scaler?.restore(saved.scaler);
  const settings = settingsOf(config, context);
  for (const key of new Set([...Object.keys(settings), ...OPTIONAL_SETTINGS])) {
    const [before, now] = [saved.settings[key], settings[key]].map((value) => value ?? "none");
    const means = key === "globalBatch" ? otherBatch(config, step, loader.cursor) : "";
    if (before !== now) log.warn(`Setting changed since the checkpoint: ${key} was ${before}, is ${now}${means}`);
  }
  await group.together("read the files beside the weights", () => addCompanions(context.model, path, context.group));
  if (found.isMemory) {
    log.info(`Resumed from memory at step ${step}`);
    return { step, saved: 0, path: undefined };
  }
  log.info(`Resumed '${path}' at step ${step}`);
  return { step, saved: step, path };
}

/** Loads the state to go on from, if there is one. */
async function load(
  { model, optimizer, group }: StepContext,
  config: RunConfig,
  elastic: ElasticRun | undefined,
  log: Logger,
): Promise<{ readonly loaded: LoadedCheckpoint; readonly isMemory: boolean } | undefined> {
  const { broadcastFromRank0, out } = config;
  const what = { model: trainedPart(model), optimizer, group, environment: machineOf(), broadcastFromRank0 };
  const places = await resumePlaces(config, elastic, group);
  for (const { directory, from, isMemory } of places) {
    try {
      const loaded = await loadCheckpoint({ ...what, directory, from });
      if (loaded !== undefined) return { loaded, isMemory };
    } catch (error) {
      // Every rank has the same verdict, and a checkpoint on the disk is as good, but older.
      if (!isMemory || !(error instanceof CheckpointError)) throw error;
      log.warn(`Cannot resume from memory: ${error.message}`);
    }
  }
  if (elastic?.cause !== undefined) log.warn(describeLoss(elastic, elastic.cause, lastStepOf(out)));
  else if (places.length > 0) log.info(`No checkpoint in '${out}': starting at step 1`);
  return undefined;
}

/** A run that begins again, as nothing was kept. */
function describeLoss({ goesOn, every }: ElasticRun, cause: string, taken: number): string {
  const why = goesOn
    ? `no state of it was ${every === undefined ? "saved" : "in memory or saved"} yet, so ${
      taken === 1 ? "the step that was" : `the ${countOf(taken, "step")} that were`
    } taken ${taken === 1 ? "is" : "are"} taken again`
    : "none was taken yet";
  return `Training begins anew at step 1, ${cause}: ${why}`;
}

/**
 * Trackers by name.
 *
 * @module
 */
import type { Environment } from "../runtime/env.ts";
import { mlflow } from "./mlflow.ts";
import { tensorBoard } from "./tensorboard.ts";
import type { TrackedRun, Tracker } from "./tracker.ts";
import { wandb } from "./wandb.ts";

/** Names of the trackers, as the Trainer's `report_to` has them. */
export const TRACKERS = ["tensorboard", "mlflow", "wandb"] as const;
/** Name of a tracker. */
export type TrackerName = typeof TRACKERS[number];

const OPENERS: Readonly<Record<TrackerName, (run: TrackedRun, environment: Environment) => Tracker>> = {
  tensorboard: (run, environment) =>
    tensorBoard(run, environment.text("TENSORBOARD_LOGGING_DIR") ?? `${run.folder}/tensorboard`),
  mlflow,
  wandb,
};

/**
 * Opens trackers.
 *
 * @throws {ConfigError} if a tracker's variables are wrong or missing
 */
export function openTrackers(names: readonly TrackerName[], run: TrackedRun, environment: Environment): Tracker[] {
  return [...new Set(names)].map((name) => OPENERS[name](run, environment));
}

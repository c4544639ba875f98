/**
 * The trackers of a training run, as its configuration names them.
 *
 * @module
 */
import { processEnvironment } from "../runtime/env.ts";
import type { Logger } from "../runtime/log.ts";
import { openTrackers } from "../trackers/open.ts";
import type { Tracker } from "../trackers/tracker.ts";
import type { RunConfig } from "./config.ts";
import { nameOf } from "./run_record.ts";

/**
 * Opens the trackers that `reportTo` names.
 *
 * @param step the step that the run resumed from; 0 for a new one
 * @throws {ConfigError} if a tracker's variables are wrong or missing
 */
export function trackersOf(config: RunConfig, step: number, log: Logger): Tracker[] {
  const { reportTo, out } = config;
  const settings = Object.fromEntries(
    Object.entries(config).flatMap(([key, value]) =>
      value === undefined ? [] : [[key, typeof value === "string" ? value : JSON.stringify(value)]]
    ),
  );
  const warn = (message: string): void => log.warn(message);
  return openTrackers(reportTo, { folder: out, name: nameOf(config), step, settings, warn }, processEnvironment());
}

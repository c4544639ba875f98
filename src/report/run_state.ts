/**
 * The state of a run by its folder: it runs while the lock of the folder is held, and otherwise has ended as its last event says.
 *
 * @module
 */
import { LOCK_FILE } from "../locks/folder_lock.ts";
import { livesHere, parseHolder } from "../locks/lock_holder.ts";
import { pathKind, readTextSync } from "../runtime/files.ts";
import { eventsOfType, type RunEvent } from "./run_event.ts";

/** State of a run; `silent` if it has ended without an end event, as a killed run does, or is older than events. */
export type RunState = "running" | "finished" | "stopped" | "failed" | "silent";

/** The state of the run in a folder. A process on another host counts as living. */
export function stateOf(folder: string, events: readonly RunEvent[]): RunState {
  if (isHeld(folder)) return "running";
  return lastOutcome(events) ?? "silent";
}

/** The outcome of the run's newest start; undefined if no event tells. */
export function lastOutcome(events: readonly RunEvent[]): Exclude<RunState, "running" | "silent"> | undefined {
  const end = eventsOfType(events, "end").at(-1);
  const start = eventsOfType(events, "start").at(-1);
  const isOld = end !== undefined && start !== undefined && events.indexOf(start) > events.indexOf(end);
  return isOld ? undefined : end?.outcome;
}

function isHeld(folder: string): boolean {
  const file = `${folder}/${LOCK_FILE}`;
  try {
    if (pathKind(file) !== "file") return false;
    const holder = parseHolder(readTextSync(file));
    return holder === undefined || livesHere(holder, undefined) !== false;
  } catch {
    return false; // it went between two looks
  }
}

/**
 * The directory that holds the checkpoints of a training: their names, and the order of renames by which one appears, replaces
 * another or goes. What they hold is left to others.
 *
 * Note [States of a checkpoint]
 * - `checkpoint-50.partial`: being written, or left by a crash. Nobody reads it; the next save removes it.
 * - `checkpoint-50`: complete: it gets this name when all of it is written.
 * - `checkpoint-50.replaced`: the earlier one of that step, while its successor takes the name. If the name is free after a
 *   crash, it gets it back.
 *
 * @module
 */
import {
  listDirectory,
  makeDirectory,
  pathExists,
  pathKind,
  removePath,
  renamePath,
  resolveLinks,
  syncDirectory,
} from "../../runtime/files.ts";
import { MANIFEST_FILE } from "./manifest.ts";

const NAME = /^checkpoint-(\d+)$/;
const LEFTOVER = /^(checkpoint-\d+)\.(partial|replaced)$/;

/** A checkpoint by its name; it may be incomplete. */
export interface NamedCheckpoint {
  readonly path: string;
  readonly step: number;
}

/** Path of the checkpoint of a step. */
export function checkpointPath(directory: string, step: number): string {
  return `${directory}/checkpoint-${step}`;
}

/** The path at which the checkpoint of a step is written. */
export function partialPath(directory: string, step: number): string {
  return `${checkpointPath(directory, step)}.partial`;
}

/** All checkpoints of a training, the newest first; none if there is no such directory. */
export function listCheckpoints(directory: string): NamedCheckpoint[] {
  if (pathKind(directory) !== "directory") return [];
  const found: NamedCheckpoint[] = [];
  for (const name of listDirectory(directory)) {
    const step = Number(NAME.exec(name)?.[1]);
    if (Number.isSafeInteger(step)) found.push({ path: `${directory}/${name}`, step });
  }
  return found.sort((a, b) => b.step - a.step);
}

/** True if there is something that a crash, or a training that is saving, has left. */
export function needsTidying(directory: string): boolean {
  return pathKind(directory) === "directory" && listDirectory(directory).some((name) => LEFTOVER.test(name));
}

/** Cleans up after a crash; see Note [States of a checkpoint]. */
export function tidyCheckpoints(directory: string): void {
  if (pathKind(directory) !== "directory") return;
  for (const name of listDirectory(directory)) {
    const [, of, kind] = LEFTOVER.exec(name) ?? [];
    if (of === undefined) continue;
    if (kind === "replaced" && !pathExists(`${directory}/${of}`)) {
      renamePath(`${directory}/${name}`, `${directory}/${of}`);
    } else removePath(`${directory}/${name}`);
  }
}

/** True if a checkpoint has lost its name to a successor that is not there. */
export function needsRestoring(path: string): boolean {
  const named = path.replace(/(.)\/+$/, "$1");
  return !pathExists(named) && pathExists(`${named}.replaced`);
}

/** Gives such a checkpoint its name back, and touches nothing else. */
export function restoreCheckpoint(path: string): void {
  const named = path.replace(/(.)\/+$/, "$1");
  if (needsRestoring(path)) renamePath(`${named}.replaced`, named);
}

/** The step that the path of a checkpoint names, or `undefined`. */
export function stepOfPath(path: string): number | undefined {
  const step = Number(NAME.exec(path.replace(/\/+$/, "").replace(/^.*\//s, ""))?.[1]);
  return Number.isSafeInteger(step) ? step : undefined;
}

/** Makes the directory that a checkpoint is written into, empty; returns its path. */
export function beginCheckpoint(directory: string, step: number): string {
  makeDirectory(directory);
  tidyCheckpoints(directory);
  const partial = partialPath(directory, step);
  makeDirectory(partial);
  return partial;
}

/** Gives a written checkpoint its name; returns the path. */
export function commitCheckpoint(directory: string, step: number): string {
  const path = checkpointPath(directory, step);
  const partial = partialPath(directory, step);
  syncDirectory(partial);
  const replaced = pathExists(path);
  if (replaced) renamePath(path, `${path}.replaced`);
  try {
    renamePath(partial, path);
  } catch (error) {
    restoreCheckpoint(path);
    throw error;
  }
  syncDirectory(directory);
  if (replaced) removePath(`${path}.replaced`);
  return path;
}

/**
 * Removes the oldest checkpoints but for `keepLast`. Those of `kept` stay and count, also where they are more. Unfinished ones do not
 * count and stay.
 *
 * @param kept paths, in the directory or elsewhere
 */
export function pruneCheckpoints(directory: string, kept: readonly string[], keepLast: number): void {
  const there = listCheckpoints(directory).filter(({ path }) => pathKind(`${path}/${MANIFEST_FILE}`) === "file");
  const keptThere = new Set(kept.map((path) => pathExists(path) ? resolveLinks(path) : path));
  const others = there.filter(({ path }) => !keptThere.has(resolveLinks(path)));
  for (const { path } of others.slice(Math.max(0, keepLast - (there.length - others.length)))) {
    // Renamed first, so that a crash in the middle leaves nothing that looks like a checkpoint.
    renamePath(path, `${path}.partial`);
    removePath(`${path}.partial`);
  }
}

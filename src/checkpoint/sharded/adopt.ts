/**
 * A checkpoint that lies elsewhere becomes one of a training's own.
 *
 * @module
 */
import { copyDirectory, removePath, removeQuietly } from "../../runtime/files.ts";
import { checkpointPath, commitCheckpoint, listCheckpoints, type NamedCheckpoint, partialPath } from "./directory.ts";

/**
 * Copies the newest checkpoint of a directory into a second directory, unless the second one has a checkpoint as new. Nothing else
 * may write in either directory.
 *
 * @returns the copy; undefined if there was nothing to copy
 * @throws {FileError} if it cannot be written; then nothing of it is left
 */
export function adoptNewest(from: string, directory: string): NamedCheckpoint | undefined {
  const newest = listCheckpoints(from)[0];
  const own = listCheckpoints(directory)[0];
  if (newest === undefined || (own !== undefined && own.step >= newest.step)) return undefined;
  const { step } = newest;
  const partial = partialPath(directory, step);
  try {
    removePath(partial);
    copyDirectory(checkpointPath(from, step), partial);
    return { path: commitCheckpoint(directory, step), step };
  } catch (error) {
    removeQuietly(partial);
    throw error;
  }
}

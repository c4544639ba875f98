/**
 * The output folder of a run: taken for as long as the run lives, and refused where it is another run's.
 *
 * @module
 */
import { type FolderLock, lockFolder } from "../comm/control/folder_lock.ts";
import { requireWritableDirectory } from "../runtime/files.ts";
import { requireOwnFolder } from "./checks.ts";
import type { RunConfig } from "./config.ts";

const REMEDY = "give each run a folder of its own with '--out', or stop that one";

/**
 * Takes the output folder. One process of a run calls it, before anything is written.
 *
 * @throws {FileError} if it cannot be made or written in; with code `EBUSY` if a run that lives has it
 * @throws {ConfigError} if another run has left its output there, and neither `resume` nor `overwrite` says what to do
 */
export async function takeFolder(config: RunConfig): Promise<FolderLock> {
  requireWritableDirectory(config.out);
  const lock = await lockFolder(config.out, { remedy: REMEDY, removesEmpty: true });
  try {
    requireOwnFolder(config);
    return lock;
  } catch (error) {
    lock[Symbol.dispose]();
    throw error;
  }
}

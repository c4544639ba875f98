/**
 * The folder in which the state of ranks outlives them: in shared memory, where launcher and ranks may use that.
 *
 * @module
 */
import { FileError } from "../errors.ts";
import { makePrivateDirectory, makeTemporaryDirectory } from "../runtime/files.ts";

/** Shared memory as a file system, unless FULLYSHARD_SHM_DIRECTORY names another one. */
const MEMORY_DIRECTORY = "/dev/shm";

/** A folder that was made. */
export interface MemoryFolder {
  readonly path: string;
  /** The reason why it is not in shared memory; undefined if it is. */
  readonly elsewhere: string | undefined;
}

/**
 * Makes the folder. Deno lets only programs with all permissions use files in /dev: else the folder is a temporary one, whose files the
 * system keeps in memory as long as it has room, and writes to the disk besides.
 *
 * @param prefix beginning of the folder's name
 * @param directory the directory of shared memory that the user names
 * @param isRestricted true if ranks run under Deno without all permissions
 * @throws {FileError} if no folder can be made
 */
export function makeMemoryFolder(prefix: string, directory: string | undefined, isRestricted: boolean): MemoryFolder {
  const start = `${directory ?? MEMORY_DIRECTORY}/${prefix}`;
  let elsewhere = "Deno lets only ranks with all permissions use /dev/shm (--deno-args=-A)";
  if (!isRestricted || !start.startsWith("/dev/")) {
    try {
      return { path: makePrivateDirectory(start), elsewhere: undefined };
    } catch (error) {
      if (!(error instanceof FileError)) throw error;
      elsewhere = error.message;
    }
  }
  return { path: makeTemporaryDirectory(prefix), elsewhere };
}

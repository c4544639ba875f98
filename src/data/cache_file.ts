/**
 * Files that keep what was made of some data: made once, under a name of their own until they are complete, and renamed then.
 *
 * @module
 */
import { CheckpointError } from "../errors.ts";
import {
  makeDirectory,
  openWritable,
  removePath,
  renamePath,
  syncDirectory,
  type WritableFile,
} from "../runtime/files.ts";

/**
 * Makes a file. Concurrent calls do the work twice, harmlessly.
 *
 * @param directory made when needed
 * @param stamp a text that changes with the data, such as its files' sizes and times; undefined if the data cannot change
 * @param write writes the contents
 * @throws {CheckpointError} if the data changed meanwhile
 * @throws {FileError} if the file cannot be written; nothing is left behind
 */
export async function makeCacheFile(
  directory: string,
  path: string,
  stamp: () => string | undefined,
  write: (file: WritableFile) => Promise<void>,
): Promise<void> {
  makeDirectory(directory);
  const begun = stamp();
  // Another process may be making the same file, so each has a name of its own until the rename.
  const aside = `${path}.${crypto.randomUUID()}.partial`;
  try {
    {
      using file = openWritable(aside, "create");
      await write(file);
      file.sync();
    }
    if (stamp() !== begun) {
      throw new CheckpointError(path, "The text was changed while it was tokenized: start again when it is all there");
    }
    renamePath(aside, path);
  } catch (error) {
    removePath(aside);
    throw error;
  }
  syncDirectory(directory);
}

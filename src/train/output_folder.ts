/**
 * The output folder of a run: locked while the run lives, and refused if it is another run's.
 *
 * @module
 */
import { type FolderLock, lockFolder } from "../locks/folder_lock.ts";
import { REPORT_FILE } from "../report/run_files.ts";
import { entryKind } from "../runtime/entries.ts";
import { listDirectory, makeDirectory, pathExists, pathKind, removePath, renamePath } from "../runtime/files.ts";
import { requireCache, requireOwnFolder, resumesInPlace } from "./checks.ts";
import type { RunConfig } from "./config.ts";

/** Names of a run's output, with the remains that a crash may leave. */
const OUTPUT =
  /^(?:metrics\.jsonl|events\.jsonl|run\.json|report\.html|flight-rank\d+\.json|model|checkpoint-\d+(?:\.partial|\.replaced)?)$/;

const REMEDY = "give each run a folder of its own with '--out', or stop that one";

/** A run's output folder, locked by the process that writes in it. */
export interface OutputFolder extends FolderLock {
  /**
   * Makes room for a run that starts anew: removes the model that another run left, or moves all of that run's output to a new
   * folder beside it. A resumed run changes nothing. Called before the first output, so that a run which fails before its first
   * step leaves all unchanged.
   *
   * @returns the change, for the log; undefined if there was none
   * @throws {FileError} if the output cannot be removed or moved
   */
  begin(): string | undefined;
}

/**
 * Locks the output folder. One process of a run calls it, before anything is written.
 *
 * @param isOurs true if what is there is from earlier ranks of this run
 * @throws {FileError} if it cannot be made or written in; with code `EBUSY` if a live run has it
 * @throws {ConfigError} if another run has left its output there, and no key says how to treat it
 */
export async function takeFolder(config: RunConfig, isOurs = false): Promise<OutputFolder> {
  const lock = await lockFolder(config.out, { remedy: REMEDY, removesEmpty: true });
  try {
    if (!isOurs) requireOwnFolder(config);
    requireCache(config);
    const isOwn = isOurs || resumesInPlace(config);
    return {
      folder: lock.folder,
      begin: () => isOwn ? undefined : config.setAside ? setAside(config.out) : removeOld(config.out),
      [Symbol.dispose]: () => lock[Symbol.dispose](),
    };
  } catch (error) {
    lock[Symbol.dispose]();
    throw error;
  }
}

/** An old model that stayed until the last step would lie beside checkpoints that do not belong to it. */
function removeOld(out: string): string | undefined {
  const report = `${out}/${REPORT_FILE}`;
  if (pathKind(report) === "file") removePath(report);
  const model = `${out}/model`;
  if (entryKind(model) === undefined) return undefined;
  removePath(model);
  return `Removed '${model}', which another run had left`;
}

function setAside(out: string): string | undefined {
  const names = listDirectory(out).filter((name) => OUTPUT.test(name));
  if (names.length === 0) return undefined;
  const folder = out.replace(/(.)\/+$/, "$1");
  let number = 1;
  while (pathExists(`${folder}-${number}`)) number++;
  const aside = `${folder}-${number}`;
  makeDirectory(aside);
  for (const name of names) renamePath(`${out}/${name}`, `${aside}/${name}`);
  return `Kept what another run had left in '${out}' as '${aside}'`;
}

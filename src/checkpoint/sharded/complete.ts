/**
 * The end of a save: config and manifest are written beside the shards, the checkpoint takes its name, and old ones go.
 *
 * @module
 */
import { replaceFile } from "../../runtime/files.ts";
import { writeCompanions } from "../format/companions.ts";
import { writtenFile } from "../format/pieces.ts";
import { commitCheckpoint, partialPath, pruneCheckpoints } from "./directory.ts";
import { CONFIG_FILE, type Manifest, MANIFEST_FILE, renderManifest } from "./manifest.ts";

/** The work that is left when the files of all ranks are written: plain data, which a Worker can be given. */
export interface Completion {
  /** The directory of the training's checkpoints. */
  readonly directory: string;
  /** The number of checkpoints that remain. @default all */
  readonly keepLast: number | undefined;
  /** Paths of checkpoints that remain in any case. */
  readonly keep: readonly string[];
  /** The text of `config.json`. */
  readonly config: string;
  /** Small files that came with the model, by their names. The manifest does not list them: they may be edited. */
  readonly companions: ReadonlyMap<string, Uint8Array>;
  /** All but the files. */
  readonly manifest: Omit<Manifest, "files">;
}

/** Makes the written files of a step the checkpoint of that step. @param files what tensors lie in */
export function completeCheckpoint(
  { directory, keepLast, keep, config, companions, manifest }: Completion,
  files: Manifest["files"],
): void {
  const partial = partialPath(directory, manifest.step);
  writeCompanions(partial, companions);
  const bytes = new TextEncoder().encode(config);
  replaceFile(`${partial}/${CONFIG_FILE}`, bytes);
  const all = new Map([[CONFIG_FILE, writtenFile(bytes)], ...files]);
  replaceFile(`${partial}/${MANIFEST_FILE}`, renderManifest({ ...manifest, files: all }));
  const path = commitCheckpoint(directory, manifest.step);
  if (keepLast !== undefined) pruneCheckpoints(directory, [path, ...keep], keepLast);
}

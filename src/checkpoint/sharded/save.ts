/**
 * Saving a sharded checkpoint: every rank writes what it holds, rank 0 the manifest, and a rename makes it one. Files are
 * named and annotated as PyTorch's `HuggingFaceStorageWriter(save_distributed=True)` does (`torch/distributed/checkpoint/
 * hf_storage.py`), so PyTorch reads them too.
 *
 * Invariant: checkpoints that were complete before stay complete, whatever fails here.
 *
 * @module
 */
import { requireKnownKeys } from "../../config/known_keys.ts";
import { lockFolder } from "../../locks/folder_lock.ts";
import { float32 } from "../../dtype.ts";
import { removeQuietly } from "../../runtime/files.ts";
import { numelOf } from "../../shape.ts";
import type { WrittenFile } from "../format/pieces.ts";
import { elementPieces } from "../state_dict/transfer.ts";
import { completeCheckpoint } from "./complete.ts";
import { beginCheckpoint } from "./directory.ts";
import { planSave, SAVE_OPTIONS, type SaveCheckpointOptions, type SavedCheckpoint } from "./save_plan.ts";
import { writeShardFiles } from "./shard_files.ts";

/**
 * Saves `checkpoint-<step>`. Every rank must call it, between steps.
 *
 * @returns the checkpoint's path and size
 * @throws {FileError} if this rank cannot write (full disk, no permission); {@link CollectiveError} on the others, naming
 *   the rank and its error. What was written is removed, and earlier checkpoints are as they were
 * @throws {FileError} with code `EBUSY` if another training is writing in the directory; {@link CollectiveError} on the others
 * @throws {ArgumentError} if step or keepLast make no sense, or the state holds what JSON does not keep
 * @example
 * ```ts ignore
 * await saveCheckpoint({ directory: "out/checkpoints", step, model, optimizer, group, state: { loader: loader.state() } });
 * ```
 */
export async function saveCheckpoint(options: SaveCheckpointOptions): Promise<SavedCheckpoint> {
  requireKnownKeys("save a checkpoint", options, SAVE_OPTIONS);
  const { directory, step, group } = options;
  const { label, path, partial, sections, completion } = planSave(options);
  using locks = new DisposableStack(); // gives the lock up too where another rank fails meanwhile
  const lock = await group.together(label, async () => {
    return group.rank === 0 ? locks.use(await lockFolder(directory)) : undefined;
  });
  try {
    await group.together(label, () => lock !== undefined && beginCheckpoint(directory, step));
    const written = await group.together(
      label,
      () =>
        writeShardFiles(sections, partial, group.rank, ({ source, local, box }) => {
          return elementPieces(source, local, numelOf(box.sizes), float32);
        }),
    );
    const texts = group.exchangeText(JSON.stringify([...written]), label);
    const files = new Map(texts.flatMap((text): readonly (readonly [string, WrittenFile])[] => JSON.parse(text)));
    return await group.together(label, () => {
      if (group.rank === 0) completeCheckpoint(completion(), files);
      return { path, byteLength: [...files.values()].reduce((sum, file) => sum + file.byteLength, 0) };
    });
  } catch (error) {
    if (group.rank === 0) removeQuietly(partial);
    throw error;
  }
}

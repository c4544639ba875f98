/**
 * Saving into a folder of each host, which no other host sees: each folder gets the files of its own ranks, and all else of the
 * checkpoint. With the files of the other hosts it is the checkpoint that `save.ts` writes.
 *
 * @module
 */
import { float32 } from "../../dtype.ts";
import { removeQuietly } from "../../runtime/files.ts";
import { numelOf } from "../../shape.ts";
import type { WrittenFile } from "../format/pieces.ts";
import { elementPieces } from "../state_dict/transfer.ts";
import { completeCheckpoint } from "./complete.ts";
import { beginCheckpoint } from "./directory.ts";
import { planSave, type SaveCheckpointOptions } from "./save_plan.ts";
import { writeShardFiles } from "./shard_files.ts";

/**
 * Saves `checkpoint-<step>` on each host. Every rank must call it, between steps.
 *
 * @param isFirst true on one rank of each host: it makes the folder and completes it
 * @throws {FileError} if this rank cannot write; `CollectiveError` on the others
 */
export async function saveOnHosts(options: SaveCheckpointOptions, isFirst: boolean): Promise<void> {
  const { directory, step, group } = options;
  const { label, partial, sections, completion } = planSave(options);
  try {
    await group.together(label, () => isFirst && beginCheckpoint(directory, step));
    const written = await group.together(label, () => {
      return writeShardFiles(sections, partial, group.rank, ({ source, local, box }) => {
        return elementPieces(source, local, numelOf(box.sizes), float32);
      });
    });
    const texts = group.exchangeText(JSON.stringify([...written]), label);
    const files = new Map(texts.flatMap((text): readonly (readonly [string, WrittenFile])[] => JSON.parse(text)));
    await group.together(label, () => isFirst && completeCheckpoint(completion(), files));
  } catch (error) {
    if (isFirst) removeQuietly(partial);
    throw error;
  }
}

/** Ranks of which one stops all while rank 0 takes a folder. @module */
import { existsSync } from "node:fs";
import { asyncSave, CheckpointStager, saveCheckpoint, saveHfDirectory } from "../../doors/checkpoint.ts";
import { LOCK_FILE } from "../../src/locks/folder_lock.ts";
import { buildModel } from "../../src/models/registry.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { TINY_LLAMA } from "../checkpoint/bed.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** A function that locks a folder and writes in it. */
export type Saving = "saveCheckpoint" | "asyncSave" | "saveHfDirectory";

/** Milliseconds in each call of rank 1 for rank 0 to take the folder. */
const LOOK_MS = 300;

/** The error of the save, and true if the folder is locked behind it. */
export async function stopWhileLocked(
  { rank, group, device }: WorldRank,
  [saving, directory]: readonly [Saving, string],
): Promise<{ readonly error: string; readonly isHeld: boolean }> {
  const isHeld = (): boolean => existsSync(`${directory}/${LOCK_FILE}`);
  const model = buildModel(device, TINY_LLAMA);
  initializeParameters(model, 1);
  if (rank > 0) {
    const pause = new Int32Array(new SharedArrayBuffer(4));
    group.observe(() => {
      for (const end = performance.now() + LOOK_MS; performance.now() < end && !isHeld();) Atomics.wait(pause, 0, 0, 1);
      if (isHeld()) throw new Error("rank 1 stops");
    });
  }
  const options = { directory, step: 1, model, group, state: {} };
  using stager = new CheckpointStager(device);
  try {
    if (saving === "saveCheckpoint") await saveCheckpoint(options);
    else if (saving === "asyncSave") await asyncSave({ ...options, stager });
    else await saveHfDirectory(model, directory, group);
    return { error: "", isHeld: isHeld() };
  } catch (error) {
    group.abort(String(error));
    return { error: String(error), isHeld: isHeld() };
  }
}

rankFunctions(import.meta.url, { stopWhileLocked });

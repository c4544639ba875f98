/**
 * Room for optimizer states outside of memory: what a pool is, and how one in a file is opened.
 *
 * @module
 */
import type { Device } from "./device.ts";

/** Addresses that nothing computes at: bytes are copied in and out. */
export interface StatePool extends Pick<Device, "name" | "allocator" | "copyIn" | "copyOut">, Disposable {}

/**
 * Opens a pool in a file of its own on this rank's disk, for `cpuOffloadPolicy`. The file has no name once it is open: so no other
 * process sees it, and its room is free again when it is disposed or the process ends, however that happens.
 *
 * @param directory where the file lies: a local disk, best an NVMe one
 * @throws {FileError} if no file can be made there
 * @example
 * ```ts
 * import { AdamW, cpuOffloadPolicy, fullyShard, launch } from "fullyshard";
 * import { openFilePool } from "fullyshard/device";
 * import { initializeParameters, Linear } from "fullyshard/nn";
 * await using run = await launch();
 * using optimizerStates = await openFilePool("/tmp");
 * const layer = new Linear(run.device, 64, 64);
 * fullyShard(layer, { mesh: run.mesh, offloadPolicy: cpuOffloadPolicy({ optimizerStates }) });
 * initializeParameters(layer, 0);
 * const optimizer = new AdamW(layer.parameters());
 * if (optimizer.stateBytes !== optimizerStates.allocator.stats.inUse) throw new Error("not in the file");
 * optimizer.dispose();
 * ```
 */
export async function openFilePool(directory: string): Promise<StatePool> {
  const { FilePool } = await import("./file_pool.ts");
  return new FilePool(directory);
}

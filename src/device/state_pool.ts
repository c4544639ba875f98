/**
 * Room for optimizer states outside of memory: what a pool is, and how one in a file is opened.
 *
 * @module
 */
import { Allocator } from "./allocator.ts";
import type { Device } from "./device.ts";

/** One past the last address of a pool: beyond any disk, and exact as a number. */
const END = 2 ** 52;

/** The allocator of a pool's addresses. */
export function poolAllocator(name: string): Allocator {
  return new Allocator(name, 0, END);
}

/** Addresses that nothing computes at: bytes are copied in and out. */
export interface StatePool extends Pick<Device, "name" | "allocator" | "copyIn" | "copyOut">, Disposable {}

/** A pool that holds nothing and counts what it would: reads give zeros. For dry runs. */
export function countingPool(name: string): StatePool {
  const copyOut = (dst: Uint8Array): void => void dst.fill(0);
  return { name, allocator: poolAllocator(name), copyIn: () => {}, copyOut, [Symbol.dispose]: () => {} };
}

/**
 * Opens a pool in a file of its own on this rank's disk, for `cpuOffloadPolicy`. The file has no name once it is open,
 * so no other process sees it. Its room is free again when the pool is disposed or the process ends, however the
 * process ends.
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

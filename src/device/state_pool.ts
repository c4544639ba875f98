/**
 * Pools of optimizer states outside of memory, and the function that opens one in a file.
 *
 * @module
 */
import { Allocator } from "./allocator.ts";
import type { Device } from "./device.ts";
import type { MemoryPlace } from "./offload.ts";
import { PLAIN_TRAITS } from "./traits.ts";

/** One past the last address of a pool: beyond any disk, and exact as a number. */
const END = 2 ** 52;

/** The allocator of a pool's addresses. */
export function poolAllocator(name: string): Allocator {
  return new Allocator(name, 0, END);
}

/** Storage with addresses: bytes are copied in and out, and no kernel computes there. */
export interface StatePool extends Pick<Device, "name" | "allocator" | "copyIn" | "copyOut">, Disposable {}

/** A pool as the owner of memory that is copied from and to devices. */
export function ownerOf(pool: StatePool): MemoryPlace["device"] {
  return {
    traits: PLAIN_TRAITS,
    copyIn: (dst, src) => pool.copyIn(dst, src),
    copyOut: (dst, src) => pool.copyOut(dst, src),
  };
}

/** A pool for dry runs that stores nothing and counts the bytes; reads give zeros. */
export function countingPool(name: string): StatePool {
  const copyOut = (dst: Uint8Array): void => void dst.fill(0);
  return { name, allocator: poolAllocator(name), copyIn: () => {}, copyOut, [Symbol.dispose]: () => {} };
}

/**
 * Opens a pool in a file of its own on this rank's disk, for `cpuOffloadPolicy`. The file has no name once it is open, so no
 * other process sees it. Its disk space is freed when the pool is disposed, or when the process ends in any way.
 *
 * @param directory directory of the file: a local disk, best an NVMe disk
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

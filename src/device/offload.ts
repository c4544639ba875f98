/**
 * Memory of the host for what is offloaded: a device of its own beside another one, with its own addresses, accounting and
 * kernels, so that what lies there is updated where it is. What is computed with elsewhere is copied there and back.
 *
 * @module
 */
import { type Device, type DevicePtr, devicePtr } from "./device.ts";
import type { MemoryStats } from "./allocator.ts";

/** What the host memory beside a device is called. */
export const POOL_NAME = "host";

/** Bytes that a copy from one device to another takes at once on its way. */
const PIECE_BYTES = 2 ** 20;

/** A place in the memory of a device. */
export interface MemoryPlace {
  /** What the memory belongs to. */
  readonly device: Pick<Device, "copyIn" | "copyOut" | "copyOutPastCaches" | "copyPinned" | "bytesInPlace">;
  /** The first byte. */
  readonly ptr: DevicePtr;
}

/** Copies bytes between the memories of two devices: by one of them on its own if it can, else by way of host bytes, piece by piece. */
export function copyAcross(to: MemoryPlace, from: MemoryPlace, byteLength: number): void {
  for (const { device } of [to, from]) if (device.copyPinned?.(to, from, byteLength) === true) return;
  const piece = new Uint8Array(Math.min(PIECE_BYTES, byteLength));
  for (let done = 0; done < byteLength; done += piece.byteLength) {
    const part = piece.subarray(0, Math.min(piece.byteLength, byteLength - done));
    from.device.copyOut(part, devicePtr(from.ptr + done));
    to.device.copyIn(devicePtr(to.ptr + done), part);
  }
}

/** The host memory beside a device; it is opened when it is first used. */
export class OffloadPool {
  readonly #open: () => Device;
  #device: Device | undefined;
  #isPinned = true;

  /**
   * Opens nothing yet.
   *
   * @param open makes the device; it must compute the same bits as the one beside it
   */
  constructor(open: () => Device) {
    this.#open = open;
  }

  /** The device that is the pool. */
  get device(): Device {
    return this.#device ??= this.#open();
  }

  /** Whether the device beside it may pin what it copies. */
  get isPinned(): boolean {
    return this.#isPinned;
  }

  /** Keeps all of it from being pinned from now on. */
  leaveUnpinned(): void {
    this.#isPinned = false;
  }

  /** What the pool's allocator has given out; undefined before the first use. */
  get stats(): MemoryStats | undefined {
    return this.#device?.allocator.stats;
  }

  /** Starts a new measurement of the peak. */
  resetPeak(): void {
    this.#device?.allocator.resetPeak();
  }

  /** Gives the memory back. */
  dispose(): void {
    this.#device?.dispose();
    this.#device = undefined;
  }
}

/**
 * Host memory for offloaded tensors: a device of its own beside another device, with its own addresses, accounting and kernels,
 * so that offloaded parameters are updated in place. Tensors that the other device computes with are copied between the two.
 *
 * @module
 */
import { type Device, type DevicePtr, devicePtr } from "./device.ts";
import type { MemoryStats } from "./allocator.ts";

/** Name of the host memory beside a device. */
export const POOL_NAME = "host";

/** Bytes that a copy between two devices moves at a time. */
const PIECE_BYTES = 2 ** 20;

/** An address in the memory of a device. */
export interface MemoryPlace {
  /** The device that owns the memory. */
  readonly device: Pick<Device, "copyIn" | "copyOut" | "traits">;
  /** The first byte. */
  readonly ptr: DevicePtr;
}

/** Copies bytes between the memories of two devices: by one of the devices if it can, else through host bytes, piece by piece. */
export function copyAcross(to: MemoryPlace, from: MemoryPlace, byteLength: number): void {
  for (const { device } of [to, from]) if (device.traits.copyPinned(to, from, byteLength)) return;
  const piece = new Uint8Array(Math.min(PIECE_BYTES, byteLength));
  for (let done = 0; done < byteLength; done += piece.byteLength) {
    const part = piece.subarray(0, Math.min(piece.byteLength, byteLength - done));
    from.device.copyOut(part, devicePtr(from.ptr + done));
    to.device.copyIn(devicePtr(to.ptr + done), part);
  }
}

/** The host memory beside a device, opened at its first use. */
export class OffloadPool {
  readonly #open: () => Device;
  #device: Device | undefined;
  #isPinned = true;

  /** A pool that is not open yet. @param open makes the device; it must compute the same bits as the device beside it */
  constructor(open: () => Device) {
    this.#open = open;
  }

  /** The device of the host memory; opens it at the first use. */
  get device(): Device {
    return this.#device ??= this.#open();
  }

  /** True if the device beside it may pin the memory. */
  get isPinned(): boolean {
    return this.#isPinned;
  }

  /** Forbids pinning from now on. */
  leaveUnpinned(): void {
    this.#isPinned = false;
  }

  /** Figures of the pool's allocator; undefined before the first use. */
  get stats(): MemoryStats | undefined {
    return this.#device?.allocator.stats;
  }

  /** Starts a new measurement of the peak. */
  resetPeak(): void {
    this.#device?.allocator.resetPeak();
  }

  /** Frees the memory. */
  dispose(): void {
    this.#device?.dispose();
    this.#device = undefined;
  }
}

/**
 * A device whose kernels check, from the table, every address before each call: it must lie in one block that the allocator has
 * given out, or be the device's status, and nothing that is written may overlap anything else but what the entry allows.
 *
 * @module
 */
import type { Allocator } from "../../src/device/allocator.ts";
import type { Device, DevicePtr, PortableMath } from "../../src/device/device.ts";
import { type Access, accessesOf } from "../../src/device/kernels/accesses.ts";
import { overlapOf } from "./overlap.ts";
import { type KernelCall, type Kernels, makeKernels } from "../../src/device/kernels/table.ts";
import type { OffloadPool } from "../../src/device/offload.ts";
import type { DeviceScalars } from "../../src/device/scalars.ts";
import { type DeviceStatus, STATUS_AREA_BYTES } from "../../src/device/status.ts";
import type { Streams } from "../../src/device/stream.ts";
import { type DeviceTraits, PLAIN_TRAITS } from "../../src/device/traits.ts";

function isCall(value: unknown): value is KernelCall {
  return typeof value === "function";
}

/** The device. */
export class CheckedDevice implements Device {
  readonly name: string;
  readonly mathName: string;
  readonly allocator: Allocator;
  readonly kernels: Kernels;
  readonly status: DeviceStatus;
  readonly scalars: DeviceScalars;
  readonly offload: OffloadPool;
  readonly streams: Streams;
  readonly traits: DeviceTraits = PLAIN_TRAITS;
  readonly math: PortableMath;
  readonly detail: string;
  /** Number of calls of each kernel. */
  readonly calls: Map<string, number> = new Map();
  readonly #device: Device;
  /** Bytes of each block by its address. */
  readonly #blocks = new Map<number, number>();

  /** @param device a new one, of which nothing was allocated yet */
  constructor(device: Device) {
    this.#device = device;
    this.name = device.name;
    this.mathName = device.mathName;
    this.status = device.status;
    this.scalars = device.scalars;
    this.offload = device.offload;
    this.streams = device.streams;
    this.math = device.math;
    this.detail = device.detail;
    this.allocator = device.allocator;
    this.#blocks.set(device.status.ptr, STATUS_AREA_BYTES);
    const { allocate, free } = device.allocator;
    this.allocator.allocate = (bytes, owner, alignment) => {
      const ptr = allocate.call(device.allocator, bytes, owner, alignment);
      this.#blocks.set(ptr, bytes);
      return ptr;
    };
    this.allocator.free = (ptr) => {
      this.#blocks.delete(ptr);
      free.call(device.allocator, ptr);
    };
    const kernels = new Map<string, unknown>(Object.entries(device.kernels));
    this.kernels = makeKernels((name, entry) => {
      const call = kernels.get(name);
      if (!isCall(call)) throw new Error(`no kernel '${name}'`);
      return (args) => {
        const accesses = accessesOf(entry, args, this.status.ptr);
        for (const access of accesses) this.#requireAllocated(name, access);
        const overlap = overlapOf(entry, accesses);
        if (overlap !== undefined) throw new Error(`${name}: ${overlap.map(describe).join(" overlaps ")}`);
        this.calls.set(name, (this.calls.get(name) ?? 0) + 1);
        call(args);
      };
    });
  }

  scratchBytes(kernel: string, args: Parameters<Device["scratchBytes"]>[1]): number {
    return this.#device.scratchBytes(kernel, args);
  }

  copyIn(dst: DevicePtr, src: Uint8Array): void {
    this.#device.copyIn(dst, src);
  }

  copyOut(dst: Uint8Array, src: DevicePtr): void {
    this.#device.copyOut(dst, src);
  }

  copy(dst: DevicePtr, src: DevicePtr, byteLength: number): void {
    this.#device.copy(dst, src, byteLength);
  }

  synchronize(): void {
    this.#device.synchronize();
  }

  dispose(): void {
    this.#device.dispose();
  }

  #requireAllocated(kernel: string, access: Access): void {
    const { address, byteLength } = access;
    if (byteLength === 0) return;
    for (const [start, bytes] of this.#blocks) {
      if (address >= start && address + byteLength <= start + bytes) return;
    }
    throw new Error(`${kernel}: ${describe(access)} lies in no block`);
  }
}

function describe({ parameter, direction, address, byteLength }: Access): string {
  return `'${parameter}' (${direction} ${byteLength} bytes at ${address})`;
}

/**
 * The contract of a device: memory, an allocator over it, a table of kernels, streams, and copies to and from the host. Work is
 * enqueued on streams in program order, and `synchronize` waits for all of it. On the CPU every call has finished when it
 * returns.
 *
 * @module
 */
import type { Allocator } from "./allocator.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import type { Arguments } from "./kernels/signature.ts";
import type { Kernels } from "./kernels/table.ts";
import type { OffloadPool } from "./offload.ts";
import type { DeviceScalars } from "./scalars.ts";
import type { DeviceStatus } from "./status.ts";
import type { Streams } from "./stream.ts";
import type { DeviceTraits } from "./traits.ts";
import { valueText } from "../words.ts";

/**
 * Brand of a device address.
 *
 * @internal
 */
export declare const deviceAddress: unique symbol;
/** An address in a device's memory, in bytes: an offset into a WASM memory, or a native address. 0 is no address. */
export type DevicePtr = number & { readonly [deviceAddress]: true };

function isDevicePtr(address: number): address is DevicePtr {
  return Number.isSafeInteger(address) && address >= 0;
}

/**
 * Makes an address of a number, e.g. an address plus an offset in bytes.
 *
 * @throws {InternalError} if it is not a safe non-negative integer
 */
export function devicePtr(address: number): DevicePtr {
  if (!isDevicePtr(address)) throw new InternalError(`${address} is no device address`);
  return address;
}

/**
 * Refuses what is no device.
 *
 * @param what is not done, e.g. `make a Parameter`
 * @throws {ArgumentError} with the value
 */
export function requireDevice(what: string, device: unknown): void {
  if (typeof device === "object" && device !== null && "allocator" in device && "traits" in device) return;
  throw new ArgumentError(
    `Cannot ${what} on ${valueText(device)}: expected a device first, as openDevice("cpu") or run.device gives it`,
  );
}

/** Address 0, for an optional kernel argument that is left out. */
export const NO_PTR: DevicePtr = devicePtr(0);

/**
 * Size in bytes from which copies and sums of an array bypass the processor's caches, where the device can: two ranks that each
 * read and write 16 MiB fill a last-level cache of 32 MiB twice. docs/performance.md has the gain.
 *
 * @internal
 */
export const PAST_CACHES_BYTES: number = 2 ** 24;

/** Functions of one number that give the same bits in every runtime, for host code whose results reach tensors. */
export interface PortableMath {
  /** e to the power of x. */
  exp(x: number): number;
  /** The natural logarithm. */
  log(x: number): number;
  /** The sine of x radians. */
  sin(x: number): number;
  /** The cosine of x radians. */
  cos(x: number): number;
  /** x to the power of y. */
  pow(x: number, y: number): number;
}

/** A device on which tensors live. */
export interface Device {
  /** `cpu:0`, `cuda:1`. */
  readonly name: string;
  /** Allocator of its memory. */
  readonly allocator: Allocator;
  /** Its functions for the entries of the table of kernels, by name. */
  readonly kernels: Kernels;
  /** Faults of its kernels. */
  readonly status: DeviceStatus;
  /** Numbers that the host sets and enqueued work reads. */
  readonly scalars: DeviceScalars;
  /** Its streams. Kernels, copies, allocations and frees are enqueued on the current one. */
  readonly streams: Streams;
  /** Its traits: kernels that it lacks, host access, graphs. */
  readonly traits: DeviceTraits;
  /** Host memory for offloaded tensors. */
  readonly offload: OffloadPool;
  /** Host functions with the same bits in every runtime. */
  readonly math: PortableMath;
  /** Name of the code that computes, e.g. `wasm` or `native`; checkpoints record it. */
  readonly mathName: string;
  /** The code that computes each kind of work, and the reason of the choice, for the log. */
  readonly detail: string;
  /** Bytes that a kernel's call allocates until it returns. */
  scratchBytes(kernel: string, args: Arguments): number;
  /** Copies host bytes into device memory. */
  copyIn(dst: DevicePtr, src: Uint8Array): void;
  /** Copies device memory into host bytes. */
  copyOut(dst: Uint8Array, src: DevicePtr): void;
  /** Copies within device memory; the ranges may overlap. */
  copy(dst: DevicePtr, src: DevicePtr, byteLength: number): void;
  /** Waits for all enqueued work. */
  synchronize(): void;
  /** Frees the device's memory and closes its libraries. */
  dispose(): void;
}

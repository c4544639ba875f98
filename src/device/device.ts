/**
 * What a device is: memory, an allocator over it, a kernel table, and copies to and from the host. Work is enqueued on streams
 * in program order; `synchronize` waits for it. On the CPU every call has finished when it returns.
 *
 * @module
 */
import type { Allocator } from "./allocator.ts";
import type { Attention } from "./attention.ts";
import { InternalError } from "../errors.ts";
import type { Trace } from "../runtime/trace.ts";
import type { DeviceGraphs } from "./graphs.ts";
import type { Arguments } from "./kernels/signature.ts";
import type { KernelName, Kernels } from "./kernels/table.ts";
import type { MemoryPlace, OffloadPool } from "./offload.ts";
import type { DeviceScalars } from "./scalars.ts";
import type { DeviceStatus } from "./status.ts";
import type { Streams } from "./stream.ts";

/**
 * Marks a number as an address of a device.
 *
 * @internal
 */
export declare const deviceAddress: unique symbol;
/** An address in a device's memory, in bytes: an offset into a WASM memory, or a native address. 0 is "none". */
export type DevicePtr = number & { readonly [deviceAddress]: true };

function isDevicePtr(address: number): address is DevicePtr {
  return Number.isSafeInteger(address) && address >= 0;
}

/**
 * Makes an address of a number, e.g. of one address plus an offset in bytes.
 *
 * @throws {InternalError} if it is no safe non-negative integer
 */
export function devicePtr(address: number): DevicePtr {
  if (!isDevicePtr(address)) throw new InternalError(`${address} is no device address`);
  return address;
}

/** "No address": an optional kernel argument left out. */
export const NO_PTR: DevicePtr = devicePtr(0);

/**
 * Bytes from which on an array that is copied or summed as a whole goes past the processor's caches, where the device can: two
 * ranks that read as much and write it fill a last cache of 32 MiB twice. docs/performance.md tells what that gains.
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

/** A device that tensors live on. */
export interface Device {
  /** `cpu:0`, `cuda:1`. */
  readonly name: string;
  /** The allocator of its memory. */
  readonly allocator: Allocator;
  /** The functions that the device computes with, by the names of the table. */
  readonly kernels: Kernels;
  /** Kernels that are not written for the device, which refuses to run them. @default none */
  readonly lacks?: ReadonlySet<KernelName>;
  /** What went wrong in its kernels. */
  readonly status: DeviceStatus;
  /** Numbers that its work reads and the host sets. */
  readonly scalars: DeviceScalars;
  /** The device's lines of work. Kernels, copies, allocations and frees are enqueued on the current one. */
  readonly streams: Streams;
  /** Captures work, to do it again by one call; undefined where there is nothing that does. */
  readonly graphs?: DeviceGraphs | undefined;
  /** Memory of the host for what is offloaded. */
  readonly offload: OffloadPool;
  /** Records every call of a kernel; undefined where nothing is traced. */
  readonly trace?: Trace | undefined;
  /** Host functions with the same bits in every runtime. */
  readonly math: PortableMath;
  /** The code that computes, e.g. `wasm` or `native`; recorded in checkpoints. */
  readonly mathName: string;
  /** Who computes attention, where there is a choice; recorded in checkpoints. @default own */
  readonly attention?: Attention | undefined;
  /** Which code computes what, and why it was chosen, for a log line. */
  readonly detail: string;
  /** Logits that a fused loss computes at a time, in elements: as many as make its products large. @default 2^20, of 4 MiB */
  readonly logitsAtOnce?: number | undefined;
  /** Bytes that a call of a kernel takes from the allocator until it returns. */
  scratchBytes(kernel: string, args: Arguments): number;
  /** Copies host bytes into device memory. */
  copyIn(dst: DevicePtr, src: Uint8Array): void;
  /** Copies device memory into host bytes. */
  copyOut(dst: Uint8Array, src: DevicePtr): void;
  /**
   * The bytes of its memory where they lie, in one part or several, to be read or written before anything else is enqueued. @default none
   * can be seen: they are copied out
   */
  bytesInPlace?(src: DevicePtr, byteLength: number): Iterable<Uint8Array>;
  /**
   * Copies from any address of the process to device memory past the processor's caches: for more bytes than these hold. The ranges
   * may not overlap. @default there are no such copies
   */
  copyPastCaches?(dst: DevicePtr, src: number, byteLength: number): void;
  /** Copies device memory into host bytes likewise. @default there are no such copies */
  copyOutPastCaches?(dst: Uint8Array, src: DevicePtr): void;
  /** Copies within device memory; the ranges may overlap. */
  copy(dst: DevicePtr, src: DevicePtr, byteLength: number): void;
  /**
   * Enqueues a copy between its memory and that of its {@link offload}, which it pins for that; returns false, with nothing done,
   * where it is not that or cannot be pinned. @default a copy goes by way of host bytes
   */
  copyPinned?(to: MemoryPlace, from: MemoryPlace, byteLength: number): boolean;
  /** Where device address 0 lies, if device memory lies in that of this process: at its address 0, or where a buffer begins. */
  readonly origin?: "native" | ArrayBufferLike;
  /** Waits for all enqueued work. */
  synchronize(): void;
  /** Releases the device's memory and libraries. */
  dispose(): void;
}

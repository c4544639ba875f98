/**
 * Traits: what some devices have and others lack. Code above the devices asks for a trait and never for a kind of device.
 *
 * @module
 */
import type { Trace } from "../runtime/trace.ts";
import { type Attention, OWN_ATTENTION } from "./attention.ts";
import type { DevicePtr } from "./device.ts";
import { type DeviceGraphs, type HostWork, NO_GRAPHS } from "./graphs.ts";
import type { KernelName } from "./kernels/table.ts";
import type { Pauses } from "./pauses.ts";
import type { MemoryPlace } from "./offload.ts";

/** Shows device memory to host code. See {@link DeviceTraits.hostViews}. */
export type HostViews = (src: DevicePtr, byteLength: number) => Iterable<Uint8Array>;

/** Copies that bypass the processor's caches, for arrays larger than these. The ranges may not overlap. */
export interface NonTemporalCopies {
  /** Copies `byteLength` bytes from any address of the process to device memory. */
  copy(dst: DevicePtr, src: number, byteLength: number): void;
  /** Copies device memory into host bytes. */
  copyOut(dst: Uint8Array, src: DevicePtr): void;
}

/** Traits of a device besides memory, kernels and streams. */
export interface DeviceTraits {
  /** Backend that joins several ranks with such a device, unless another is named. */
  readonly backend: "shm" | "nccl";
  /** Kernels that the device does not implement, and refuses. */
  readonly missingKernels: ReadonlySet<KernelName>;
  /** Code that computes attention, where there is a choice; checkpoints record it. */
  readonly attention: Attention;
  /** Number of logits that a fused loss computes at a time, large enough for efficient products. */
  readonly logitsPerChunk: number;
  /**
   * Place of device address 0, if device memory lies in this process: its address 0 (`native`), or the beginning of a buffer. Undefined
   * for memory elsewhere.
   */
  readonly hostBase: "native" | ArrayBufferLike | undefined;
  /**
   * Views of device memory, in one or several parts, which may be read and written before any other work is enqueued. Undefined
   * where host code must copy.
   */
  readonly hostViews: HostViews | undefined;
  /** Copies past the processor's caches; undefined where there are none. */
  readonly nonTemporal: NonTemporalCopies | undefined;
  /**
   * Enqueues a copy between the device's memory and its offload pool, which it pins first. Returns false, with nothing done, for
   * other memory, if pinning fails, or where copies go through host bytes.
   */
  readonly copyPinned: (to: MemoryPlace, from: MemoryPlace, byteLength: number) => boolean;
  /** Host work that is allowed while device work is being captured. */
  readonly hostWork: HostWork;
  /** Captures work as graphs; undefined where the device has none. */
  readonly graphs: DeviceGraphs | undefined;
  /** What the host does between kernels; undefined where it does not compute them itself. */
  readonly pauses: Pauses | undefined;
  /** Records every call of a kernel; undefined without a trace. */
  readonly trace: Trace | undefined;
}

/** Traits of a device in host memory whose memory host code can only copy, not map. */
export const PLAIN_TRAITS: DeviceTraits = {
  backend: "shm",
  missingKernels: new Set(),
  attention: OWN_ATTENTION,
  logitsPerChunk: 2 ** 20, // 4 MiB of float32, which the caches of a CPU hold
  hostBase: undefined,
  hostViews: undefined,
  nonTemporal: undefined,
  copyPinned: () => false,
  hostWork: NO_GRAPHS,
  graphs: undefined,
  pauses: undefined,
  trace: undefined,
};

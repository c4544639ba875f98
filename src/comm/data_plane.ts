/**
 * The contract of a data plane, which moves tensors between the ranks of a group. `process_group.ts` above it checks
 * arguments, numbers calls and announces them; the control plane knows which ranks live. Every method but `dispose` is
 * collective, unless it says otherwise, and returns a {@link Work}.
 *
 * Note [Order by epochs]: each rank writes its part of a {@link Window} between `beginWrite` and `endWrite`, and gathers
 * between writes. Where peers read a rank's memory directly:
 * 1. `beginWrite` announces that this rank has finished gathering the present epoch, and waits until every peer has
 *   announced it: nothing is overwritten while a peer reads it.
 * 2. `endWrite` publishes the next epoch.
 * 3. `gather` waits until every peer has published this rank's epoch, so only the first gather after an update waits.
 *
 * @module
 */
import type { DType } from "../dtype.ts";
import type { BlockSource } from "../device/buffer.ts";
import type { Device, DevicePtr } from "../device/device.ts";
import type { ControlPlane } from "./control_plane.ts";
import type { StagingOptions } from "./data/sizes.ts";
import type { Backend } from "./registry.ts";

/** One collective under way. */
export interface Work {
  /** Orders all later work of this rank after the collective. */
  wait(): void;
  /**
   * Moves on with a transfer, without waiting, where the host moves it. A rank that computes while messages are under way calls it
   * between kernels. Undefined where nothing is left to the host.
   */
  advance?(): void;
  /** True if memory that was given to the call must be left alone until {@link wait} has returned. @default false */
  readonly endsInWait?: boolean;
}

/** A collective that has already finished. */
export const FINISHED: Work = { wait(): void {} };

/** A {@link Work} that ends with everything enqueued so far on the current stream. */
export function enqueuedWork({ streams }: Device): Work {
  const end = streams.current.record();
  return { wait: () => streams.current.wait(end) };
}

/** One rank's slice of a flat array, in elements. */
export interface ElementRange {
  /** First element. */
  readonly offset: number;
  /** Number of elements; may be 0. */
  readonly length: number;
}

/** Memory in parts, one for each rank: a rank writes its own part, and gathers the parts of all. */
export interface Window {
  /** This rank's part, in device memory; written only between {@link beginWrite} and {@link endWrite}. */
  readonly pointer: DevicePtr;
  /** Waits until no peer reads this rank's part. See Note [Order by epochs]. */
  beginWrite(): void;
  /** Publishes this rank's part. Never waits. */
  endWrite(): void;
  /** Copies every rank's part to `dst`, rank r's to byte `offsets[r]`, once all ranks have published. */
  gather(dst: DevicePtr, offsets: readonly number[]): Work;
  /** Frees the window. Ranks may call it in any order, also after a failure; it never waits. */
  dispose(): void;
}

/** Arguments of a reduce-scatter: a flat array is summed over ranks, and each rank keeps one slice of the sum. */
export interface ReduceScatterArgs {
  /** The flat array in device memory, with the slices of all ranks. */
  readonly src: DevicePtr;
  /** dtype of `src`. Sums are float32; a plane whose `sums` is `any` may round them to this dtype while they travel. */
  readonly dtype: DType;
  /** Each rank's slice, in elements from `src`; they ascend and do not overlap. */
  readonly slices: readonly ElementRange[];
  /** Address at which the sums of this rank's slice begin. */
  readonly dst: DevicePtr;
  /** dtype of `dst`. */
  readonly dstDtype: DType;
  /** Address of a float32 factor, applied once, after the sum. @default 1 */
  readonly scale?: DevicePtr | undefined;
  /** Adds to `dst` instead of overwriting it. */
  readonly accumulate: boolean;
}

/** Arguments of an all-reduce, in place. */
export interface AllReduceArgs {
  /** The elements, in place. */
  readonly ptr: DevicePtr;
  /** Number of elements. */
  readonly n: number;
  /** float32, bfloat16 or float16 (summed as float32), or int64 for exact sums. */
  readonly dtype: DType;
  /** Operation that combines the ranks' elements. */
  readonly op: "sum" | "max";
  /** Address of a float32 factor, applied once, after the sum; floats only. @default 1 */
  readonly scale?: DevicePtr | undefined;
}

/** A message from this rank to a peer, or from a peer to this rank. */
export interface Transfer {
  /** Direction of the message. */
  readonly kind: "send" | "receive";
  /** Address of the bytes to send, or of the memory that receives them. */
  readonly ptr: DevicePtr;
  /** Length of the message. */
  readonly byteLength: number;
  /** The other rank. */
  readonly peer: number;
  /**
   * The message in words, e.g. `activations of stage 0, micro-batch 2`. Ranks that share memory compare it where both give one.
   *
   * @default nothing is compared but the length
   */
  readonly tag?: string;
}

/**
 * Memory into which one unit gathers, for transports that move registered memory best. All ranks allocate and free in one
 * order, so each gather is between the same places on every rank.
 */
export interface GatherMemory extends BlockSource {
  /** True if allocating `byteLength` bytes now would register memory, which is collective. */
  grows(byteLength: number): boolean;
}

/** The data plane of a group. */
export interface DataPlane {
  /** `loopback`, `shm`, … */
  readonly kind: string;
  /** `rank-order` if sums add the ranks in the order 0, 1, 2, …, so that their bits follow from the inputs alone. */
  readonly sums: "rank-order" | "any";
  /** Bytes that each rank's allocator counts as in use, although ranks of a host share them. */
  readonly stagingBytes: number;
  /** Ranks that share them. @default all ranks of the group */
  readonly stagingRanks?: number;
  /** Sizes by which staging is divided, which a dry run takes too. @default the sizes that are usual */
  readonly staging?: StagingOptions;
  /**
   * Opens a window; `byteLengths[r]` is the length of rank r's part, the same list on all ranks. Contents are zeros, and
   * published.
   *
   * @param unit name of the unit, for messages
   */
  openWindow(byteLengths: readonly number[], unit: string): Window;
  /** True if windows and gathered parameters lie in memory that ranks register with each other. @default false */
  readonly registersMemory?: boolean;
  /** The backend whose memory a dry run allocates to stand for this plane. */
  readonly dryBackend: Backend;
  /** True if calls are only enqueued on the device's streams: the host does no part of them. @default false */
  readonly isEnqueued?: boolean;
  /** Memory into which one unit gathers; undefined where any device memory will do. Not collective. */
  gatherMemory?(): GatherMemory | undefined;
  /** Number of the registered slot that begins at `ptr`, the same on all ranks; 0 for other memory. */
  placeOf?(ptr: DevicePtr): number;
  /** Sums over ranks; each rank keeps the sums of its own slice. */
  reduceScatter(args: ReduceScatterArgs): Work;
  /** Combines over ranks, in place; every rank gets the same bits. */
  allReduce(args: AllReduceArgs): Work;
  /** Copies `byteLength` bytes of every rank, from its `src`, to `dst + rank * byteLength`. */
  allGather(dst: DevicePtr, src: DevicePtr, byteLength: number): Work;
  /** Copies `byteLength` bytes of rank `root` to the same address on every rank. */
  broadcast(ptr: DevicePtr, byteLength: number, root: number): Work;
  /**
   * Begins all transfers, which go side by side, and waits for no message: memory that is sent or received must be left alone until
   * {@link Work.wait}. Not collective: only senders and receivers call it, in one order for each pair.
   */
  transfer(transfers: readonly Transfer[]): Work;
  /**
   * Opens the data plane of a group that was split from this one, over its control plane. All ranks of this group call it,
   * each for its part.
   */
  split(control: ControlPlane): DataPlane;
  /** Frees what the plane holds. */
  dispose(): void;
}

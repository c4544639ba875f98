/**
 * The contract of a data plane: what moves tensors between the ranks of a group. Argument checks, sequence numbers and
 * announcements lie above it, in `process_group.ts`; who is there and who lives, in its control plane. Every method but
 * `dispose` is collective, unless it says otherwise, and gives a {@link Work}.
 *
 * Note [Order by epochs]: a {@link Window} is written between `beginWrite` and `endWrite` and gathered in between writes.
 * A gather gives what all ranks have published last, and nothing is overwritten while a peer reads it. Where peers read a
 * rank's memory themselves, `beginWrite` says "this rank has finished gathering the present contents" and waits until
 * every peer has said so; `endWrite` publishes the next epoch; `gather` waits until every peer has published the epoch
 * that this rank is in. So it waits only at the first use after an update.
 *
 * @module
 */
import type { DType } from "../dtype.ts";
import type { BlockSource } from "../device/buffer.ts";
import type { Device, DevicePtr } from "../device/device.ts";
import type { ControlPlane } from "./control_plane.ts";

/** One collective under way. */
export interface Work {
  /** Whether it has finished. On the CPU planes it has when the call returns. */
  readonly done: boolean;
  /** Orders all later work of this rank after it. */
  wait(): void;
}

/** A collective that has finished already. */
export const FINISHED: Work = { done: true, wait(): void {} };

/** All that has been enqueued on the stream under way. */
export function enqueuedWork({ streams }: Device): Work {
  const end = streams.current.record();
  return { done: end.done, wait: () => streams.current.wait(end) };
}

/** One rank's contiguous share of a flat array, in elements. */
export interface ElementRange {
  /** First element. */
  readonly offset: number;
  /** Number of elements; may be 0. */
  readonly length: number;
}

/** Memory that one rank writes and every rank of the group can gather from. */
export interface Window {
  /** This rank's part, in device memory. Written only between {@link beginWrite} and {@link endWrite}. */
  readonly pointer: DevicePtr;
  /** Waits until no peer reads this rank's part any more. See Note [Order by epochs]. */
  beginWrite(): void;
  /** Publishes what was written. Waits for nobody. */
  endWrite(): void;
  /** Copies every rank's part to `dst`, rank r's to byte `offsets[r]`, once all have published. */
  gather(dst: DevicePtr, offsets: readonly number[]): Work;
  /** Releases it; ranks may in any order. Waits for nobody, and works after a failure too. */
  dispose(): void;
}

/** A sum over ranks of one flat array, of which each rank keeps one slice. */
export interface ReduceScatterArgs {
  /** The flat array in device memory, all slices. */
  readonly src: DevicePtr;
  /** dtype of `src`; sums are float32 whatever it is, but where `sums` is `any` they may be rounded to it on their way. */
  readonly dtype: DType;
  /** Each rank's slice, in elements from `src`; they ascend and do not overlap. */
  readonly slices: readonly ElementRange[];
  /** Where the sums of this rank's slice go (the first element). */
  readonly dst: DevicePtr;
  /** dtype of `dst`. */
  readonly dstDtype: DType;
  /** Address of a float32 factor, applied once, after the sum. @default 1 */
  readonly scale?: DevicePtr | undefined;
  /** Whether `dst` is added to instead of overwritten. */
  readonly accumulate: boolean;
}

/** A sum or maximum over ranks, in place. */
export interface AllReduceArgs {
  /** The elements, in place. */
  readonly ptr: DevicePtr;
  /** Number of elements. */
  readonly n: number;
  /** float32, bfloat16 or float16 (summed as float32), or int64 for exact sums. */
  readonly dtype: DType;
  /** How elements of the ranks become one. */
  readonly op: "sum" | "max";
  /** Address of a float32 factor, applied once, after the sum; floats only. @default 1 */
  readonly scale?: DevicePtr | undefined;
}

/** One message between this rank and another. */
export interface Transfer {
  /** Which way it goes. */
  readonly kind: "send" | "receive";
  /** Where the bytes lie, or come to lie. */
  readonly ptr: DevicePtr;
  /** How many there are. */
  readonly byteLength: number;
  /** The other rank. */
  readonly peer: number;
}

/**
 * Memory for what one unit gathers, where a transport moves that best between memory which its ranks have registered with each
 * other. All ranks take and give back in one order, so that a gather is between the same places on each.
 */
export interface GatherMemory extends BlockSource {
  /** Whether to allocate so many bytes now is collective, as there is not enough that is registered. */
  grows(byteLength: number): boolean;
}

/** Moves tensors between the ranks of a group. */
export interface DataPlane {
  /** `loopback`, `shm`, … */
  readonly kind: string;
  /** Whether sums take the ranks in the order 0, 1, 2, …, so that their bits follow from the inputs alone. */
  readonly sums: "rank-order" | "any";
  /** Bytes that this rank's allocator counts as in use although all ranks of the group share them. */
  readonly stagingBytes: number;
  /**
   * Opens a window; `byteLengths[r]` is rank r's part, the same list on all ranks. Contents start as zeros, published.
   *
   * @param unit what it holds, for messages
   */
  openWindow(byteLengths: readonly number[], unit: string): Window;
  /** Whether windows and what is gathered lie in memory that ranks register with each other. @default false */
  readonly registersMemory?: boolean;
  /** Memory for what one unit gathers; without it any of the device's serves as well. Not collective. */
  gatherMemory?(): GatherMemory | undefined;
  /** A number of the place in registered memory that begins there, the same on all ranks; 0 for any other. */
  placeOf?(ptr: DevicePtr): number;
  /** Sums over the ranks; each gets the sums of its own elements. */
  reduceScatter(args: ReduceScatterArgs): Work;
  /** Every rank gets the same bits. */
  allReduce(args: AllReduceArgs): Work;
  /** Each rank's `byteLength` bytes from `src`, to `dst + rank * byteLength`. */
  allGather(dst: DevicePtr, src: DevicePtr, byteLength: number): Work;
  /** The bytes of rank `root`, to the same place on every rank. */
  broadcast(ptr: DevicePtr, byteLength: number, root: number): Work;
  /** Makes all transfers, side by side. Not collective: only who sends and who receives call it, in one order for each pair. */
  transfer(transfers: readonly Transfer[]): Work;
  /** The same for a group that was split from this one's: over its control plane. All ranks of this one call it, each for its part. */
  split(control: ControlPlane): DataPlane;
  /** Gives up what the plane holds. */
  dispose(): void;
}

/**
 * What moves bytes for a process group. A transport knows ranks, memory and order; argument checks and sequence numbers
 * lie above it, in `process_group.ts`. Every call is announced before it is made, so that ranks which call different
 * things find out and name both.
 *
 * Note [Order by epochs]: a {@link GatherWindow} is written between `beginWrite` and `endWrite` and gathered in between
 * writes. `beginWrite` says "this rank has finished gathering the present contents" and waits until every peer has
 * said so; `endWrite` publishes the next epoch; `gather` waits until every peer has published the epoch that this rank
 * is in. So a gather waits only at the first use after an update, and nothing is overwritten while a peer reads it.
 *
 * @module
 */
import type { DType } from "../dtype.ts";
import type { DevicePtr } from "../device/device.ts";
import type { Work } from "./work.ts";

/** One rank's contiguous share of a flat array, in elements. */
export interface Run {
  /** First element. */
  readonly offset: number;
  /** Number of elements; may be 0. */
  readonly length: number;
}

/** Memory that one rank writes and every rank of the group can gather from. */
export interface GatherWindow {
  /** This rank's part, in device memory. Written only between {@link beginWrite} and {@link endWrite}. */
  readonly pointer: DevicePtr;
  /** Bytes of each rank's part, by rank. */
  readonly byteLengths: readonly number[];
  /** Waits until no peer reads this rank's part any more. See Note [Order by epochs]. */
  beginWrite(): void;
  /** Publishes what was written. */
  endWrite(): void;
  /**
   * Copies every rank's part to `dst`, rank r's to byte `offsets[r]`, once all have published.
   *
   * @param label what is gathered, for messages: e.g. `layers.7 (forward)`
   */
  gather(dst: DevicePtr, offsets: readonly number[], label: string): Work;
  /** Releases it; every rank must, in the same order. Waits for nobody, and works after a failure too. */
  dispose(): void;
}

/** A sum over ranks of one flat array, of which each rank keeps its run. */
export interface ReduceScatterArgs {
  /** The flat array in device memory, all runs. */
  readonly src: DevicePtr;
  /** dtype of `src`; sums are float32 in rank order whatever it is. */
  readonly dtype: DType;
  /** Each rank's run, in elements from `src`; they ascend and do not overlap. */
  readonly runs: readonly Run[];
  /** Where this rank's run goes (its first element). */
  readonly dst: DevicePtr;
  /** dtype of `dst`. */
  readonly dstDtype: DType;
  /** Factor applied once, after the sum. */
  readonly scale: number;
  /** Whether `dst` is added to instead of overwritten. */
  readonly accumulate: boolean;
}

/** How an all-reduce combines. */
export type AllReduceOp = "sum" | "max";

/** What a rank can call; announced by its place in this list. */
export const CALL_KINDS = [
  "all-reduce",
  "reduce-scatter",
  "all-gather",
  "broadcast",
  "barrier",
  "exchange",
  "gather",
  "write",
  "open window",
  "split",
] as const;
/** Name of a collective, as messages spell it. */
export type CallKind = typeof CALL_KINDS[number];

/** Moves bytes between the ranks of a group. All methods but `abort` and `dispose` are collective: every rank calls them in one order. */
export interface Transport {
  /** `loopback`, `shm`, … */
  readonly kind: string;
  /** The group's name, for messages. */
  readonly name: string;
  /** This rank's place in the group. */
  readonly rank: number;
  readonly size: number;
  /** Bytes that this rank's allocator counts as in use although all ranks of the group share them: staging. */
  readonly sharedBytes: number;
  /** Rank in the first group, of each rank of this one: what messages name. */
  readonly worldRanks: readonly number[];
  /** Seconds after which a wait for a live rank fails. */
  timeoutSeconds: number;
  /**
   * Announces the call that comes next. Compares it with what the ranks announced that came here before, and so does
   * every rank that comes later: any two are compared once, and nobody waits for it.
   *
   * @param sequence number of the call in this group, from 1, without gaps
   * @param count elements (bytes where there is no dtype)
   * @param detail a hash of what else must agree: runs, root, operation
   * @throws {CollectiveError} on every rank, naming the calls, if they differ
   */
  announce(
    sequence: number,
    kind: CallKind,
    dtype: DType | undefined,
    count: number,
    detail: number,
    label: string,
  ): void;
  /** Opens a window; `byteLengths[r]` is rank r's part and the same list on all ranks. Contents start as zeros, published. */
  openWindow(byteLengths: readonly number[], label: string): GatherWindow;
  reduceScatter(args: ReduceScatterArgs): Work;
  /** In place; every rank gets the same bits: a sum in rank order (float32 or int64), then scaled (float32). */
  allReduce(ptr: DevicePtr, n: number, dtype: DType, op: AllReduceOp, scale: number): Work;
  /** Each rank's `byteLength` bytes from `src`, to `dst + rank * byteLength`. */
  allGather(dst: DevicePtr, src: DevicePtr, byteLength: number): Work;
  broadcast(ptr: DevicePtr, byteLength: number, root: number): Work;
  /** Returns once every rank has called it. */
  barrier(): void;
  /** Host bytes of each rank, of any and unequal lengths. */
  exchange(bytes: Uint8Array): readonly Uint8Array[];
  /** A transport over some of the ranks; `ranks` is this rank's own list, ascending. Collective over all ranks of this one. */
  split(ranks: readonly number[], name: string): Transport;
  /** Makes every rank's present and future waits fail with `reason`; the first reason is kept. Never blocks. */
  abort(reason: string): void;
  /** Leaves the group: a rank that still waits for this one fails and says so. Never blocks. */
  dispose(): void;
}

/**
 * The data plane over staging buffers, for `shm` and `loopback` alike. All data goes in rounds through slots: each
 * rank writes its own and reads the others'. Announced sizes fix the number of rounds, so it is the same on all ranks; see
 * Note [Rounds] in `counters.ts`.
 *
 * Sums add the ranks in the order 0, 1, 2, … for each element, so chunk sizes do not change the bits.
 *
 * @module
 */
import { at } from "../../at.ts";
import { type Device, type DevicePtr, devicePtr, PAST_CACHES_BYTES } from "../../device/device.ts";
import type { ControlPlane } from "../control_plane.ts";
import { DEPTH, Rounds } from "../control/counters.ts";
import {
  type AllReduceArgs,
  type DataPlane,
  type ElementRange,
  enqueuedWork,
  type ReduceScatterArgs,
  type Transfer,
  type Window,
  type Work,
} from "../data_plane.ts";
import { acquire } from "../together.ts";
import { evenSlices, oneShotLength, type SlotLayout, type StagingOptions } from "./sizes.ts";
import type { StagingBuffer } from "./staging.ts";
import { laneWords, TransfersUnderWay } from "./transfers.ts";

// Words that each rank shares with the others.
const SENT = 0;
const TAKEN = 16;
/** A shared word that no code reads. */
export const SPARE = 17;
const LANES = 32;

/** Number of shared words that each of `size` ranks needs. */
export function stagingWords(size: number): number {
  return LANES + laneWords(size);
}

/** Staging of a group, and the functions in which the kinds of planes differ. */
export interface StagingPlace extends Pick<DataPlane, "kind" | "split"> {
  readonly control: ControlPlane;
  readonly device: Device;
  /** {@link stagingWords} shared words of each rank, zeros at first. */
  readonly words: readonly Int32Array[];
  readonly staging: StagingBuffer;
  readonly layout: SlotLayout;
  /** Bytes of mapped staging; see {@link DataPlane}. */
  readonly stagingBytes: number;
  /** Opens windows that peers can read; undefined where each rank's window is private and is gathered through staging. */
  readonly openMapped?: DataPlane["openWindow"] | undefined;
  /** Disposed with the plane. */
  readonly resources: Disposable;
}

/** The data plane of ranks that share memory. */
export class StagedDataPlane implements DataPlane {
  readonly kind: string;
  readonly dryBackend: "shm" | "loopback";
  readonly stagingBytes: number;
  readonly staging: StagingOptions;
  readonly split: DataPlane["split"];
  readonly sums = "rank-order";
  readonly #place: StagingPlace;
  readonly #rounds: Rounds;
  /** The other ranks. */
  readonly #peers: readonly number[];
  /** Messages under way. They end before the next rounds, which use the same parts of slots. */
  #transfers: TransfersUnderWay | undefined;

  constructor(place: StagingPlace) {
    this.kind = place.kind;
    this.stagingBytes = place.stagingBytes;
    const { layout: { slotBytes, mostChunkBytes }, words: { length } } = place;
    this.staging = length > 1 ? { stagingBytes: slotBytes * length, chunkBytes: mostChunkBytes } : {};
    this.dryBackend = place.stagingBytes > 0 ? "shm" : "loopback"; // mapped, or copied
    this.split = place.split;
    this.#place = place;
    this.#peers = place.words.flatMap((_, rank) => rank === place.control.rank ? [] : rank);
    this.#rounds = new Rounds(place.control, place.words, SENT, TAKEN);
  }

  openWindow(byteLengths: readonly number[], unit: string): Window {
    const { device, control, openMapped } = this.#place;
    if (openMapped !== undefined) return openMapped(byteLengths, unit);
    const own = at(byteLengths, control.rank, "part of rank");
    const { value: pointer, kept } = acquire(control, (taken) => {
      const memory = device.allocator.allocate(own, `window '${unit}'`, "parameters");
      taken.defer(() => device.allocator.free(memory));
      device.copyIn(memory, new Uint8Array(own));
      return memory;
    });
    const gather = (dst: DevicePtr, offsets: readonly number[]): Work => {
      const parts = byteLengths.map((length, r) => ({ length, offset: at(offsets, r, "offset of rank") }));
      device.copy(devicePtr(dst + at(offsets, control.rank, "offset of rank")), pointer, own);
      return this.gatherParts(dst, parts);
    };
    // Contents are read only in gathers, which all ranks make together, so no rank waits before it writes.
    return { pointer, gather, beginWrite(): void {}, endWrite(): void {}, dispose: () => kept.dispose() };
  }

  /**
   * Adds all ranks' elements of this rank's slice to a partial sum of ranks before them, in the order of ranks.
   *
   * @param args `dst` has the partial sum if `hasBefore`, and gets the longer one, in float32 or int64
   */
  sumBehind(args: Pick<ReduceScatterArgs, "src" | "dtype" | "slices" | "dst" | "dstDtype">, hasBefore: boolean): void {
    this.#reduceScatter({ ...args, scale: undefined, accumulate: false }, false, hasBefore);
  }

  reduceScatter(args: ReduceScatterArgs): Work {
    const bytes = args.slices.reduce((sum, { length }) => sum + length, 0) * args.dtype.byteLength;
    return this.#reduceScatter(args, bytes >= PAST_CACHES_BYTES);
  }

  /** @param hasBefore true if `dst` is the first source of the sum */
  #reduceScatter(args: ReduceScatterArgs, pastCaches: boolean, hasBefore = false): Work {
    this.#finishTransfers();
    const { src, dtype, slices, dst, dstDtype, scale, accumulate } = args;
    const { control: { rank }, device: { kernels }, layout: { chunkBytes, partBytes }, staging } = this.#place;
    // A rank's own slice is never staged, so `dst` may be exactly that slice in `src`.
    const own = at(slices, rank, "slice of rank");
    const elementAt = (index: number): DevicePtr => devicePtr(src + index * dtype.byteLength);
    const step = Math.floor(chunkBytes / dtype.byteLength);
    const numRounds = Math.ceil(slices.reduce((most, { length }) => Math.max(most, length), 0) / step);
    if (own.length > 0) staging.reserve(this.#peers, Math.min(step, own.length) * dtype.byteLength);
    const first = this.#rounds.next;
    const put = (k: number): void => {
      const part = this.#rounds.begin(first + k) * partBytes;
      for (const [to, slice] of slices.entries()) {
        const n = Math.min(step, slice.length - k * step);
        if (to === rank || n <= 0) continue;
        staging.put(part + to * chunkBytes, elementAt(slice.offset + k * step), n * dtype.byteLength);
      }
      this.#rounds.publish(first + k);
    };
    const sum = (k: number): void => {
      this.#rounds.waitAll(first + k);
      const n = Math.min(step, own.length - k * step);
      if (n > 0) {
        const offset = (first + k) % DEPTH * partBytes + rank * chunkBytes;
        const view = (from: number): DevicePtr => staging.view(from, offset, n * dtype.byteLength);
        const sources = slices.map((_, from) => from === rank ? elementAt(own.offset + k * step) : view(from));
        const to = devicePtr(dst + k * step * dstDtype.byteLength);
        if (!hasBefore) kernels.sumRanks({ dtype, dstDtype, n, accumulate, pastCaches, dst: to, sources, scale });
        else if (dtype === dstDtype) {
          kernels.sumRanks({ dtype, dstDtype, n, accumulate, pastCaches, dst: to, sources: [to, ...sources], scale });
        } else {
          // A kernel takes sources of one dtype; one at a time, they are added in the same order.
          for (const source of sources) {
            kernels.sumRanks({ dtype, dstDtype, n, accumulate: true, pastCaches, dst: to, sources: [source] });
          }
        }
      }
      this.#rounds.end(first + k);
    };
    // Chunk k is written before chunk k - 1 is summed, so that peers need not wait for this rank's sum.
    for (let k = 0; k <= numRounds; k++) {
      if (k < numRounds) put(k);
      if (k > 0) sum(k - 1);
    }
    return enqueuedWork(this.#place.device);
  }

  allReduce(args: AllReduceArgs): Work {
    const { ptr, n, dtype, op, scale } = args;
    const { control: { rank, size }, layout } = this.#place;
    const unit = dtype.byteLength;
    const step = oneShotLength(layout, unit);
    if (size === 1 && scale === undefined) return enqueuedWork(this.#place.device);
    if (size > 1 && (n <= step || op === "max")) {
      for (let i = 0; i < n; i += step) {
        this.#reduceAtOnce({ ...args, ptr: devicePtr(ptr + i * unit), n: Math.min(step, n - i) });
      }
      return enqueuedWork(this.#place.device);
    }
    const slices = evenSlices(n, size);
    const dst = devicePtr(ptr + at(slices, rank, "slice of rank").offset * unit);
    // The sums are still in caches, so they are gathered right after.
    this.#reduceScatter({ src: ptr, dtype, slices, dst, dstDtype: dtype, scale, accumulate: false }, false);
    return this.gatherParts(
      ptr,
      slices.map(({ offset, length }) => ({ offset: offset * unit, length: length * unit })),
    );
  }

  allGather(dst: DevicePtr, src: DevicePtr, byteLength: number): Work {
    const { control: { rank, size }, device } = this.#place;
    device.copy(devicePtr(dst + rank * byteLength), src, byteLength);
    const parts = Array.from({ length: size }, (_, r) => ({ offset: r * byteLength, length: byteLength }));
    return this.gatherParts(dst, parts);
  }

  broadcast(ptr: DevicePtr, byteLength: number, root: number): Work {
    const { size } = this.#place.control;
    const parts = Array.from({ length: size }, (_, r) => ({ offset: 0, length: r === root ? byteLength : 0 }));
    return this.gatherParts(ptr, parts);
  }

  transfer(transfers: readonly Transfer[]): Work {
    const { words, ...place } = this.#place;
    this.#finishTransfers();
    this.#rounds.drain();
    const begun = new TransfersUnderWay({ ...place, words: words.map((own) => own.subarray(LANES)) }, transfers);
    this.#transfers = begun;
    const { device } = this.#place;
    return {
      endsInWait: true,
      advance: () => this.#guarded(begun, () => begun.advance()),
      wait: () => {
        if (this.#transfers === begun) this.#finishTransfers();
        enqueuedWork(device).wait();
      },
    };
  }

  /** Waits for messages under way. */
  #finishTransfers(): void {
    const begun = this.#transfers;
    if (begun === undefined) return;
    this.#guarded(begun, () => begun.finish());
    this.#transfers = undefined;
  }

  /** Messages that fail, or whose rank fails, are not moved on with later: their memory may be used for something else then. */
  #guarded(begun: TransfersUnderWay, move: () => void): void {
    try {
      move();
    } catch (error) {
      begun.drop();
      throw error;
    }
  }

  dispose(): void {
    this.#transfers?.drop();
    this.#place.resources[Symbol.dispose]();
  }

  /** Gathers all ranks' parts, in bytes from `begin`. Each rank holds its own part in place. */
  gatherParts(begin: DevicePtr, parts: readonly ElementRange[]): Work {
    this.#finishTransfers();
    const { control: { rank, size }, layout: { partBytes: step }, staging } = this.#place;
    const longest = size === 1 ? 0 : parts.reduce((most, { length }) => Math.max(most, length), 0);
    for (let start = 0; start < longest; start += step) {
      const round = this.#rounds.next;
      const slot = this.#rounds.begin(round) * step;
      // Each rank begins with its own part, so ranks read different parts at a time.
      for (let i = 0; i < size; i++) {
        const peer = (rank + i) % size;
        const { offset, length } = at(parts, peer, "part of rank");
        const n = Math.min(step, length - start);
        const place = devicePtr(begin + offset + start);
        if (peer === rank) {
          if (n > 0) staging.put(slot, place, n);
          this.#rounds.publish(round);
        } else if (n > 0) {
          this.#rounds.wait(round, peer);
          staging.take(place, peer, slot, n);
        }
      }
      this.#rounds.end(round);
    }
    return enqueuedWork(this.#place.device);
  }

  /** Reduces a small array in one round: every rank stages all of it, and every rank combines all. */
  #reduceAtOnce({ ptr, n, dtype, op, scale }: AllReduceArgs): void {
    this.#finishTransfers();
    const { control: { rank, size }, device: { kernels }, layout, staging } = this.#place;
    const byteLength = n * dtype.byteLength;
    staging.reserve(op === "sum" ? this.#peers : [rank, ...this.#peers], byteLength);
    const round = this.#rounds.next;
    const offset = this.#rounds.begin(round) * layout.partBytes;
    staging.put(offset, ptr, byteLength);
    this.#rounds.publish(round);
    this.#rounds.waitAll(round);
    const sources: DevicePtr[] = [];
    for (let from = 0; from < size; from++) {
      sources.push(from === rank && op === "sum" ? ptr : staging.view(from, offset, byteLength));
    }
    if (op === "sum") {
      kernels.sumRanks({ dtype, dstDtype: dtype, n, accumulate: false, pastCaches: false, dst: ptr, sources, scale });
    } else {
      // In the order of ranks as well: of two zeros or NaNs the first one wins.
      staging.take(ptr, 0, offset, byteLength);
      for (const other of sources.slice(1)) {
        const strides = { aStrides: [1], bStrides: [1] };
        kernels.binary({ op: "maximum", dtype, shape: [n], ...strides, dst: ptr, a: ptr, b: other });
      }
    }
    this.#rounds.end(round);
  }
}

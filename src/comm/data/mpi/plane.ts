/**
 * The data plane between hosts on the CPU, over messages of MPI. Ranks exchange parts with each other and sum them by their own
 * kernel in the order of ranks, which MPI's reductions do not keep: so FSDP and DDP have the same bits, and those of shared memory.
 * A reduce-scatter goes on while the rank computes; the other calls end with the call. The host moves everything, and a window is
 * memory of its rank alone.
 *
 * @module
 */
import { at } from "../../../at.ts";
import { type Device, type DevicePtr, devicePtr } from "../../../device/device.ts";
import type { DType } from "../../../dtype.ts";
import type { ControlPlane } from "../../control_plane.ts";
import {
  type AllReduceArgs,
  type DataPlane,
  type ElementRange,
  enqueuedWork,
  type ReduceScatterArgs,
  type Transfer,
  type Window,
  type Work,
} from "../../data_plane.ts";
import type { HostsControlPlane } from "../../hosts/plane.ts";
import { acquire } from "../../together.ts";
import { evenSlices, type StagingOptions } from "../sizes.ts";
import { Scratch } from "../staging.ts";
import { chunkBytesOf, ONE_ROUND_BYTES, ROUNDS_TOGETHER } from "./memory.ts";
import type { Moves, Moving } from "./moves.ts";

/** State of a group's plane. */
interface MpiPlace {
  readonly control: HostsControlPlane;
  readonly device: Device;
  readonly moves: Moves;
  readonly options: StagingOptions;
  /** Makes the messages of a group that is split off. */
  readonly split: (control: ControlPlane) => DataPlane;
}

/** The sum of one rank's slice over all ranks. */
interface Sum extends Omit<ReduceScatterArgs, "slices" | "accumulate"> {
  readonly slices: readonly ElementRange[];
  readonly accumulate: boolean;
}

export class MpiDataPlane implements DataPlane {
  readonly kind = "mpi";
  readonly dryBackend = "mpi";
  readonly sums = "rank-order";
  readonly stagingBytes = 0;
  readonly stagingRanks = 1;
  readonly staging: StagingOptions;
  readonly #place: MpiPlace;
  readonly #scratch: Scratch;
  /** Other ranks, the next one first: so not all ranks send to the same one. */
  readonly #others: readonly number[];
  /** The reduction under way: at most one, as they share memory. */
  #reduction: Moving | undefined;

  constructor(place: MpiPlace) {
    const { control: { rank, size }, device } = place;
    this.#place = place;
    const { stagingBytes, chunkBytes } = place.options;
    this.staging = { stagingBytes, chunkBytes };
    this.#scratch = new Scratch(device.allocator);
    this.#others = Array.from({ length: size - 1 }, (_, i) => (rank + 1 + i) % size);
  }

  openWindow(byteLengths: readonly number[], unit: string): Window {
    const { control, device } = this.#place;
    const own = at(byteLengths, control.rank, "part of rank");
    const { value: pointer, kept } = acquire(control, (taken) => {
      const memory = device.allocator.allocate(own, `window '${unit}'`, "parameters");
      taken.defer(() => device.allocator.free(memory));
      if (own > 0) device.copyIn(memory, new Uint8Array(own));
      return memory;
    });
    return {
      pointer,
      // A gather ends when this rank's part has been sent.
      beginWrite(): void {},
      endWrite(): void {},
      gather: (dst, offsets) => {
        const parts = byteLengths.map((length, rank) => ({ length, offset: at(offsets, rank, "offset of rank") }));
        return this.#gather(dst, pointer, parts);
      },
      dispose: () => kept.dispose(),
    };
  }

  reduceScatter(args: ReduceScatterArgs): Work {
    return this.#sum(args);
  }

  allReduce({ ptr, n, dtype, op, scale }: AllReduceArgs): Work {
    const { control: { size }, device } = this.#place;
    const unit = dtype.byteLength;
    if (op === "max") this.#max(ptr, n, dtype);
    else if (n * unit <= ONE_ROUND_BYTES) {
      const full = this.#place.control.worldRanks.map(() => ({ offset: 0, length: n }));
      this.#sum({ src: ptr, dtype, slices: full, dst: ptr, dstDtype: dtype, scale, accumulate: false }).wait();
    } else {
      const slices = evenSlices(n, size);
      const own = at(slices, this.#place.control.rank, "slice of rank");
      const dst = devicePtr(ptr + own.offset * unit);
      this.#sum({ src: ptr, dtype, slices, dst, dstDtype: dtype, scale, accumulate: false }).wait();
      const parts = slices.map(({ offset, length }) => ({ offset: offset * unit, length: length * unit }));
      return this.#gather(ptr, dst, parts);
    }
    return enqueuedWork(device);
  }

  allGather(dst: DevicePtr, src: DevicePtr, byteLength: number): Work {
    const { size } = this.#place.control;
    return this.#gather(
      dst,
      src,
      Array.from({ length: size }, (_, r) => ({ offset: r * byteLength, length: byteLength })),
    );
  }

  /** Ranks pass the bytes on along a binomial tree, so no rank sends them to more than O(log ranks) others. */
  broadcast(ptr: DevicePtr, byteLength: number, root: number): Work {
    const { control: { rank, size }, moves } = this.#place;
    const place = (rank - root + size) % size;
    const peerOf = (other: number): number => (other + root) % size;
    let step = 1;
    while (step < size && (place & step) === 0) step *= 2;
    if (place > 0) moves.make([{ kind: "receive", ptr, byteLength, peer: peerOf(place - step) }], "receiving");
    const sends: Transfer[] = [];
    for (let far = step / 2; far >= 1; far /= 2) {
      if (place + far < size) sends.push({ kind: "send", ptr, byteLength, peer: peerOf(place + far) });
    }
    moves.make(sends, "sending");
    return enqueuedWork(this.#place.device);
  }

  transfer(transfers: readonly Transfer[]): Work {
    const { moves, device } = this.#place;
    const begun = moves.transfer(transfers);
    return {
      endsInWait: true,
      advance: () => begun.advance(),
      wait: () => {
        begun.finish();
        enqueuedWork(device).wait();
      },
    };
  }

  split(control: ControlPlane): DataPlane {
    return this.#place.split(control);
  }

  dispose(): void {
    if (this.#reduction !== undefined) this.#place.moves.giveUp(this.#reduction);
    this.#scratch[Symbol.dispose]();
  }

  /** Gathers the parts of all ranks, in bytes, to `dst`; `src` is this rank's. */
  #gather(dst: DevicePtr, src: DevicePtr, parts: readonly ElementRange[]): Work {
    const { control: { rank }, device, moves } = this.#place;
    const own = at(parts, rank, "part of rank");
    const received = this.#others.map((peer): Transfer => {
      const { offset, length } = at(parts, peer, "part of rank");
      return { kind: "receive", ptr: devicePtr(dst + offset), byteLength: length, peer };
    });
    const sent = this.#others.map((peer): Transfer => ({ kind: "send", ptr: src, byteLength: own.length, peer }));
    const moving = moves.begin([...received, ...sent]);
    if (own.length > 0 && dst + own.offset !== src) device.copy(devicePtr(dst + own.offset), src, own.length);
    moves.finish(moving, "gathering");
    return enqueuedWork(device);
  }

  /**
   * Begins to sum this rank's slice over all ranks, chunk by chunk, while the next chunks are under way. Ranks whose slices end earlier go
   * on sending. The sums may overwrite what was summed: a round's sends have ended then, and later rounds send other elements.
   */
  #sum({ src, dtype, slices, dst, dstDtype, scale, accumulate }: Sum): Work {
    this.#finishReduction();
    const { control: { rank, size }, device, moves, options } = this.#place;
    const unit = dtype.byteLength;
    const step = Math.floor(chunkBytesOf(size, options) / unit);
    const own = at(slices, rank, "slice of rank");
    const longest = slices.reduce((most, { length }) => Math.max(most, length), 0);
    const bytes = Math.min(step, own.length) * unit;
    const staged = (round: number, peer: number): DevicePtr =>
      this.#scratch.of((round % ROUNDS_TOGETHER) * size + peer, bytes);
    const lengthIn = (round: number, of: number): number =>
      Math.max(0, Math.min(step, at(slices, of, "slice of rank").length - round * step));
    // Memory is allocated before the first message: what comes between kernels may not fail.
    for (let round = 0; round < Math.min(Math.ceil(own.length / step), ROUNDS_TOGETHER); round++) {
      for (const peer of this.#others) staged(round, peer);
    }
    const moving = moves.beginRounds({
      count: Math.ceil(longest / step),
      together: ROUNDS_TOGETHER,
      messages: (round) => {
        const length = lengthIn(round, rank) * unit;
        const received = this.#others.flatMap((peer): Transfer[] =>
          length === 0 ? [] : [{ kind: "receive", ptr: staged(round, peer), byteLength: length, peer }]
        );
        const sent = this.#others.map((peer): Transfer => ({
          kind: "send",
          ptr: devicePtr(src + (at(slices, peer, "slice of rank").offset + round * step) * unit),
          byteLength: lengthIn(round, peer) * unit,
          peer,
        }));
        return [...received, ...sent];
      },
      received: (round) => {
        const n = lengthIn(round, rank);
        if (n === 0) return;
        const begun = round * step;
        const sources = slices.map((_, from) =>
          from === rank ? devicePtr(src + (own.offset + begun) * unit) : staged(round, from)
        );
        const to = devicePtr(dst + begun * dstDtype.byteLength);
        device.kernels.sumRanks({ dtype, dstDtype, n, accumulate, pastCaches: false, dst: to, sources, scale });
      },
    });
    this.#reduction = moving;
    return {
      endsInWait: true,
      wait: () => {
        if (this.#reduction === moving) this.#finishReduction();
        enqueuedWork(device).wait();
      },
    };
  }

  /** Waits for the reduction under way. */
  #finishReduction(): void {
    const moving = this.#reduction;
    this.#reduction = undefined;
    if (moving !== undefined) this.#place.moves.finish(moving, "reducing");
  }

  /** The largest of all ranks' elements, in place. */
  #max(ptr: DevicePtr, n: number, dtype: DType): void {
    this.#finishReduction();
    const { control: { size, rank }, device, moves, options } = this.#place;
    const unit = dtype.byteLength;
    const step = Math.floor(chunkBytesOf(size, options) / unit);
    for (let begun = 0; begun < n; begun += step) {
      const count = Math.min(step, n - begun);
      const from = devicePtr(ptr + begun * unit);
      const staged = (peer: number): DevicePtr => this.#scratch.of(peer, count * unit);
      moves.make([
        ...this.#others.map((peer): Transfer => ({
          kind: "receive",
          ptr: staged(peer),
          byteLength: count * unit,
          peer,
        })),
        ...this.#others.map((peer): Transfer => ({ kind: "send", ptr: from, byteLength: count * unit, peer })),
      ], "reducing");
      const strides = { shape: [count], aStrides: [1], bStrides: [1] };
      for (let peer = 0; peer < size; peer++) {
        if (peer === rank) continue;
        device.kernels.binary({ op: "maximum", dtype, ...strides, dst: from, a: from, b: staged(peer) });
      }
    }
  }
}

/**
 * The data plane of ranks on several hosts of which some share a host: within a host by shared memory, between hosts by messages of MPI.
 *
 * Note [Two levels]
 * 1. A gather brings each part to each host once: to one rank there, which shares it with the others. Ranks of a host take turns
 *   (`turns.ts`), so all of them receive.
 * 2. A sum goes from host to host as a chain. The first host adds its ranks' elements and sends the sum to the next one, which goes on
 *   from it; the last one sends the whole sum to the rank whose slice it is. So elements are added in the order of ranks, as without
 *   hosts, and a host sends a partial sum in place of all of its ranks' elements. Partial sums are float32 (int64 of int64).
 * 3. Where the chain would send more than all ranks' elements (2-byte dtypes and few ranks on a host), and for sums of a few KiB, ranks
 *   send to each other as if each were a host.
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
import { acquire } from "../../together.ts";
import { evenSlices, type StagingOptions } from "../sizes.ts";
import type { StagedDataPlane } from "../staged.ts";
import { Scratch } from "../staging.ts";
import { CHAIN_ELEMENTS, isChainShorter, partialOf, UNDER_WAY } from "./chain.ts";
import { ONE_ROUND_BYTES } from "./memory.ts";
import type { Moves, Moving } from "./moves.ts";
import { forRank, type HostOrder, turnsOf } from "./turns.ts";

/** State of a group's plane. */
export interface LevelsPlace {
  readonly control: ControlPlane;
  readonly device: Device;
  readonly moves: Moves;
  readonly order: HostOrder;
  /** The plane of the ranks of this host; undefined if this rank is alone there. */
  readonly near: StagedDataPlane | undefined;
  /** The plane on which each rank counts as a host. */
  readonly flat: DataPlane;
  readonly split: (control: ControlPlane) => DataPlane;
  /** Disposed with the plane. */
  readonly resources: Disposable;
}

/** A chunk of a slice that this rank adds to. */
interface Link {
  /** The slices of this turn, of each rank of the host. */
  readonly slices: readonly ElementRange[];
  /** The rank whose slice this rank adds to; undefined if it adds to none in this turn. */
  readonly owner: number | undefined;
  readonly n: number;
}

export class LevelsDataPlane implements DataPlane {
  readonly kind = "mpi";
  readonly dryBackend = "mpi";
  readonly sums = "rank-order";
  readonly stagingBytes: number;
  readonly stagingRanks: number;
  readonly staging: StagingOptions;
  readonly #place: LevelsPlace;
  readonly #host: number;
  readonly #own: readonly number[];
  readonly #turns: readonly (readonly number[])[];
  readonly #scratch: Scratch;
  /** The plane of all ranks, where they are on one host. */
  readonly #only: StagedDataPlane | undefined;

  constructor(place: LevelsPlace) {
    const { control, order, near, device } = place;
    this.#place = place;
    this.#host = at(order.hostOf, control.rank, "host of rank");
    this.#own = at(order.hosts, this.#host, "ranks of host");
    this.#turns = turnsOf(order, this.#host);
    this.#scratch = new Scratch(device.allocator);
    this.stagingBytes = near === undefined ? 0 : near.stagingBytes;
    this.stagingRanks = this.#own.length;
    this.staging = place.flat.staging ?? {};
    this.#only = order.hosts.length === 1 ? near : undefined;
  }

  openWindow(byteLengths: readonly number[], unit: string): Window {
    const { control, device, near } = this.#place;
    const { value: { pointer, shared }, kept } = acquire(control, (taken) => {
      if (near !== undefined) {
        const shared = near.openWindow(this.#own.map((rank) => at(byteLengths, rank, "part of rank")), unit);
        taken.defer(() => shared.dispose());
        return { pointer: shared.pointer, shared };
      }
      const own = at(byteLengths, control.rank, "part of rank");
      const pointer = device.allocator.allocate(own, `window '${unit}'`, "parameters");
      taken.defer(() => device.allocator.free(pointer));
      if (own > 0) device.copyIn(pointer, new Uint8Array(own));
      return { pointer, shared: undefined };
    });
    const begun = new Set<Work>();
    return {
      pointer,
      beginWrite: () => {
        // A gather ends when this rank's part has been sent, and the ranks of its host read it in place.
        for (const work of begun) work.wait();
        shared?.beginWrite();
      },
      endWrite: () => shared?.endWrite(),
      gather: (dst, offsets) => {
        const parts = byteLengths.map((length, rank) => ({ length, offset: at(offsets, rank, "offset of rank") }));
        const work = this.#begin(dst, pointer, parts, () => {
          if (shared !== undefined) shared.gather(dst, this.#own.map((rank) => at(offsets, rank, "offset of rank")));
          else this.#copyOwn(dst, pointer, parts);
        });
        const gathering: Work = {
          endsInWait: true,
          wait: () => {
            begun.delete(gathering);
            work.wait();
          },
        };
        begun.add(gathering);
        return gathering;
      },
      dispose: () => kept.dispose(),
    };
  }

  reduceScatter(args: ReduceScatterArgs): Work {
    if (this.#only !== undefined) return this.#only.reduceScatter(args);
    if (!isChainShorter(this.#place.order, args.slices, args.dtype)) return this.#place.flat.reduceScatter(args);
    this.#chain(args);
    return enqueuedWork(this.#place.device);
  }

  allReduce(args: AllReduceArgs): Work {
    if (this.#only !== undefined) return this.#only.allReduce(args);
    const { ptr, n, dtype, op, scale } = args;
    const { control: { rank, size }, flat } = this.#place;
    const unit = dtype.byteLength;
    if (op === "max" || n * unit <= ONE_ROUND_BYTES) return flat.allReduce(args);
    const slices = evenSlices(n, size);
    const dst = devicePtr(ptr + at(slices, rank, "slice of rank").offset * unit);
    this.reduceScatter({ src: ptr, dtype, slices, dst, dstDtype: dtype, scale, accumulate: false }).wait();
    const parts = slices.map(({ offset, length }) => ({ offset: offset * unit, length: length * unit }));
    return this.#finished(this.#begin(ptr, dst, parts, () => this.#gatherOwn(ptr, parts)));
  }

  allGather(dst: DevicePtr, src: DevicePtr, byteLength: number): Work {
    const parts = this.#place.control.worldRanks.map((_, rank) => ({ offset: rank * byteLength, length: byteLength }));
    const work = this.#begin(dst, src, parts, () => {
      this.#copyOwn(dst, src, parts);
      this.#gatherOwn(dst, parts);
    });
    return this.#finished(work);
  }

  broadcast(ptr: DevicePtr, byteLength: number, root: number): Work {
    return (this.#only ?? this.#place.flat).broadcast(ptr, byteLength, root);
  }

  transfer(transfers: readonly Transfer[]): Work {
    return (this.#only ?? this.#place.flat).transfer(transfers);
  }

  split(control: ControlPlane): DataPlane {
    return this.#place.split(control);
  }

  dispose(): void {
    this.#scratch[Symbol.dispose]();
    this.#place.near?.dispose();
    this.#place.flat.dispose();
    this.#place.resources[Symbol.dispose]();
  }

  /** Waits for a gather. */
  #finished(work: Work): Work {
    work.wait();
    return enqueuedWork(this.#place.device);
  }

  /**
   * Begins to gather the parts of all ranks, in bytes from `dst`; `src` is this rank's. Messages move on between kernels.
   *
   * @param near gathers those of this host
   */
  #begin(dst: DevicePtr, src: DevicePtr, parts: readonly ElementRange[], near: () => void): Work {
    const { control: { rank }, moves, order } = this.#place;
    const own = at(parts, rank, "part of rank");
    const place = this.#own.indexOf(rank);
    const ofOthers = this.#turns.filter((turn) => turn !== this.#own);
    const receives = ofOthers.map((turn) => {
      const peer = turn[place];
      if (peer === undefined) return moves.begin([]);
      const { offset, length } = at(parts, peer, "part of rank");
      return moves.begin([{ kind: "receive", ptr: devicePtr(dst + offset), byteLength: length, peer }]);
    });
    const sends = moves.begin(
      order.hosts.flatMap((_, host): Transfer[] =>
        host === this.#host
          ? []
          : [{ kind: "send", ptr: src, byteLength: own.length, peer: forRank(order, host, rank) }]
      ),
    );
    near();
    let isOver = false;
    return {
      endsInWait: true,
      wait: () => {
        if (isOver) return;
        isOver = true;
        for (const [index, turn] of ofOthers.entries()) {
          moves.finish(at(receives, index, "turn"), "gathering");
          this.#place.near?.gatherParts(
            dst,
            this.#own.map((_, local) =>
              turn[local] === undefined ? { offset: 0, length: 0 } : at(parts, turn[local], "part")
            ),
          );
        }
        moves.finish(sends, "gathering");
      },
    };
  }

  #copyOwn(dst: DevicePtr, src: DevicePtr, parts: readonly ElementRange[]): void {
    const { offset, length } = at(parts, this.#place.control.rank, "part of rank");
    if (length > 0 && dst + offset !== src) this.#place.device.copy(devicePtr(dst + offset), src, length);
  }

  /** Gathers the parts of this host's ranks, which hold their own in place. */
  #gatherOwn(dst: DevicePtr, parts: readonly ElementRange[]): void {
    this.#place.near?.gatherParts(dst, this.#own.map((rank) => at(parts, rank, "part of rank")));
  }

  /** A reduce-scatter from host to host. */
  #chain(args: ReduceScatterArgs): void {
    const { slices, dst, dstDtype, scale, accumulate } = args;
    const { control: { rank }, device, moves, order } = this.#place;
    const last = order.hosts.length - 1;
    const partial = partialOf(args.dtype);
    const own = at(slices, rank, "slice of rank");
    const isLast = this.#host === last;
    // Whole sums come from the last host, chunk by chunk, each after this host's part of it was read.
    const bytes = own.length * partial.byteLength;
    const isInPlace = partial === dstDtype && !accumulate;
    const whole = isLast || own.length === 0 ? undefined : isInPlace ? dst : this.#scratch.of(UNDER_WAY, bytes);
    const returned = moves.begin(
      whole === undefined ? [] : chunksOf(own.length).map(({ offset, length }): Transfer => ({
        kind: "receive",
        ptr: devicePtr(whole + offset * partial.byteLength),
        byteLength: length * partial.byteLength,
        peer: forRank(order, last, rank),
      })),
    );
    this.#addToAll(args, partial);
    moves.finish(returned, "reducing");
    if (whole !== undefined && (!isInPlace || scale !== undefined)) {
      const sum = { dtype: partial, dstDtype, n: own.length, accumulate, pastCaches: false };
      device.kernels.sumRanks({ ...sum, dst, sources: [whole], scale });
    }
  }

  /** Adds this host's elements to the sums of all slices, in turns. */
  #addToAll(args: ReduceScatterArgs, partial: DType): void {
    const { src, dtype, dst, dstDtype, scale, accumulate } = args;
    const { control: { rank }, device, moves, order } = this.#place;
    const last = order.hosts.length - 1;
    const unit = partial.byteLength;
    const isFirst = this.#host === 0;
    const links = this.#links(args.slices);
    const buffer = (index: number): DevicePtr => this.#scratch.of(index % UNDER_WAY, CHAIN_ELEMENTS * unit);
    const sent: Moving[] = [];
    const received: Moving[] = [];
    const receive = (index: number): void => {
      const { owner, n } = at(links, index, "link");
      // A buffer is free again when what it had has been sent.
      const before = sent[index - UNDER_WAY];
      if (before !== undefined) moves.finish(before, "reducing");
      received[index] = moves.begin(
        isFirst || owner === undefined ? [] : [{
          kind: "receive",
          ptr: buffer(index),
          byteLength: n * unit,
          peer: forRank(order, this.#host - 1, owner),
        }],
      );
    };
    for (let index = 0; index < Math.min(links.length, UNDER_WAY - 1); index++) receive(index);
    for (const [index, { slices, owner, n }] of links.entries()) {
      moves.finish(at(received, index, "link"), "reducing");
      this.#sumHere({ src, dtype, slices, dst: buffer(index), dstDtype: partial }, !isFirst);
      if (owner === undefined) sent[index] = moves.begin([]);
      else if (this.#host === last && owner === rank) {
        const begun = at(slices, this.#own.indexOf(rank), "slice").offset -
          at(args.slices, rank, "slice of rank").offset;
        const sum = { dtype: partial, dstDtype, n, accumulate, pastCaches: false };
        const to = devicePtr(dst + begun * dstDtype.byteLength);
        device.kernels.sumRanks({ ...sum, dst: to, sources: [buffer(index)], scale });
        sent[index] = moves.begin([]);
      } else {
        const peer = this.#host === last ? owner : forRank(order, this.#host + 1, owner);
        sent[index] = moves.begin([{ kind: "send", ptr: buffer(index), byteLength: n * unit, peer }]);
      }
      if (index + UNDER_WAY - 1 < links.length) receive(index + UNDER_WAY - 1);
    }
    for (const moving of sent.slice(-UNDER_WAY)) moves.finish(moving, "reducing");
  }

  /** Adds the elements of this host's ranks to a partial sum at `dst`. */
  #sumHere(args: Pick<ReduceScatterArgs, "src" | "dtype" | "slices" | "dst" | "dstDtype">, hasBefore: boolean): void {
    const { near, device } = this.#place;
    if (near !== undefined) return near.sumBehind(args, hasBefore);
    const { src, dtype, slices, dst, dstDtype } = args;
    const { offset, length: n } = at(slices, 0, "slice");
    const from = devicePtr(src + offset * dtype.byteLength);
    if (n > 0) {
      const sum = { dtype, dstDtype, n, accumulate: hasBefore, pastCaches: false, dst };
      device.kernels.sumRanks({ ...sum, sources: [from] });
    }
  }

  /** The chunks of all slices by turn, in the order in which this host adds to them. */
  #links(slices: readonly ElementRange[]): readonly Link[] {
    const place = this.#own.indexOf(this.#place.control.rank);
    const longest = slices.reduce((most, { length }) => Math.max(most, length), 0);
    return chunksOf(longest).flatMap(({ offset: begun }) =>
      this.#turns.flatMap((turn): Link[] => {
        const parts = this.#own.map((_, local): ElementRange => {
          const of = turn[local];
          if (of === undefined) return { offset: 0, length: 0 };
          const { offset, length } = at(slices, of, "slice of rank");
          return { offset: offset + begun, length: Math.max(0, Math.min(CHAIN_ELEMENTS, length - begun)) };
        });
        if (parts.every(({ length }) => length === 0)) return [];
        const n = at(parts, place, "slice").length;
        return [{ slices: parts, owner: n === 0 ? undefined : turn[place], n }];
      })
    );
  }
}

/** The chunks of a slice, at most {@link CHAIN_ELEMENTS} elements each. */
function chunksOf(length: number): readonly ElementRange[] {
  return Array.from({ length: Math.ceil(length / CHAIN_ELEMENTS) }, (_, index) => ({
    offset: index * CHAIN_ELEMENTS,
    length: Math.min(CHAIN_ELEMENTS, length - index * CHAIN_ELEMENTS),
  }));
}

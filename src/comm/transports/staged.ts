/**
 * The collectives of ranks that share memory, for `shm` and `loopback` alike: data goes chunk by chunk through one
 * aperture in which every rank writes its own slot and reads all others. What the memory is, a {@link Medium} says.
 *
 * Note [Rounds]: every use of the aperture is a number of rounds, equal on all ranks because it follows from announced
 * sizes. Rounds are counted over the group's life. In round k a rank writes part k mod DEPTH of its slot and raises
 * STAGED to k + 1; it reads round k of a peer after that peer's STAGED is k + 1; when it has read all peers' it raises
 * CONSUMED to k + 1; and it writes round k only after every peer's CONSUMED is at least k - DEPTH + 1.
 *
 * Sums take ranks in the order 0, 1, 2, … element by element, so chunk sizes do not show in the bits.
 *
 * @module
 */
import { bfloat16, float32, int64 } from "../../dtype.ts";
import type { DType } from "../../dtype.ts";
import { devicePtr } from "../../device/device.ts";
import type { Device, DevicePtr } from "../../device/device.ts";
import { ArgumentError, DTypeError } from "../../errors.ts";
import type { AllReduceOp, CallKind, GatherWindow, ReduceScatterArgs, Run, Transport } from "../transport.ts";
import { FINISHED } from "../work.ts";
import type { Work } from "../work.ts";
import { CONSUMED, STAGED } from "./control.ts";
import type { Control } from "./control.ts";
import type { Aperture, Medium } from "./medium.ts";
import { EpochWindow, WindowSlots } from "./window.ts";
import { sumRanks } from "./sum_ranks.ts";

const DEPTH = 4;
const ALIGNMENT = 256;
/** All-reduces up to this size go in one round, each rank summing all of it. */
const ONE_SHOT_BYTES = 8192;
const LENGTH_BYTES = 8;

/** A transport over memory that all ranks share. */
export class StagedTransport implements Transport {
  readonly kind: string;
  readonly name: string;
  readonly rank: number;
  readonly size: number;
  readonly worldRanks: readonly number[];
  readonly sharedBytes: number;
  readonly #medium: Medium;
  readonly #control: Control;
  readonly #device: Device;
  readonly #aperture: Aperture;
  /** Bytes of one of the DEPTH parts of a slot. */
  readonly #partBytes: number;
  /** Bytes for one destination within a part. */
  readonly #chunkBytes: number;
  readonly #windows: WindowSlots = new WindowSlots();
  #round = 0;
  #disposed = false;

  /** @param medium the memory, the counters and the device */
  constructor(medium: Medium) {
    this.#medium = medium;
    this.#control = medium.control;
    this.#device = medium.device;
    this.#aperture = medium.aperture;
    this.kind = medium.kind;
    this.sharedBytes = medium.aperture.sharedBytes;
    const { name, rank, size, worldRanks } = medium.control.options;
    this.name = name;
    this.rank = rank;
    this.size = size;
    this.worldRanks = worldRanks;
    this.#partBytes = floorTo(this.#aperture.slotBytes / DEPTH, ALIGNMENT);
    this.#chunkBytes = Math.min(floorTo(this.#partBytes / size, ALIGNMENT), floorTo(medium.chunkBytes, ALIGNMENT));
    if (size > 1 && this.#chunkBytes === 0) {
      throw new ArgumentError(
        `Cannot stage ${size} ranks in an aperture with ${this.#aperture.slotBytes} bytes a rank; ` +
          `'apertureBytes' must be at least ${size * size * DEPTH * ALIGNMENT}`,
      );
    }
  }

  get timeoutSeconds(): number {
    return this.#control.timeoutSeconds;
  }

  set timeoutSeconds(seconds: number) {
    this.#control.timeoutSeconds = seconds;
  }

  announce(
    sequence: number,
    kind: CallKind,
    dtype: DType | undefined,
    count: number,
    detail: number,
    label: string,
  ): void {
    this.#control.announce(sequence, kind, dtype, count, detail, label);
  }

  openWindow(byteLengths: readonly number[], label: string): GatherWindow {
    const memory = this.#medium.openWindow(byteLengths, label, (bytes) => this.#exchange(bytes));
    const window = new EpochWindow(this.#control, this.#windows, memory, byteLengths);
    this.#control.leave();
    return window;
  }

  reduceScatter(args: ReduceScatterArgs): Work {
    const { src, dtype, runs, dst, dstDtype, scale, accumulate } = args;
    this.#reduceRuns(src, dtype, runs, dst, dstDtype, scale, accumulate);
    this.#control.leave();
    return FINISHED;
  }

  allReduce(ptr: DevicePtr, n: number, dtype: DType, op: AllReduceOp, scale: number): Work {
    if (dtype !== float32 && dtype !== bfloat16 && !(dtype === int64 && op === "sum")) {
      throw new DTypeError(`allReduce ${op}`, "it takes float32, bfloat16 and, as a sum, int64", dtype.name);
    }
    const byteLength = n * dtype.byteLength;
    const oneShot = Math.min(ONE_SHOT_BYTES, this.#chunkBytes);
    if (this.size === 1) {
      const args = { dtype, dstDtype: dtype, n, accumulate: false, dst: ptr, sources: [ptr] };
      if (op === "sum" && scale !== 1) sumRanks(this.#device, args, scale);
    } else if (byteLength <= oneShot) {
      this.#reduceAtOnce(ptr, n, dtype, op, scale);
    } else if (op === "max") {
      const step = Math.floor(oneShot / dtype.byteLength);
      for (let i = 0; i < n; i += step) {
        this.#reduceAtOnce(devicePtr(ptr + i * dtype.byteLength), Math.min(step, n - i), dtype, op, scale);
      }
    } else {
      const runs = evenRuns(n, this.size);
      const own = runs[this.rank] ?? { offset: 0, length: 0 };
      const dst = devicePtr(ptr + own.offset * dtype.byteLength);
      this.#reduceRuns(ptr, dtype, runs, dst, dtype, scale, false);
      this.#gatherRuns(ptr, dtype, runs);
    }
    this.#control.leave();
    return FINISHED;
  }

  allGather(dst: DevicePtr, src: DevicePtr, byteLength: number): Work {
    this.#device.copy(devicePtr(dst + this.rank * byteLength), src, byteLength);
    for (let done = 0; this.size > 1 && done < byteLength; done += this.#partBytes) {
      const n = Math.min(this.#partBytes, byteLength - done);
      const offset = this.#beginRound();
      this.#aperture.put(offset, devicePtr(src + done), n);
      this.#publishRound();
      for (let i = 1; i < this.size; i++) {
        const peer = (this.rank + i) % this.size;
        this.#control.waitFor(peer, STAGED, this.#round + 1, "contributing");
        this.#aperture.take(devicePtr(dst + peer * byteLength + done), peer, offset, n);
      }
      this.#endRound();
    }
    this.#control.leave();
    return FINISHED;
  }

  broadcast(ptr: DevicePtr, byteLength: number, root: number): Work {
    for (let done = 0; this.size > 1 && done < byteLength; done += this.#partBytes) {
      const n = Math.min(this.#partBytes, byteLength - done);
      const offset = this.#beginRound();
      const from = devicePtr(ptr + done);
      if (root === this.rank) this.#aperture.put(offset, from, n);
      this.#publishRound();
      if (root !== this.rank) {
        this.#control.waitFor(root, STAGED, this.#round + 1, "sending");
        this.#aperture.take(from, root, offset, n);
      }
      this.#endRound();
    }
    this.#control.leave();
    return FINISHED;
  }

  barrier(): void {
    if (this.size > 1) {
      this.#beginRound();
      this.#publishRound();
      this.#control.waitAll(STAGED, this.#round + 1, "reaching the barrier");
      this.#endRound();
    }
    this.#control.leave();
  }

  exchange(bytes: Uint8Array): readonly Uint8Array[] {
    const parts = this.#exchange(bytes);
    this.#control.leave();
    return parts;
  }

  split(ranks: readonly number[], name: string): Transport {
    const lists = this.#exchange(new TextEncoder().encode(JSON.stringify(ranks)));
    const decoded = lists.map((list) => new TextDecoder().decode(list));
    const distinct = [...new Set(decoded)].sort();
    const groups: number[][] = distinct.map((text) => JSON.parse(text));
    decoded.forEach((text, rank) => {
      for (const [i, group] of groups.entries()) {
        const own = distinct[i] === text;
        if (own === group.includes(rank)) continue;
        throw this.#control.failure(
          own
            ? `rank ${rank} splits into ranks [${group.join(", ")}], where it is not`
            : `rank ${rank} splits into ranks ${text}, but others name it in [${group.join(", ")}]`,
        );
      }
    });
    const mine = distinct.indexOf(decoded[this.rank] ?? "");
    const child = this.#medium.split(groups, mine, name, (part) => this.#exchange(part));
    this.#control.leave();
    return new StagedTransport(child);
  }

  abort(reason: string): void {
    this.#control.abort(reason);
  }

  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#control.depart();
    this.#aperture.dispose();
    this.#medium.dispose();
  }

  /** Waits until this rank's slot part of the current round is free; returns its offset. */
  #beginRound(): number {
    this.#control.waitAll(CONSUMED, this.#round - DEPTH + 1, "taking what was sent before");
    return (this.#round % DEPTH) * this.#partBytes;
  }

  #publishRound(): void {
    this.#control.raise(STAGED, this.#round + 1);
  }

  #endRound(): void {
    this.#round++;
    this.#control.raise(CONSUMED, this.#round);
  }

  /** Sums runs of a flat array; each rank keeps its own, which it never stages: `dst` may be exactly its run in `src`. */
  #reduceRuns(
    src: DevicePtr,
    dtype: DType,
    runs: readonly Run[],
    dst: DevicePtr,
    dstDtype: DType,
    scale: number,
    accumulate: boolean,
  ): void {
    const { size, rank } = this;
    const own = runs[rank] ?? { offset: 0, length: 0 };
    const unit = dtype.byteLength;
    if (size === 1) {
      const at = devicePtr(src + own.offset * unit);
      const args = { dtype, dstDtype, n: own.length, accumulate, dst, sources: [at] };
      if (own.length > 0) sumRanks(this.#device, args, scale);
      return;
    }
    const step = Math.floor(this.#chunkBytes / unit);
    let longest = 0;
    for (const run of runs) if (run.length > longest) longest = run.length;
    const rounds = Math.ceil(longest / step);
    const first = this.#round;
    const sources: DevicePtr[] = [];
    // Chunk k is written before chunk k - 1 is summed, so that peers need not wait for this rank's sum.
    for (let k = 0; k <= rounds; k++) {
      if (k < rounds) {
        this.#round = first + k;
        const offset = this.#beginRound();
        for (let to = 0; to < size; to++) {
          const run = runs[to];
          if (run === undefined || to === rank) continue;
          const n = Math.min(step, run.length - k * step);
          if (n <= 0) continue;
          this.#aperture.put(offset + to * this.#chunkBytes, devicePtr(src + (run.offset + k * step) * unit), n * unit);
        }
        this.#publishRound();
      }
      if (k === 0) continue;
      this.#round = first + k - 1;
      this.#control.waitAll(STAGED, this.#round + 1, "contributing");
      const n = Math.min(step, own.length - (k - 1) * step);
      if (n > 0) {
        const offset = (this.#round % DEPTH) * this.#partBytes + rank * this.#chunkBytes;
        for (let from = 0; from < size; from++) {
          sources[from] = from === rank
            ? devicePtr(src + (own.offset + (k - 1) * step) * unit)
            : this.#aperture.view(from, offset, n * unit);
        }
        const to = devicePtr(dst + (k - 1) * step * dstDtype.byteLength);
        sumRanks(this.#device, { dtype, dstDtype, n, accumulate, dst: to, sources }, scale);
      }
      this.#endRound();
    }
    this.#round = first + rounds;
  }

  /** Gives every rank all runs of a flat array of which each holds its own. */
  #gatherRuns(ptr: DevicePtr, dtype: DType, runs: readonly Run[]): void {
    const unit = dtype.byteLength;
    const step = Math.floor(this.#partBytes / unit);
    let longest = 0;
    for (const run of runs) if (run.length > longest) longest = run.length;
    for (let start = 0; start < longest; start += step) {
      const offset = this.#beginRound();
      const own = runs[this.rank];
      if (own !== undefined && own.length > start) {
        const n = Math.min(step, own.length - start);
        this.#aperture.put(offset, devicePtr(ptr + (own.offset + start) * unit), n * unit);
      }
      this.#publishRound();
      for (let i = 1; i < this.size; i++) {
        const peer = (this.rank + i) % this.size;
        this.#control.waitFor(peer, STAGED, this.#round + 1, "contributing");
        const run = runs[peer];
        if (run === undefined || run.length <= start) continue;
        const n = Math.min(step, run.length - start);
        this.#aperture.take(devicePtr(ptr + (run.offset + start) * unit), peer, offset, n * unit);
      }
      this.#endRound();
    }
  }

  /** One round: every rank stages all of a small array, and every rank combines all. */
  #reduceAtOnce(ptr: DevicePtr, n: number, dtype: DType, op: AllReduceOp, scale: number): void {
    if (n === 0) return;
    const byteLength = n * dtype.byteLength;
    const offset = this.#beginRound();
    this.#aperture.put(offset, ptr, byteLength);
    this.#publishRound();
    this.#control.waitAll(STAGED, this.#round + 1, "contributing");
    const sources: DevicePtr[] = [];
    for (let from = 0; from < this.size; from++) {
      sources.push(from === this.rank && op === "sum" ? ptr : this.#aperture.view(from, offset, byteLength));
    }
    if (op === "sum") {
      sumRanks(this.#device, { dtype, dstDtype: dtype, n, accumulate: false, dst: ptr, sources }, scale);
    } else {
      this.#aperture.take(ptr, 0, offset, byteLength);
      const [, ...others] = sources;
      const args = { dtype, op: "maximum", shape: [n], aStrides: [1], bStrides: [1], dst: ptr, a: ptr } as const;
      for (const other of others) this.#device.kernels.binary({ ...args, b: other });
    }
    this.#endRound();
  }

  /** Each rank's bytes behind their length, in as many rounds as the longest needs. */
  #exchange(bytes: Uint8Array): readonly Uint8Array[] {
    if (this.size === 1) return [bytes.slice()];
    const partBytes = this.#partBytes;
    const header = new Uint8Array(LENGTH_BYTES);
    new DataView(header.buffer).setFloat64(0, bytes.length);
    const parts: Uint8Array[] = [];
    let longest = partBytes;
    for (let start = 0; start < longest; start += partBytes) {
      const offset = this.#beginRound();
      if (start === 0) this.#aperture.putHost(offset, header);
      const lead = start === 0 ? LENGTH_BYTES : 0;
      // Byte i of the message is byte i + LENGTH_BYTES of the stream.
      const from = Math.max(0, start - LENGTH_BYTES);
      if (from < bytes.length) {
        this.#aperture.putHost(offset + lead, bytes.subarray(from, start + partBytes - LENGTH_BYTES));
      }
      this.#publishRound();
      for (let rank = 0; rank < this.size; rank++) {
        if (rank !== this.rank) this.#control.waitFor(rank, STAGED, this.#round + 1, "sending");
        if (start === 0) {
          this.#aperture.takeHost(header, rank, offset);
          const length = new DataView(header.buffer).getFloat64(0);
          parts[rank] = new Uint8Array(length);
          longest = Math.max(longest, length + LENGTH_BYTES);
        }
        const part = parts[rank];
        if (part === undefined || from >= part.length) continue;
        this.#aperture.takeHost(part.subarray(from, start + partBytes - LENGTH_BYTES), rank, offset + lead);
      }
      this.#endRound();
    }
    return parts;
  }
}

function floorTo(value: number, multiple: number): number {
  return Math.floor(value / multiple) * multiple;
}

/** Splits n elements over ranks as evenly as whole cache lines allow. */
function evenRuns(n: number, size: number): readonly Run[] {
  const length = Math.ceil(n / size / 64) * 64;
  return Array.from({ length: size }, (_, rank) => {
    const offset = Math.min(n, rank * length);
    return { offset, length: Math.min(length, n - offset) };
  });
}

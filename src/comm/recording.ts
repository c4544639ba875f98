/**
 * A transport that wraps another and writes down each call, in order: for tests of hook order, prefetch and traffic.
 * It changes nothing; groups split from it write into the same list.
 *
 * @module
 */
import type { DType } from "../dtype.ts";
import type { DevicePtr } from "../device/device.ts";
import type { AllReduceOp, CallKind, GatherWindow, ReduceScatterArgs, Transport } from "./transport.ts";
import type { Work } from "./work.ts";

/** One call, as it was announced. */
export interface RecordedCall {
  /** Name of the group. */
  readonly group: string;
  readonly sequence: number;
  readonly kind: CallKind;
  readonly label: string;
  /** Elements and their dtype multiplied out; announced bytes where there is no dtype. */
  readonly byteLength: number;
}

/** Records the calls made on a transport. */
export class RecordingTransport implements Transport {
  /** All calls so far, also of groups split from this one; clear it by `calls.length = 0`. */
  readonly calls: RecordedCall[];
  readonly #inner: Transport;

  /**
   * @param inner what moves the bytes
   * @param calls the list to write into
   */
  constructor(inner: Transport, calls: RecordedCall[] = []) {
    this.#inner = inner;
    this.calls = calls;
  }

  get kind(): string {
    return this.#inner.kind;
  }

  get name(): string {
    return this.#inner.name;
  }

  get rank(): number {
    return this.#inner.rank;
  }

  get size(): number {
    return this.#inner.size;
  }

  get sharedBytes(): number {
    return this.#inner.sharedBytes;
  }

  get worldRanks(): readonly number[] {
    return this.#inner.worldRanks;
  }

  get timeoutSeconds(): number {
    return this.#inner.timeoutSeconds;
  }

  set timeoutSeconds(seconds: number) {
    this.#inner.timeoutSeconds = seconds;
  }

  announce(
    sequence: number,
    kind: CallKind,
    dtype: DType | undefined,
    count: number,
    detail: number,
    label: string,
  ): void {
    this.calls.push({ group: this.name, sequence, kind, label, byteLength: count * (dtype?.byteLength ?? 1) });
    this.#inner.announce(sequence, kind, dtype, count, detail, label);
  }

  openWindow(byteLengths: readonly number[], label: string): GatherWindow {
    return this.#inner.openWindow(byteLengths, label);
  }

  reduceScatter(args: ReduceScatterArgs): Work {
    return this.#inner.reduceScatter(args);
  }

  allReduce(ptr: DevicePtr, n: number, dtype: DType, op: AllReduceOp, scale: number): Work {
    return this.#inner.allReduce(ptr, n, dtype, op, scale);
  }

  allGather(dst: DevicePtr, src: DevicePtr, byteLength: number): Work {
    return this.#inner.allGather(dst, src, byteLength);
  }

  broadcast(ptr: DevicePtr, byteLength: number, root: number): Work {
    return this.#inner.broadcast(ptr, byteLength, root);
  }

  barrier(): void {
    this.#inner.barrier();
  }

  exchange(bytes: Uint8Array): readonly Uint8Array[] {
    return this.#inner.exchange(bytes);
  }

  split(ranks: readonly number[], name: string): Transport {
    return new RecordingTransport(this.#inner.split(ranks, name), this.calls);
  }

  abort(reason: string): void {
    this.#inner.abort(reason);
  }

  dispose(): void {
    this.#inner.dispose();
  }
}

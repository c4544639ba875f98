/**
 * Inputs of the scenarios, made from a rank's number, and the straight sums that results are compared with.
 *
 * @module
 */
import assert from "node:assert/strict";
import { bfloat16, int64 } from "../../src/dtype.ts";
import type { DType } from "../../src/dtype.ts";
import type { DevicePtr } from "../../src/device/device.ts";
import type { ProcessGroup } from "../../src/comm/process_group.ts";
import type { DataPlane, ElementRange } from "../../src/comm/data_plane.ts";
import { fromBfloat16, toBfloat16 } from "../support/comm_device.ts";
import type { CommDevice } from "../support/comm_device.ts";

/** A rank in a scenario. */
export interface Rank {
  readonly group: ProcessGroup;
  readonly device: CommDevice;
}

/** Blocks this thread. */
export function sleep(ms: number): void {
  Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, ms);
}

/** A small generator of numbers: the same in every rank and runtime. */
export function numbers(seed: number): () => number {
  let state = (seed * 2654435761) >>> 0 || 1;
  return (): number => {
    state ^= state << 13;
    state >>>= 0;
    state ^= state >>> 17;
    state ^= state << 5;
    state >>>= 0;
    return state / 2 ** 32;
  };
}

/** Rank `rank`'s values: of very unequal size, so that another order of addition gives other bits. */
export function values(seed: number, rank: number, n: number): Float32Array {
  const next = numbers(seed * 1000 + rank + 1);
  return Float32Array.from({ length: n }, () => (next() - 0.5) * 10 ** Math.floor(next() * 9 - 4));
}

/** Bytes of values in a dtype. */
export function encode(dtype: DType, list: Float32Array): Uint8Array {
  if (dtype === bfloat16) return new Uint8Array(Uint16Array.from(list, toBfloat16).buffer);
  if (dtype === int64) {
    return new Uint8Array(BigInt64Array.from([...list], (x) => BigInt(Math.round(x * 1e6)) * 12345678n).buffer);
  }
  return new Uint8Array(Float32Array.from(list).buffer);
}

/** One array of `n` elements for each rank. */
export function partsOf({ group }: Rank, dtype: DType, seed: number, n: number): Uint8Array[] {
  return Array.from({ length: group.size }, (_, r) => encode(dtype, values(seed, r, n)));
}

/** The part of this rank. */
export function own<T>({ group }: Rank, parts: readonly T[]): T {
  return parts[group.rank] ?? assert.fail("no part of this rank");
}

/** A sum over ranks. */
export interface RankSum {
  readonly dtype: DType;
  readonly dstDtype: DType;
  /** Each rank's array. */
  readonly parts: readonly Uint8Array[];
  readonly scale: number;
  /** The values to which the sum is added, as `dstDtype`. */
  readonly base?: Uint8Array;
}

/** The straight sum in rank order, scaled once. */
export function sumInOrder({ dtype, dstDtype, parts, scale, base }: RankSum): Uint8Array {
  if (dtype === int64) {
    const lists = parts.map((part) => new BigInt64Array(part.buffer, part.byteOffset, part.length / 8));
    const sums = BigInt64Array.from(lists[0] ?? [], (_, i) => lists.reduce((sum, list) => sum + (list[i] ?? 0n), 0n));
    return new Uint8Array(sums.buffer);
  }
  const lists = parts.map((part) => decode(dtype, part));
  const old = base === undefined ? undefined : decode(dstDtype, base);
  const sums = Float32Array.from(lists[0] ?? [], (_, i) => {
    let sum = lists[0]?.[i] ?? 0;
    for (const list of lists.slice(1)) sum = Math.fround(sum + (list[i] ?? 0));
    sum = Math.fround(sum * Math.fround(scale));
    return old === undefined ? sum : Math.fround((old[i] ?? 0) + sum);
  });
  return encode(dstDtype, sums);
}

/**
 * Fails unless `got` is a sum over ranks: to the bit where ranks are added in their order, and of integers; else to what
 * rounding in another order may change.
 */
export function checkSum(sums: DataPlane["sums"], sum: RankSum, got: Uint8Array, what: string): void {
  const { dtype, dstDtype, parts, scale, base } = sum;
  const expected = sumInOrder(sum);
  if (sums === "rank-order" || dtype === int64) return equal(got, expected, what);
  const lists = [...parts.map((part) => decode(dtype, part)), ...base === undefined ? [] : [decode(dstDtype, base)]];
  const [actual, wanted] = [decode(dstDtype, got), decode(dstDtype, expected)];
  const epsilon = dtype === bfloat16 || dstDtype === bfloat16 ? 2 ** -8 : 2 ** -23;
  for (const [i, value] of wanted.entries()) {
    const size = lists.reduce((total, list) => total + Math.abs(list[i] ?? 0), 0) * Math.max(1, Math.abs(scale));
    const off = Math.abs((actual[i] ?? NaN) - value);
    if (!(off <= epsilon * lists.length * size)) {
      throw new Error(`${what}: element ${i} is ${actual[i]}, expected ${value}`);
    }
  }
}

/** Values of bytes in a float dtype. */
export function decode(dtype: DType, bytes: Uint8Array): Float32Array {
  const copy = bytes.slice();
  if (dtype === bfloat16) return Float32Array.from(new Uint16Array(copy.buffer), fromBfloat16);
  return new Float32Array(copy.buffer);
}

export function place({ device }: Rank, bytes: Uint8Array): DevicePtr {
  const ptr = device.allocator.allocate(bytes.length, "test");
  device.copyIn(ptr, bytes);
  return ptr;
}

export function equal(got: Uint8Array, expected: Uint8Array, what: string): void {
  if (got.length !== expected.length) throw new Error(`${what}: ${got.length} bytes, expected ${expected.length}`);
  for (let i = 0; i < got.length; i++) {
    if (got[i] !== expected[i]) throw new Error(`${what}: byte ${i} is ${got[i]}, expected ${expected[i]}`);
  }
}

/** Ranks' runs over some elements, ragged: some empty, some with gaps before them. */
export function raggedSlices(seed: number, size: number, n: number): { slices: ElementRange[]; total: number } {
  const next = numbers(seed);
  const slices: ElementRange[] = [];
  let at = 0;
  for (let rank = 0; rank < size; rank++) {
    at += next() < 0.3 ? Math.floor(next() * 5) : 0;
    const length = next() < 0.25 ? 0 : Math.floor(next() * n);
    slices.push({ offset: at, length });
    at += length;
  }
  return { slices, total: at };
}

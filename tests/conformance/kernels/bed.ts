/**
 * The test bed of kernels: arrays between guards in a device's memory, test values, and the run of a case with all that
 * any call of any kernel must keep to.
 *
 * @module
 */
import assert from "node:assert/strict";
import { bfloat16, type DType, float16, float32, float64, int32, int64, uint8 } from "../../../src/dtype.ts";
import { InternalError } from "../../../src/errors.ts";
import { blockBytes } from "../../../src/device/allocator.ts";
import { type Device, type DevicePtr, devicePtr } from "../../../src/device/device.ts";
import { type Access, accessesOf } from "../../../src/device/kernels/accesses.ts";
import type { Argument, Arguments, KernelEntry, KernelTable } from "../../../src/device/kernels/signature.ts";
import { type KernelCall, KERNELS } from "../../../src/device/kernels/table.ts";
import { type AnyCase, close, type Content, each, numbers, pick, type Reader, toBfloat16 } from "./case.ts";

const GUARD = 64;
const GUARD_BYTE = 0x5a;
/** NaN in every float dtype. */
const RUBBISH = 0xff;

/** An array of a call, between guards. */
interface Slot {
  readonly access: Access;
  readonly block: DevicePtr;
  readonly byteLength: number;
  readonly ptr: DevicePtr;
  /** Bytes of the whole block before the call. */
  readonly before: Uint8Array<ArrayBuffer>;
}

/** The differences of a run of a case from the plain run. */
interface Variant {
  /** Elements that arrays lie behind a 256-byte boundary. */
  readonly shift: number;
  /** An array that takes the place of another one. */
  readonly alias?: readonly [name: string, of: string];
}

/** A kernel's entry. */
export function entryOf(kernel: string): KernelEntry {
  const table: KernelTable = KERNELS;
  const entry = table[kernel];
  assert.ok(entry !== undefined, `no kernel '${kernel}'`);
  return entry;
}

/** Bytes of the arrays that a call wrote, by name. */
type Bits = ReadonlyMap<string, Uint8Array<ArrayBuffer>>;

/** Values of arrays, by name. */
export type Values = ReadonlyMap<string, readonly number[]>;

function isCall(value: unknown): value is KernelCall {
  return typeof value === "function";
}

/** The kernels of one device under test. */
export class Bed {
  readonly device: Device;
  readonly #shifts: readonly [number, number];
  readonly #tellsScratch: boolean;
  #seed = 12345;
  #kept = 0;

  /**
   * Puts arrays of a case at two places, given in elements after a multiple of 64 bytes. Kernels that copy 16 bytes at once can do
   * so at the second place only.
   *
   * @param tellsScratch true if the device reports all scratch memory of calls, as it does except for calls by cuDNN
   */
  constructor(device: Device, shifts: readonly [number, number] = [1, 8], tellsScratch: boolean = true) {
    this.device = device;
    this.#shifts = shifts;
    this.#tellsScratch = tellsScratch;
  }

  /** Bytes that were given out by {@link room}. */
  get kept(): number {
    return this.#kept;
  }

  /** Calls a kernel with arguments of any kernel. */
  call(kernel: string, args: Arguments): void {
    const call = new Map<string, unknown>(Object.entries(this.device.kernels)).get(kernel);
    assert.ok(isCall(call), `no kernel '${kernel}'`);
    call(args);
  }

  /** The arguments of a case with an address of nothing for each array. */
  addressed(kernel: string, { args, without, count = 1 }: AnyCase): Arguments {
    const addresses = Object.entries(entryOf(kernel).arrays)
      .filter(([name]) => !without?.includes(name))
      .map(([name, { list }]) => [name, list ? new Array<number>(count).fill(0) : 0] as const);
    return { ...args, ...Object.fromEntries(addresses) };
  }

  /** Room for `n` elements, holding rubbish; aligned to the element and no more. It stays until the device goes. */
  room(dtype: DType, n: number): DevicePtr {
    const before = this.device.allocator.stats.inUse;
    const at = devicePtr(this.device.allocator.allocate((n + 1) * dtype.byteLength, "test") + dtype.byteLength);
    this.#kept += this.device.allocator.stats.inUse - before;
    this.device.copyIn(at, new Uint8Array(n * dtype.byteLength).fill(RUBBISH));
    return at;
  }

  /** Values rounded to the dtype and stored. */
  put(dtype: DType, values: readonly number[]): DevicePtr {
    const at = this.room(dtype, values.length);
    this.device.copyIn(at, encode(dtype, values));
    return at;
  }

  /** Stored bytes. */
  bytes(at: DevicePtr, byteLength: number): Uint8Array<ArrayBuffer> {
    const bytes = new Uint8Array(byteLength);
    this.device.synchronize();
    this.device.copyOut(bytes, at);
    return bytes;
  }

  /** Stored values. */
  get(dtype: DType, at: DevicePtr, n: number): number[] {
    return decode(dtype, this.bytes(at, n * dtype.byteLength));
  }

  /** The next `n` test values, spread evenly over [low, high). */
  values(n: number, low: number = -1, high: number = 1): number[] {
    return each(n, () => {
      this.#seed = (Math.imul(this.#seed, 1664525) + 1013904223) >>> 0;
      return low + (high - low) * (this.#seed / 2 ** 32);
    });
  }

  /**
   * Runs a case: results, guards, inputs and gaps as they were, the memory that it works in, the same bits again and at other addresses, in place of what
   * the table allows, and without what may be left out.
   */
  run(kernel: string, one: AnyCase): void {
    const entry = entryOf(kernel);
    const label = `${kernel} ${one.label ?? ""} ${describe(one.args)}`;
    const [shift, other] = this.#shifts;
    const bits = this.#runOnce(kernel, one, { shift }, label);
    this.#runOnce(kernel, one, { shift: other }, `${label}, elsewhere`, bits);
    for (const [name, kind] of Object.entries(entry.arrays)) {
      if (one.without?.includes(name)) continue;
      for (const of of kind.mayBe ?? []) {
        this.#runOnce(kernel, one, { shift, alias: [name, of] }, `${label}, ${name} over ${of}`, bits);
      }
      if (kind.optional && "writes" in kind) {
        this.#runOnce(kernel, { ...one, without: [...one.without ?? [], name] }, { shift }, `${label}, no ${name}`);
      }
    }
  }

  /** The values that a case writes, by array; of NaNs all are one. */
  results(kernel: string, one: AnyCase): Values {
    const entry = entryOf(kernel);
    const accesses = accessesOf(entry, this.addressed(kernel, one), this.device.status.ptr);
    const dtypes = new Map(accesses.map(({ parameter, dtype }) => [parameter, dtype]));
    const bits = this.#runOnce(kernel, one, { shift: 1 }, `${kernel} ${describe(one.args)}`);
    return new Map(
      [...bits].map(([name, bytes]) => [name, decode(dtypes.get(name) ?? assert.fail(name), bytes)]),
    );
  }

  /** Runs a case with one size set to 0: nothing but the results may change. */
  runEmpty(kernel: string, one: AnyCase, size: string): void {
    const { args, without = [], count = 1 } = one;
    const empty = { args: { ...args, [size]: 0 }, without, count, expect: () => ({}) };
    try {
      this.#runOnce(kernel, empty, { shift: 1 }, `${kernel} with ${size} 0`, new Map());
    } catch (error) {
      if (!(error instanceof InternalError)) throw error; // a size that the kernel refuses
    } finally {
      this.device.status.clear(); // ids and positions were random
    }
  }

  #runOnce(
    kernel: string,
    one: AnyCase,
    variant: Variant,
    label: string,
    bits?: Bits,
  ): Bits {
    const entry = entryOf(kernel);
    const given: Record<string, Argument> = { ...this.addressed(kernel, one) };
    const seed = this.#seed;
    const slots = accessesOf(entry, given, this.device.status.ptr)
      .filter(({ parameter }) => parameter !== "status")
      .map((access) => this.#fill(access, one.arrays?.[access.parameter], variant.shift));
    this.#seed = seed;
    try {
      const [alias, of] = variant.alias ?? [];
      const place = (name: string): Slot[] => slots.filter(({ access }) => access.parameter === name);
      const target = of === undefined ? undefined : place(of)[0];
      const moved = alias === undefined ? undefined : place(alias)[0];
      // In place needs the same elements: a broadcast operand cannot be written over.
      if (alias !== undefined && target?.access.byteLength !== moved?.access.byteLength) return new Map();
      if (moved !== undefined && target?.access.dtype !== moved.access.dtype) return new Map();
      // Its values to add to would be those of the other array.
      if (moved?.access.direction === "updates") return new Map();
      const at = (slot: Slot): DevicePtr => slot === moved && target !== undefined ? target.ptr : slot.ptr;
      for (const name of new Set(slots.map(({ access }) => access.parameter))) {
        const addresses = place(name).map(at);
        given[name] = entry.arrays[name]?.list ? addresses : pick(addresses, 0);
      }
      this.#callCounted(kernel, given, label);
      this.#checkKept(slots, moved, target, label);
      const found = new Map<string, Uint8Array<ArrayBuffer>>();
      for (const slot of slots.filter(({ access }) => access.direction !== "reads")) {
        found.set(slot.access.parameter, this.bytes(at(slot), slot.access.byteLength));
      }
      if (bits === undefined) {
        assert.equal(this.device.status.read(), undefined, `${label}: a fault`);
        this.#checkResults(one, slots, label);
      }
      for (const [name, expected] of bits ?? []) {
        const bytes = found.get(name) ?? assert.fail(`${label}: no ${name}`);
        const place = differsAt(bytes, expected);
        assert.ok(place < 0, `${label}: byte ${place} of ${name} is ${bytes[place]}, not ${expected[place]}`);
      }
      return found;
    } finally {
      for (const { block } of slots) this.device.allocator.free(block);
    }
  }

  /** Calls a kernel, which works in as much memory as the device has said. */
  #callCounted(kernel: string, args: Arguments, label: string): void {
    const { allocator } = this.device;
    allocator.resetPeak();
    const { inUse } = allocator.stats;
    this.call(kernel, args);
    if (!this.#tellsScratch) return;
    const told = this.device.scratchBytes(kernel, args);
    assert.equal(allocator.stats.peak - inUse, told === 0 ? 0 : blockBytes(told), `${label}: bytes that it works in`);
    assert.equal(allocator.stats.inUse, inUse, `${label}: bytes that it keeps`);
  }

  /** Nothing but what is written has changed: no guard, no input, and where an array took another's place, not its own. */
  #checkKept(slots: readonly Slot[], moved: Slot | undefined, target: Slot | undefined, label: string): void {
    for (const slot of slots) {
      const { parameter, direction, byteLength } = slot.access;
      const now = this.bytes(slot.block, slot.byteLength);
      const begin = slot.ptr - slot.block;
      const mayChange = (direction !== "reads" && slot !== moved) || slot === target;
      if (mayChange) now.set(slot.before.subarray(begin, begin + byteLength), begin);
      const changed = differsAt(now, slot.before);
      assert.ok(changed < 0, `${label}: byte ${changed - begin} of '${parameter}' (${byteLength}) changed`);
    }
  }

  #checkResults(one: AnyCase, slots: readonly Slot[], label: string): void {
    const slotOf = (name: string, place: number): Slot => {
      const slot = slots.filter(({ access }) => access.parameter === name)[place];
      assert.ok(slot !== undefined, `${label}: no array '${name}'`);
      return slot;
    };
    const before = (name: string, place = 0): number[] => {
      const { access: { dtype, byteLength }, before, ptr, block } = slotOf(name, place);
      return decode(dtype, before.slice(ptr - block, ptr - block + byteLength));
    };
    const after = (name: string, place = 0): number[] => {
      const { access: { dtype, byteLength }, ptr } = slotOf(name, place);
      return this.get(dtype, ptr, byteLength / dtype.byteLength);
    };
    const expected = expectedOf(one, before, after);
    for (const { access: { parameter, direction, dtype, byteLength }, before, block, ptr } of slots) {
      if (direction === "reads") continue;
      const want = expected[parameter];
      assert.ok(want !== undefined, `${label}: nothing is expected of '${parameter}'`);
      // The numbers nearest to zero are as far from each other as the smallest is from it.
      const absolute = (want.absolute ?? 0) + (dtype === float16 ? 2 ** -25 : 0);
      close(after(parameter), want.values, want.relative ?? 0, absolute, `${label}: ${parameter}`);
      const now = this.bytes(ptr, byteLength);
      for (const [i, value] of want.values.entries()) {
        if (value !== undefined) continue;
        for (let byte = i * dtype.byteLength; byte < (i + 1) * dtype.byteLength; byte++) {
          if (now[byte] !== before[ptr - block + byte]) assert.fail(`${label}: gap ${i} of '${parameter}' changed`);
        }
      }
    }
  }

  #fill(access: Access, content: Content | undefined, shift: number): Slot {
    const { dtype, byteLength, direction } = access;
    const offset = GUARD + shift * dtype.byteLength;
    const total = offset + byteLength + GUARD;
    const block = this.device.allocator.allocate(total, "test");
    const before = new Uint8Array(total).fill(GUARD_BYTE);
    const n = byteLength / dtype.byteLength;
    const random = (low: number, high: number): Uint8Array => encode(dtype, this.values(n, low, high));
    const stored = content === undefined
      ? direction === "writes" ? new Uint8Array(byteLength).fill(RUBBISH) : random(-1, 1)
      : content instanceof Uint8Array
      ? content
      : "low" in content
      ? random(content.low, content.high)
      : encode(dtype, content);
    assert.equal(stored.byteLength, byteLength, `content of '${access.parameter}'`);
    before.set(stored, offset);
    this.device.copyIn(block, before);
    return { access, block, byteLength: total, ptr: devicePtr(block + offset), before };
  }
}

/** The output bytes and the inspected places of cases that compare with the bytes before the call. */
const given = new WeakMap<
  AnyCase,
  { readonly reads: readonly Read[]; readonly expected: ReturnType<AnyCase["expect"]> }
>();

interface Read {
  readonly name: string;
  readonly place: number | undefined;
  readonly values: readonly number[];
}

/** The expected results of a case: computed once for all devices that are given the same arrays. */
function expectedOf(one: AnyCase, before: Reader<string>, after: Reader<string>): ReturnType<AnyCase["expect"]> {
  const known = given.get(one);
  const isSame = ({ name, place, values }: Read): boolean => differsAt(before(name, place), values) < 0;
  if (known?.reads.every(isSame)) return known.expected;
  const reads: Read[] = [];
  let isOfBefore = true;
  const expected = one.expect((name, place) => {
    const values = before(name, place);
    reads.push({ name, place, values: [...values] });
    return values;
  }, (name, place) => {
    isOfBefore = false;
    return after(name, place);
  });
  if (isOfBefore) given.set(one, { reads, expected });
  return expected;
}

/** The first place at which numbers differ, of which NaN is one, and below 0 where they are the same. */
function differsAt(a: ArrayLike<number>, b: ArrayLike<number>): number {
  const length = Math.max(a.length, b.length);
  for (let i = 0; i < length; i++) if (!Object.is(a[i], b[i])) return i;
  return -1;
}

/** Values in the bytes of a dtype. */
export function encode(dtype: DType, values: readonly number[]): Uint8Array<ArrayBuffer> {
  const halves = (): Uint16Array<ArrayBuffer> => {
    const rounded = new Uint32Array(new Float32Array(values.map(toBfloat16)).buffer);
    const halves = new Uint16Array(rounded.length);
    for (let i = 0; i < halves.length; i++) halves[i] = pick(rounded, i) >>> 16;
    return halves;
  };
  const array = dtype === float32
    ? new Float32Array(values)
    : dtype === float64
    ? new Float64Array(values)
    : dtype === bfloat16
    ? halves()
    : dtype === float16
    ? new Float16Array(values)
    : dtype === int32
    ? new Int32Array(values)
    : dtype === int64
    ? BigInt64Array.from(values, (value) => BigInt(Math.trunc(value)))
    : new Uint8Array(values);
  return new Uint8Array(array.buffer);
}

/** The values in bytes of a dtype. */
export function decode(dtype: DType, bytes: Uint8Array<ArrayBuffer>): number[] {
  const { buffer } = bytes.slice();
  if (dtype === float32) return numbers(new Float32Array(buffer));
  if (dtype === float64) return numbers(new Float64Array(buffer));
  if (dtype === int32) return numbers(new Int32Array(buffer));
  if (dtype === uint8) return numbers(new Uint8Array(buffer));
  if (dtype === int64) return numbers(new BigInt64Array(buffer));
  if (dtype === float16) return numbers(new Float16Array(buffer));
  assert.equal(dtype, bfloat16);
  const halves = new Uint16Array(buffer);
  const words = new Uint32Array(halves.length);
  for (let i = 0; i < words.length; i++) words[i] = pick(halves, i) << 16;
  return numbers(new Float32Array(words.buffer));
}

function describe(args: Arguments): string {
  return Object.entries(args).map(([name, value]) => {
    const text = typeof value === "object" && "code" in value ? value.name : String(value);
    return `${name}=${text}`;
  }).join(" ");
}

/**
 * Places in memory that C reads and fills: out-parameters and structs. Their bytes have an ArrayBuffer of their own from
 * the beginning, so that their address never changes; it is valid while the object is reachable.
 *
 * The casts here follow from the type that a place was made with: no checker narrows a generic type by its value.
 *
 * @module
 */
import { InternalError } from "../../errors.ts";
import type { NativeAddress, Out, PlaceType, Struct, StructField, StructLayout, ValueAt, ValueFor } from "../types.ts";
import type { RuntimeFfi } from "./provider.ts";

/** A place for an out-parameter. */
export class OutPlace<T extends PlaceType> implements Out<T> {
  readonly type: T;
  readonly bytes: Uint8Array;
  readonly #view: DataView;
  readonly #ffi: RuntimeFfi<NativeAddress>;

  constructor(type: T, ffi: RuntimeFfi<NativeAddress>) {
    this.type = type;
    this.#view = new DataView(new ArrayBuffer(byteLengthOf(type)));
    this.bytes = new Uint8Array(this.#view.buffer);
    this.#ffi = ffi;
  }

  get value(): ValueAt<T> {
    return readPlace(this.#view, 0, this.type, this.#ffi) as ValueAt<T>;
  }
}

/** One struct, or several in a row. */
export class StructArray<L extends StructLayout> implements Struct<L> {
  readonly layout: L;
  readonly count: number;
  readonly bytes: Uint8Array;
  readonly #view: DataView;
  readonly #ffi: RuntimeFfi<NativeAddress>;

  constructor(layout: L, count: number, ffi: RuntimeFfi<NativeAddress>) {
    this.layout = layout;
    this.count = count;
    this.#view = new DataView(new ArrayBuffer(layout.byteLength * count));
    this.bytes = new Uint8Array(this.#view.buffer);
    this.#ffi = ffi;
    for (const { offset, type, initial } of Object.values(layout.fields)) {
      if (initial === undefined) continue;
      for (let at = offset; at < this.bytes.byteLength; at += layout.byteLength) {
        writePlace(this.#view, at, type, initial, ffi);
      }
    }
  }

  get name(): L["name"] {
    return this.layout.name;
  }

  get<F extends keyof L["fields"]>(field: F, index: number = 0): ValueAt<L["fields"][F]["type"]> {
    const { offset, type } = this.#field(field, index);
    const at = index * this.layout.byteLength + offset;
    return readPlace(this.#view, at, type, this.#ffi) as ValueAt<L["fields"][F]["type"]>;
  }

  set<F extends keyof L["fields"]>(field: F, value: ValueFor<L["fields"][F]["type"]>, index: number = 0): void {
    const { offset, type } = this.#field(field, index);
    writePlace(this.#view, index * this.layout.byteLength + offset, type, value, this.#ffi);
  }

  #field(field: keyof L["fields"], index: number): StructField {
    const found = this.layout.fields[String(field)];
    if (found === undefined) throw new InternalError(`${this.name} has no member '${String(field)}'`);
    if (!(index >= 0 && index < this.count)) throw new InternalError(`${this.name}[${index}] of ${this.count}`);
    return found;
  }
}

/** Bytes of a place. */
export function byteLengthOf(type: PlaceType): number {
  if (typeof type === "object") return type.bytes;
  return type === "i32" || type === "u32" || type === "f32" ? 4 : 8;
}

function readPlace(view: DataView, at: number, type: PlaceType, ffi: RuntimeFfi<NativeAddress>): unknown {
  if (typeof type === "object") return new Uint8Array(view.buffer, at, type.bytes);
  switch (type) {
    case "i32":
      return view.getInt32(at, true);
    case "u32":
      return view.getUint32(at, true);
    case "f32":
      return view.getFloat32(at, true);
    case "f64":
      return view.getFloat64(at, true);
    case "i64":
      return safe(view.getBigInt64(at, true));
    case "u64":
    case "usize":
      return safe(view.getBigUint64(at, true));
    default:
      return ffi.readAddress(view, at);
  }
}

function writePlace(view: DataView, at: number, type: PlaceType, value: unknown, ffi: RuntimeFfi<NativeAddress>): void {
  if (typeof type === "object") {
    const bytes = value as Uint8Array; // ValueFor<{ bytes }>
    if (bytes.byteLength !== type.bytes) {
      throw new InternalError(`${bytes.byteLength} bytes for a place of ${type.bytes}`);
    }
    new Uint8Array(view.buffer, at, type.bytes).set(bytes);
    return;
  }
  switch (type) {
    case "i32":
      return view.setInt32(at, whole(value, -(2 ** 31), 2 ** 31 - 1), true);
    case "u32":
      return view.setUint32(at, whole(value, 0, 2 ** 32 - 1), true);
    case "f32":
      return view.setFloat32(at, value as number, true); // ValueFor<"f32">
    case "f64":
      return view.setFloat64(at, value as number, true); // ValueFor<"f64">
    case "i64":
      return view.setBigInt64(at, BigInt(value as number | bigint), true); // ValueFor<"i64">
    case "u64":
    case "usize":
      return view.setBigUint64(at, BigInt(value as number | bigint), true); // ValueFor<"u64">
    default:
      return ffi.writeAddress(view, at, value as NativeAddress); // ValueFor<"address" | HandleType>
  }
}

function whole(value: unknown, low: number, high: number): number {
  if (typeof value === "number" && Number.isInteger(value) && value >= low && value <= high) return value;
  throw new InternalError(`${String(value)} is no whole number from ${low} to ${high}`);
}

function safe(value: bigint): number {
  const number = Number(value);
  if (Number.isSafeInteger(number)) return number;
  throw new InternalError(`no JS number holds ${value}`);
}

/**
 * Checks a call's arguments against the types of its binding, makes of them what the runtime passes, and puts them in
 * words for messages.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import type { CallSite, Converter } from "./marshal.ts";
import { OutPlace, StructArray } from "./providers/memory.ts";
import type { ArgumentType, FfiProvider, HandleType, NativeAddress, StructLayout } from "./types.ts";

/** True if a type of the table is a handle's: see {@link HandleType}. */
export function isHandleType(type: ArgumentType): type is HandleType {
  return typeof type === "string" && type.endsWith("_t");
}

/** The converter of arguments of one type, which refuses all others. */
export function argumentConverter(type: ArgumentType, index: number, site: CallSite): Converter {
  const { ffi, provider } = site;
  const refuse = (value: unknown): never => {
    const place = `argument ${index + 1} of '${site.name}'`;
    const [given, expected] = [describe(value, undefined, provider), describeType(type)];
    throw new ArgumentError(`Cannot pass ${given} as ${place} as its type is ${expected}`);
  };
  const whole = (low: number, high: number): Converter => (value) =>
    typeof value === "number" && Number.isInteger(value) && value >= low && value <= high
      ? value + 0 // Deno refuses -0 for an integer; adding 0 makes it +0
      : refuse(value);
  const whole64 = (low: bigint, high: bigint): Converter => (value) => {
    if (typeof value === "number") {
      return Number.isSafeInteger(value) && (value >= 0 || low < 0n) ? ffi.integer64(value + 0) : refuse(value);
    }
    return typeof value === "bigint" && value >= low && value <= high ? ffi.integer64(value) : refuse(value);
  };
  if (typeof type === "object") {
    if ("out" in type) {
      return (value) => value instanceof OutPlace && value.type === type.out ? value.bytes : refuse(value);
    }
    const name = "pointer" in type ? type.pointer : type.value;
    const isTaken = (value: StructArray<StructLayout>): boolean =>
      value.name === name && ("pointer" in type || value.bytes.byteLength === type.byteLength);
    return (value) => value instanceof StructArray && isTaken(value) ? value.bytes : refuse(value);
  }
  if (isHandleType(type)) return (value) => isAddress(value, provider) ? value : refuse(value);
  switch (type) {
    case "i32":
      return whole(-(2 ** 31), 2 ** 31 - 1);
    case "u32":
      return whole(0, 2 ** 32 - 1);
    case "i64":
      return whole64(-(2n ** 63n), 2n ** 63n - 1n);
    case "u64":
    case "usize":
      return whole64(0n, 2n ** 64n - 1n);
    case "f32":
    case "f64":
      return (value) => typeof value === "number" ? value : refuse(value);
    case "address":
      return (value) => isAddress(value, provider) ? value : refuse(value);
    case "buffer":
      return (value) => ArrayBuffer.isView(value) ? value : refuse(value);
    case "optionalBuffer":
      return (value) => value === null || ArrayBuffer.isView(value) ? value : refuse(value);
    case "cstring":
      return (value) =>
        typeof value === "string" && !value.includes("\0") ? encoder.encode(`${value}\0`) : refuse(value);
  }
}

const encoder = new TextEncoder();

function describeType(type: ArgumentType): string {
  if (typeof type === "string") return type;
  if ("out" in type) {
    return `an out-parameter of ${typeof type.out === "string" ? type.out : `${type.out.bytes} bytes`}`;
  }
  return "pointer" in type ? `a pointer to ${type.pointer}` : type.value;
}

/** An argument in words, for messages. */
export function describe(value: unknown, type: ArgumentType | undefined, provider: FfiProvider): string {
  if (value instanceof OutPlace) return "<out>";
  if (value instanceof StructArray) return `<${value.name}>`;
  if (ArrayBuffer.isView(value)) return `<${value.byteLength} bytes>`;
  if (typeof value === "string") return JSON.stringify(value);
  const isAddressType = type === "address" || (type !== undefined && isHandleType(type));
  if (isAddressType && isAddress(value, provider)) return provider.format(value);
  return String(value);
}

function isAddress(value: unknown, provider: FfiProvider): value is NativeAddress {
  return typeof value === typeof provider.nullAddress;
}

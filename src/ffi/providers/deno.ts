/**
 * The FFI of Deno; the only file that names it. Addresses are bigints, declared `u64`, and 64-bit integers are passed as
 * bigints: 6 ns a call, where a number would cost 120. The casts here are the ones that the untyped foreign interface
 * forces, each with its reason.
 *
 * Permission: `--allow-ffi` without a list. A list of paths admits `dlopen` of these files, but taking the address of a
 * buffer and reading native memory need the whole permission.
 *
 * @module
 */
import { isHandleType } from "../arguments.ts";
import type { RawFunction } from "../marshal.ts";
import type { ArgumentType, FfiProvider, ResultType } from "../types.ts";
import { type NamedBinding, NativeProvider, type OpenedFile, type RuntimeFfi } from "./provider.ts";

/** A native type as Deno names it; a struct is a list of its members' types. */
type DenoType = string | { readonly struct: readonly string[] };

/** The part of Deno's namespace in use. Declared here so that the file is checked without Deno's type library too. */
interface DenoFfi {
  dlopen(
    path: string,
    symbols: Record<string, { name: string; parameters: DenoType[]; result: string; optional: boolean }>,
  ): { symbols: Record<string, RawFunction | null>; close(): void };
  UnsafePointer: {
    of(view: ArrayBufferView | ArrayBufferLike): unknown;
    value(pointer: unknown): bigint;
    create(address: bigint): unknown;
  };
  UnsafePointerView: {
    getArrayBuffer(pointer: unknown, byteLength: number): ArrayBuffer;
    getCString(pointer: unknown): string;
  };
}

/** The name of a result's type, which is the binding's type except for addresses. */
function nameOf(type: ResultType): string {
  return type === "address" || type === "cstring" ? "u64" : type;
}

function typeOf(type: ArgumentType): DenoType {
  if (typeof type === "object") {
    return "value" in type ? { struct: Array<string>(type.byteLength / 8).fill("u64") } : "buffer";
  }
  if (isHandleType(type)) return nameOf("address");
  return type === "buffer" || type === "optionalBuffer" || type === "cstring" ? "buffer" : nameOf(type);
}

/** Makes the provider. Loads nothing until a library is asked for. */
export function createProvider(): FfiProvider {
  // The global's type is known only to a checker that has Deno's type library; DenoFfi above states the part that is
  // used.
  const deno = Reflect.get(globalThis, "Deno") as DenoFfi;
  return new NativeProvider(new DenoRuntime(deno));
}

class DenoRuntime implements RuntimeFfi<bigint> {
  readonly runtime = "deno";
  readonly null = 0n;
  readonly failed = 2n ** 64n - 1n;
  readonly #ffi: DenoFfi;

  constructor(ffi: DenoFfi) {
    this.#ffi = ffi;
  }

  toAddress(raw: unknown): bigint {
    return raw as bigint; // the declared result type u64 gives a bigint
  }

  numberOf(address: bigint): number {
    return Number(address);
  }

  offset(address: bigint, bytes: number): bigint {
    return address + BigInt(bytes);
  }

  readAddress(view: DataView, byteOffset: number): bigint {
    return view.getBigUint64(byteOffset, true);
  }

  writeAddress(view: DataView, byteOffset: number, address: bigint): void {
    view.setBigUint64(byteOffset, address, true);
  }

  integer64(value: number | bigint): bigint {
    return BigInt(value);
  }

  addressOf(view: ArrayBufferView | ArrayBufferLike): bigint {
    return this.#ffi.UnsafePointer.value(this.#ffi.UnsafePointer.of(view));
  }

  viewOf(address: bigint, byteLength: number): ArrayBuffer {
    return this.#ffi.UnsafePointerView.getArrayBuffer(this.#ffi.UnsafePointer.create(address), byteLength);
  }

  readCString(address: bigint): string {
    return this.#ffi.UnsafePointerView.getCString(this.#ffi.UnsafePointer.create(address));
  }

  open(path: string, entries: readonly NamedBinding[]): OpenedFile {
    const declarations: Parameters<DenoFfi["dlopen"]>[1] = {};
    for (const [key, { symbol = key, args, result }] of entries) {
      declarations[key] = { name: symbol, parameters: args.map(typeOf), result: nameOf(result), optional: true };
    }
    const opened = this.#ffi.dlopen(path, declarations);
    const functions = new Map<string, RawFunction>();
    for (const [key] of entries) {
      const raw = opened.symbols[key];
      if (raw !== undefined && raw !== null) functions.set(key, raw);
    }
    return { functions, close: () => opened.close() };
  }
}

/**
 * The common part of both runtimes' providers: binding a table, errno, places in memory. A runtime brings a {@link RuntimeFfi} of
 * the numbers that it passes fast as addresses; they become opaque here, so that no other code can tell the runtimes
 * apart. The casts here do that, and state types of the tables that no checker can follow.
 *
 * @module
 */
import { InternalError, UnsupportedError } from "../../errors.ts";
import { type Errno, lazyErrno } from "../errno.ts";
import { bindFunction, type RawFunction } from "../marshal.ts";
import type {
  Binding,
  BindingTable,
  BoundFunction,
  FfiProvider,
  Library,
  LoadOptions,
  NativeAddress,
  NullAddress,
  Out,
  PlaceType,
  Struct,
  StructLayout,
  Symbols,
} from "../types.ts";
import { OutPlace, StructArray } from "./memory.ts";

/** One binding with its name in the table. */
export type NamedBinding = readonly [name: string, binding: Binding];

/** An opened library file. */
export interface OpenedFile {
  /** The functions that the file has, by their names in the table. */
  readonly functions: ReadonlyMap<string, RawFunction>;
  close(): void;
}

/** One runtime's foreign-function interface, whose addresses are of type `A`. */
export interface RuntimeFfi<A> {
  readonly runtime: "bun" | "deno";
  readonly null: A;
  /** `MAP_FAILED`. */
  readonly failed: A;
  /** The address that a raw function returned. */
  toAddress(raw: unknown): A;
  numberOf(address: A): number;
  offset(address: A, bytes: number): A;
  readAddress(view: DataView, byteOffset: number): A;
  writeAddress(view: DataView, byteOffset: number, address: A): void;
  /** A checked 64-bit integer as the type that is passed fast. */
  integer64(value: number | bigint): unknown;
  addressOf(view: ArrayBufferView | ArrayBufferLike): A;
  viewOf(address: A, byteLength: number): ArrayBuffer;
  readCString(address: A): string;
  /** @throws {Error} the runtime's own, if the file cannot be loaded */
  open(path: string, entries: readonly NamedBinding[]): OpenedFile;
}

const ERRNO_BINDINGS = { __errno_location: { args: [], result: "address", check: "notNull" } } as const;

/** The provider over one runtime's interface. */
export class NativeProvider implements FfiProvider {
  readonly runtime: "bun" | "deno";
  readonly nullAddress: NullAddress;
  readonly #ffi: RuntimeFfi<NativeAddress>;
  readonly #errno: () => Errno = lazyErrno((soname) => {
    const { symbols } = this.load("libc", soname, ERRNO_BINDINGS);
    return this.viewOf(symbols.__errno_location(), 4);
  });

  constructor(ffi: RuntimeFfi<number> | RuntimeFfi<bigint>) {
    this.#ffi = ffi as unknown as RuntimeFfi<NativeAddress>; // the brand of an address exists in types only
    this.runtime = ffi.runtime;
    this.nullAddress = this.#ffi.null as NullAddress; // NULL is of every handle type
  }

  addressOf(view: ArrayBufferView | ArrayBufferLike): NativeAddress {
    if (view.byteLength === 0) throw new InternalError("an empty view has no address");
    return this.#ffi.addressOf(view);
  }

  numberOf(address: NativeAddress): number {
    return this.#ffi.numberOf(address);
  }

  offset(address: NativeAddress, bytes: number): NativeAddress {
    return this.#ffi.offset(address, bytes);
  }

  viewOf(address: NativeAddress, byteLength: number): ArrayBuffer {
    return this.#ffi.viewOf(address, byteLength);
  }

  readCString(address: NativeAddress): string {
    return this.#ffi.readCString(address);
  }

  format(address: NativeAddress): string {
    return `0x${(address as unknown as number | bigint).toString(16)}`; // as in the constructor
  }

  out<T extends PlaceType>(type: T): Out<T> {
    return new OutPlace(type, this.#ffi);
  }

  struct<L extends StructLayout>(layout: L, count: number = 1): Struct<L> {
    return new StructArray(layout, count, this.#ffi);
  }

  load<T extends BindingTable>(name: string, path: string, bindings: T, options: LoadOptions = {}): Library<T> {
    const entries: readonly NamedBinding[] = Object.entries(bindings);
    const { functions, close } = this.#ffi.open(path, entries);
    const missing = entries.filter(([key, { optional, since }]) =>
      !functions.has(key) && optional !== true && since === undefined
    );
    if (missing.length > 0) {
      close();
      const names = missing.map(([key, { symbol = key }]) => `'${symbol}'`).join(", ");
      const why = options.oldest === undefined ? "" : `, which releases from ${options.oldest} on have`;
      throw new UnsupportedError(`it lacks ${names}${why}`);
    }
    const bound = new Map<string, ReturnType<typeof bindFunction>>();
    const { statuses = { names: {} } } = options;
    for (const [key, binding] of entries) {
      const raw = functions.get(key);
      if (raw === undefined) continue;
      const call = { library: name, name: key, binding, statuses, bound };
      bound.set(key, bindFunction(raw, { ...call, ffi: this.#ffi, provider: this, errno: this.#errno }));
    }
    return {
      name,
      path,
      // bindFunction made each entry from the binding of the same key, which is what Symbols<T> states.
      symbols: Object.fromEntries(bound) as unknown as Symbols<T>,
      need: <N extends keyof T & string>(key: N): BoundFunction<T[N]> => {
        const found = bound.get(key);
        if (found !== undefined) return found as unknown as BoundFunction<T[N]>; // as for `symbols`
        const since = bindings[key]?.since;
        const why = since === undefined ? "" : `, which releases from ${since} on have`;
        const remedy = options.remedy === undefined ? "" : `. ${options.remedy}`;
        throw new UnsupportedError(`Cannot call '${key}' of ${name}: ${path} lacks it${why}${remedy}`);
      },
      provider: this,
      close,
    };
  }
}

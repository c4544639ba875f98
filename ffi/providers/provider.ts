/**
 * What both runtimes' providers share: binding a table, errno, statuses in words, places in memory. A runtime brings a
 * {@link RuntimeFfi}, in which an address is what that runtime passes fast; this file never asks which. The casts here
 * make addresses opaque, and state what a table says and no checker can follow.
 *
 * @module
 */
import { InternalError, UnsupportedError } from "../../src/errors.ts";
import { type Errno, lazyErrno } from "../errno.ts";
import { bindFunction, type RawFunction, type RuntimeForms } from "../marshal.ts";
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
export type Entry = readonly [name: string, binding: Binding];

/** An opened file: its functions by their names in the table, without those that it lacks. */
export interface OpenedFile {
  readonly functions: ReadonlyMap<string, RawFunction>;
  close(): void;
}

/** One runtime's foreign-function interface, in the runtime's own forms. `A` is what an address is. */
export interface RuntimeFfi<A extends number | bigint> {
  readonly runtime: "bun" | "deno";
  readonly null: A;
  /** What `MAP_FAILED` is. */
  readonly failed: A;
  /** A raw result of type `address`. */
  toAddress(raw: unknown): A;
  offset(address: A, bytes: number): A;
  readAddress(view: DataView, byteOffset: number): A;
  writeAddress(view: DataView, byteOffset: number, address: A): void;
  /** A checked 64-bit integer in the form that is passed fast. */
  integer64(value: number | bigint): unknown;
  /** A view, or null, as a pointer argument. */
  buffer(view: ArrayBufferView | null): unknown;
  addressOf(view: ArrayBufferView | ArrayBufferLike): A;
  viewOf(address: A, byteLength: number): ArrayBuffer;
  readCString(address: A): string;
  /** @throws {Error} the runtime's own, if the file cannot be loaded */
  open(path: string, entries: readonly Entry[]): OpenedFile;
}

const ERRNO_LOCATION: Entry = ["__errno_location", { args: [], result: "address", check: "none" }];

/** The provider over one runtime's interface. */
export class NativeProvider<A extends number | bigint> implements FfiProvider {
  readonly runtime: "bun" | "deno";
  readonly nullAddress: NullAddress;
  readonly #ffi: RuntimeFfi<A>;
  readonly #forms: RuntimeForms;
  readonly #errno: () => Errno = lazyErrno((soname) => {
    const { functions } = this.#ffi.open(soname, [ERRNO_LOCATION]);
    return this.#ffi.viewOf(this.#ffi.toAddress(functions.get(ERRNO_LOCATION[0])?.()), 4);
  });

  constructor(ffi: RuntimeFfi<A>) {
    this.#ffi = ffi;
    this.runtime = ffi.runtime;
    this.nullAddress = brand(ffi.null) as NullAddress; // NULL is of every handle type
    this.#forms = {
      integer64: (value) => ffi.integer64(value),
      buffer: (view) => ffi.buffer(view),
      address: (raw) => brand(ffi.toAddress(raw)),
      readAddress: (view, byteOffset) => brand(ffi.readAddress(view, byteOffset)),
      writeAddress: (view, byteOffset, address) => ffi.writeAddress(view, byteOffset, plain(address)),
      failedAddress: brand(ffi.failed),
      nullAddress: this.nullAddress,
      readCString: (address) => this.readCString(address),
      format: (address) => this.format(address),
    };
  }

  addressOf(view: ArrayBufferView | ArrayBufferLike): NativeAddress {
    if (view.byteLength === 0) throw new InternalError("an empty view has no address");
    return brand(this.#ffi.addressOf(view));
  }

  offset(address: NativeAddress, bytes: number): NativeAddress {
    return brand(this.#ffi.offset(plain(address), bytes));
  }

  viewOf(address: NativeAddress, byteLength: number): ArrayBuffer {
    return this.#ffi.viewOf(plain(address), byteLength);
  }

  readCString(address: NativeAddress): string {
    return this.#ffi.readCString(plain(address));
  }

  format(address: NativeAddress): string {
    return `0x${plain<A>(address).toString(16)}`;
  }

  out<T extends PlaceType>(type: T): Out<T> {
    return new OutPlace(type, this.#forms);
  }

  struct<L extends StructLayout>(layout: L, count: number = 1): Struct<L> {
    return new StructArray(layout, count, this.#forms);
  }

  load<T extends BindingTable>(name: string, path: string, bindings: T, options: LoadOptions = {}): Library<T> {
    const entries: readonly Entry[] = Object.entries(bindings);
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
      const site = { library: name, name: key, binding, forms: this.#forms, statuses, bound, errno: this.#errno };
      bound.set(key, bindFunction(raw, site));
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

// The brand exists in types only; this is where the runtime's numbers become addresses.
function brand(address: number | bigint): NativeAddress {
  return address as unknown as NativeAddress;
}

// The inverse of brand.
function plain<A extends number | bigint>(address: NativeAddress): A {
  return address as unknown as A;
}

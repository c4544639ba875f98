/**
 * The FFI provider of Bun; the only file that names `bun:ffi`. Addresses are JS numbers, which Bun passes in 1–2 ns (a
 * bigint costs ten times that). The casts here are the ones that the untyped foreign interface forces, each with its
 * reason.
 *
 * Bun has no permissions. It has no non-blocking calls either: what blocks belongs in a Worker.
 *
 * @module
 */
import { InternalError } from "../../src/errors.ts";
import { type Errno, lazyErrno } from "../errno.ts";
import { bindFunction, type RawFunction, type RuntimeForms } from "../marshal.ts";
import type {
  ArgumentType,
  Binding,
  BindingTable,
  FfiProvider,
  Library,
  NativeAddress,
  ResultType,
  StatusNames,
  Symbols,
} from "../types.ts";

/** The part of `bun:ffi` in use. Declared here so that Deno can check this file without resolving `bun:ffi`. */
interface BunFfi {
  dlopen(path: string, symbols: Record<string, { args: string[]; returns: string }>): {
    symbols: Record<string, RawFunction>;
    close(): void;
  };
  ptr(view: ArrayBufferView | ArrayBufferLike): number;
  toArrayBuffer(address: number, byteOffset: number, byteLength: number): ArrayBuffer;
  CString: new (address: number) => { toString(): string };
}

const NUMBERS = {
  i32: "i32",
  u32: "u32",
  i64: "i64_fast",
  u64: "u64_fast",
  usize: "u64_fast",
  f32: "f32",
  f64: "f64",
};

const ARGUMENTS: Readonly<Record<ArgumentType, string>> = {
  ...NUMBERS,
  address: "ptr",
  buffer: "ptr",
  optionalBuffer: "ptr",
  cstring: "ptr",
};

const RESULTS: Readonly<Record<ResultType, string>> = { ...NUMBERS, void: "void", address: "ptr", cstring: "ptr" };

// The brand exists in types only; in Bun an address is a number, and this is where numbers become addresses.
function brand(address: number): NativeAddress {
  return address as unknown as NativeAddress;
}

// The inverse of brand.
function plain(address: NativeAddress): number {
  return address as unknown as number;
}

/** Makes the provider. Opens `bun:ffi`, and nothing else until a library is loaded. */
export async function createProvider(): Promise<FfiProvider> {
  // Deno refuses a literal `bun:` specifier anywhere in its module graph, reachable or not.
  const specifier = ["bun", "ffi"].join(":");
  // A computed import has no type; BunFfi above states the part that is used.
  const ffi = await import(specifier) as BunFfi;
  return new BunProvider(ffi);
}

class BunProvider implements FfiProvider {
  readonly runtime = "bun";
  readonly nullAddress: NativeAddress = brand(0);
  readonly #ffi: BunFfi;
  readonly #forms: RuntimeForms;
  readonly #errno: () => Errno = lazyErrno((soname) => {
    const libc = this.#ffi.dlopen(soname, { __errno_location: { args: [], returns: "ptr" } });
    return this.viewOf(this.#forms.address(libc.symbols["__errno_location"]?.()), 4);
  });

  constructor(ffi: BunFfi) {
    this.#ffi = ffi;
    this.#forms = {
      integer64: (value) => value,
      buffer: (view) => view,
      // Bun gives NULL as null, and an address above 2^53 (only ever MAP_FAILED) as a bigint.
      address: (raw) => brand(Number(raw)),
      failedAddress: brand(2 ** 64),
      nullAddress: this.nullAddress,
      readCString: (address) => this.readCString(address),
      format: (address) => this.format(address),
    };
  }

  addressOf(view: ArrayBufferView | ArrayBufferLike): NativeAddress {
    if (view.byteLength === 0) throw new InternalError("an empty view has no address");
    // A small typed array keeps its elements beside the object until `.buffer` is first read, which moves them.
    if (ArrayBuffer.isView(view)) void view.buffer;
    return brand(this.#ffi.ptr(view));
  }

  numberOf(address: NativeAddress): number {
    return plain(address);
  }

  offset(address: NativeAddress, bytes: number): NativeAddress {
    return brand(plain(address) + bytes);
  }

  viewOf(address: NativeAddress, byteLength: number): ArrayBuffer {
    return this.#ffi.toArrayBuffer(plain(address), 0, byteLength);
  }

  readCString(address: NativeAddress): string {
    return new this.#ffi.CString(plain(address)).toString();
  }

  format(address: NativeAddress): string {
    return `0x${plain(address).toString(16)}`;
  }

  load<T extends BindingTable>(name: string, path: string, bindings: T, statuses: StatusNames = {}): Library<T> {
    const opened: { close(): void }[] = [];
    const bound: Record<string, unknown> = {};
    try {
      for (const group of groups(bindings)) {
        const library = this.#open(path, group);
        if (library === undefined) continue;
        opened.push(library);
        for (const [key, binding] of group) {
          const raw = library.symbols[binding.symbol ?? key];
          if (raw === undefined) throw new InternalError(`${path} was opened without '${key}'`);
          bound[key] = bindFunction(raw, {
            library: name,
            name: key,
            binding,
            forms: this.#forms,
            statuses,
            errno: this.#errno,
          });
        }
      }
    } catch (error) {
      for (const library of opened) library.close();
      throw error;
    }
    return {
      name,
      path,
      // bindFunction made each entry from the binding of the same key, which is what Symbols<T> states.
      symbols: bound as unknown as Symbols<T>,
      provider: this,
      close: () => {
        for (const library of opened) library.close();
      },
    };
  }

  /** Opens a group of symbols; undefined if the group is one optional symbol that the library lacks. */
  #open(path: string, group: readonly (readonly [string, Binding])[]): ReturnType<BunFfi["dlopen"]> | undefined {
    const declarations: Record<string, { args: string[]; returns: string }> = {};
    for (const [key, binding] of group) {
      const args = binding.args.map((type) => ARGUMENTS[type]);
      declarations[binding.symbol ?? key] = { args, returns: RESULTS[binding.result] };
    }
    try {
      return this.#ffi.dlopen(path, declarations);
    } catch (error) {
      const optional = group.every(([, binding]) => binding.optional === true);
      if (optional && error instanceof Error && /symbol .* not found/i.test(error.message)) return undefined;
      throw error;
    }
  }
}

/**
 * Bun binds a symbol once an opening and fails as a whole: a second signature, and each optional symbol, goes apart.
 */
function groups(bindings: BindingTable): (readonly [string, Binding])[][] {
  const all: { names: Set<string>; entries: (readonly [string, Binding])[] }[] = [];
  const optional: (readonly [string, Binding])[][] = [];
  for (const entry of Object.entries(bindings)) {
    const symbol = entry[1].symbol ?? entry[0];
    if (entry[1].optional === true) {
      optional.push([entry]);
      continue;
    }
    let group = all.find(({ names }) => !names.has(symbol));
    if (group === undefined) all.push(group = { names: new Set(), entries: [] });
    group.names.add(symbol);
    group.entries.push(entry);
  }
  return [...all.map(({ entries }) => entries), ...optional];
}

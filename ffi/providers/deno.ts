/**
 * The FFI provider of Deno; the only file that names Deno's FFI. Addresses are bigints, declared `u64`, and 64-bit
 * integers are passed as bigints: 6 ns a call, where a number would cost 120. The casts here are the ones that the
 * untyped foreign interface forces, each with its reason.
 *
 * Permission: `--allow-ffi` without a list. A list of paths admits `dlopen` of these files, but taking the address of a
 * buffer and reading native memory need the whole permission.
 *
 * @module
 */
import { InternalError } from "../../src/errors.ts";
import { type Errno, lazyErrno } from "../errno.ts";
import { bindFunction, type RawFunction, type RuntimeForms } from "../marshal.ts";
import type {
  ArgumentType,
  BindingTable,
  FfiProvider,
  Library,
  NativeAddress,
  ResultType,
  StatusNames,
  Symbols,
} from "../types.ts";

/** The part of Deno's namespace in use. Declared here so that the file is checked without Deno's type library too. */
interface DenoFfi {
  dlopen(
    path: string,
    symbols: Record<string, { name: string; parameters: string[]; result: string; optional: boolean }>,
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

const NUMBERS = {
  i32: "i32",
  u32: "u32",
  i64: "i64",
  u64: "u64",
  usize: "usize",
  f32: "f32",
  f64: "f64",
};

const ARGUMENTS: Readonly<Record<ArgumentType, string>> = {
  ...NUMBERS,
  address: "u64",
  buffer: "buffer",
  optionalBuffer: "buffer",
  cstring: "buffer",
};

const RESULTS: Readonly<Record<ResultType, string>> = { ...NUMBERS, void: "void", address: "u64", cstring: "u64" };

// The brand exists in types only; in Deno an address is a bigint, and this is where bigints become addresses.
function brand(address: bigint): NativeAddress {
  return address as unknown as NativeAddress;
}

// The inverse of brand.
function plain(address: NativeAddress): bigint {
  return address as unknown as bigint;
}

/** Makes the provider. Loads nothing until a library is asked for. */
export function createProvider(): FfiProvider {
  // The global's type is known only to a checker that has Deno's type library; DenoFfi above states the part that is
  // used.
  const deno = Reflect.get(globalThis, "Deno") as DenoFfi;
  return new DenoProvider(deno);
}

class DenoProvider implements FfiProvider {
  readonly runtime = "deno";
  readonly nullAddress: NativeAddress = brand(0n);
  readonly #ffi: DenoFfi;
  readonly #forms: RuntimeForms;
  readonly #errno: () => Errno = lazyErrno((soname) => {
    const libc = this.#ffi.dlopen(soname, {
      __errno_location: { name: "__errno_location", parameters: [], result: "u64", optional: false },
    });
    return this.viewOf(this.#forms.address(libc.symbols["__errno_location"]?.()), 4);
  });

  constructor(ffi: DenoFfi) {
    this.#ffi = ffi;
    this.#forms = {
      integer64: (value) => BigInt(value),
      buffer: (view) => view,
      // The declared result type u64 gives a bigint.
      address: (raw) => brand(raw as bigint),
      failedAddress: brand(2n ** 64n - 1n),
      nullAddress: this.nullAddress,
      readCString: (address) => this.readCString(address),
      format: (address) => this.format(address),
    };
  }

  addressOf(view: ArrayBufferView | ArrayBufferLike): NativeAddress {
    if (view.byteLength === 0) throw new InternalError("an empty view has no address");
    return brand(this.#ffi.UnsafePointer.value(this.#ffi.UnsafePointer.of(view)));
  }

  numberOf(address: NativeAddress): number {
    return Number(plain(address));
  }

  offset(address: NativeAddress, bytes: number): NativeAddress {
    return brand(plain(address) + BigInt(bytes));
  }

  viewOf(address: NativeAddress, byteLength: number): ArrayBuffer {
    return this.#ffi.UnsafePointerView.getArrayBuffer(this.#ffi.UnsafePointer.create(plain(address)), byteLength);
  }

  readCString(address: NativeAddress): string {
    return this.#ffi.UnsafePointerView.getCString(this.#ffi.UnsafePointer.create(plain(address)));
  }

  format(address: NativeAddress): string {
    return `0x${plain(address).toString(16)}`;
  }

  load<T extends BindingTable>(name: string, path: string, bindings: T, statuses: StatusNames = {}): Library<T> {
    const declarations: Parameters<DenoFfi["dlopen"]>[1] = {};
    for (const [key, binding] of Object.entries(bindings)) {
      declarations[key] = {
        name: binding.symbol ?? key,
        parameters: binding.args.map((type) => ARGUMENTS[type]),
        result: RESULTS[binding.result],
        optional: binding.optional === true,
      };
    }
    const opened = this.#ffi.dlopen(path, declarations);
    const bound: Record<string, unknown> = {};
    for (const [key, binding] of Object.entries(bindings)) {
      const raw = opened.symbols[key];
      if (raw === undefined || raw === null) continue; // optional and lacking
      bound[key] = bindFunction(raw, {
        library: name,
        name: key,
        binding,
        forms: this.#forms,
        statuses,
        errno: this.#errno,
      });
    }
    return {
      name,
      path,
      // bindFunction made each entry from the binding of the same key, which is what Symbols<T> states.
      symbols: bound as unknown as Symbols<T>,
      provider: this,
      close: () => opened.close(),
    };
  }
}

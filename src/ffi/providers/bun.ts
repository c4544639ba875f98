/**
 * The FFI of Bun; the only file that names `bun:ffi`. Addresses are JS numbers, which Bun passes in 1–2 ns (a bigint
 * costs ten times that). The casts here are the ones that the untyped foreign interface forces, each with its reason.
 *
 * Bun has no permissions. It has no non-blocking calls either: what blocks belongs in a Worker.
 *
 * Note [Structs by value]: Bun passes none. On x86-64 Linux a struct of more than 16 bytes lies on the stack, after the
 * six registers of integers and addresses: so the registers that the other arguments leave are filled up, and the
 * struct's words follow as integers. On arm64 such a struct is a copy of the caller's, passed by its address.
 *
 * @module
 */
import { InternalError, UnsupportedError } from "../../errors.ts";
import { platform } from "../../runtime/processes.ts";
import { isHandleType } from "../arguments.ts";
import type { RawFunction } from "../marshal.ts";
import type { ArgumentType, Binding, FfiProvider, ResultType } from "../types.ts";
import { type NamedBinding, NativeProvider, type OpenedFile, type RuntimeFfi } from "./provider.ts";

/** The declaration of a function for Bun. */
interface Declaration {
  readonly args: string[];
  readonly returns: string;
}

/** The part of `bun:ffi` in use. Declared here so that Deno can check this file without resolving `bun:ffi`. */
interface BunFfi {
  dlopen(path: string, symbols: Record<string, Declaration>): { symbols: Record<string, RawFunction>; close(): void };
  ptr(view: ArrayBufferView | ArrayBufferLike): number;
  toArrayBuffer(address: number, byteOffset: number, byteLength: number): ArrayBuffer;
  CString: new (address: number) => { toString(): string };
}

/** Types that Bun calls otherwise than the bindings do. */
const OWN_NAMES: Readonly<Partial<Record<ResultType, string>>> = {
  i64: "i64_fast",
  u64: "u64_fast",
  usize: "u64_fast",
  address: "ptr",
  cstring: "ptr",
};

function nameOf(type: ResultType): string {
  return OWN_NAMES[type] ?? type;
}

function typeOf(type: ArgumentType): string {
  const isPointer = typeof type === "object" || type === "buffer" || type === "optionalBuffer" || isHandleType(type);
  return nameOf(isPointer ? "address" : type);
}

/** Makes the provider. Opens `bun:ffi`, and nothing else until a library is loaded. */
export async function createProvider(): Promise<FfiProvider> {
  // Deno refuses a literal `bun:` specifier anywhere in its module graph, reachable or not.
  const specifier = ["bun", "ffi"].join(":");
  // A computed import has no type; BunFfi above states the part that is used.
  const ffi = await import(specifier) as BunFfi;
  return new NativeProvider(new BunRuntime(ffi));
}

class BunRuntime implements RuntimeFfi<number> {
  readonly runtime = "bun";
  readonly null = 0;
  readonly failed = 2 ** 64;
  readonly #ffi: BunFfi;

  constructor(ffi: BunFfi) {
    this.#ffi = ffi;
  }

  toAddress(raw: unknown): number {
    return Number(raw); // Bun gives NULL as null, and an address above 2^53 (only ever MAP_FAILED) as a bigint
  }

  offset(address: number, bytes: number): number {
    return address + bytes;
  }

  readAddress(view: DataView, byteOffset: number): number {
    return view.getUint32(byteOffset + 4, true) * 2 ** 32 + view.getUint32(byteOffset, true);
  }

  writeAddress(view: DataView, byteOffset: number, address: number): void {
    view.setUint32(byteOffset, address % 2 ** 32, true);
    view.setUint32(byteOffset + 4, Math.floor(address / 2 ** 32), true);
  }

  integer64(value: number | bigint): number | bigint {
    return value;
  }

  addressOf(view: ArrayBufferView | ArrayBufferLike): number {
    // A small typed array keeps its elements beside the object until `.buffer` is first read, which moves them.
    if (ArrayBuffer.isView(view)) void view.buffer;
    return this.#ffi.ptr(view);
  }

  numberOf(address: number): number {
    return address;
  }

  viewOf(address: number, byteLength: number): ArrayBuffer {
    return this.#ffi.toArrayBuffer(address, 0, byteLength);
  }

  readCString(address: number): string {
    return new this.#ffi.CString(address).toString();
  }

  /** Bun binds a symbol once an opening: a second signature of it goes apart. */
  open(path: string, entries: readonly NamedBinding[]): OpenedFile {
    const functions = new Map<string, RawFunction>();
    const opened: { close(): void }[] = [];
    const close = (): void => opened.forEach((library) => library.close());
    try {
      for (let rest = entries; rest.length > 0;) {
        const group = new Map<string, NamedBinding>();
        for (const entry of rest) if (!group.has(symbolOf(entry))) group.set(symbolOf(entry), entry);
        rest = rest.filter((entry) => group.get(symbolOf(entry)) !== entry);
        const library = this.#openGroup(path, group);
        opened.push(library);
        for (const [symbol, [key, binding]] of group) {
          const raw = library.symbols[symbol];
          if (raw === undefined) throw new InternalError(`${path} was opened without '${symbol}'`);
          functions.set(key, takesStruct(binding) ? passingStruct(raw, binding) : raw);
        }
      }
    } catch (error) {
      close();
      throw error;
    }
    return { functions, close };
  }

  /** Opens all of a group that the file has; takes the others out of it. Bun names one that is lacking at a time. */
  #openGroup(path: string, group: Map<string, NamedBinding>): ReturnType<BunFfi["dlopen"]> {
    for (;;) {
      const declarations: Record<string, Declaration> = {};
      for (const [symbol, [, binding]] of group) declarations[symbol] = declare(binding);
      try {
        return group.size === 0 ? { symbols: {}, close: () => {} } : this.#ffi.dlopen(path, declarations);
      } catch (error) {
        const lacking = error instanceof Error ? /^Symbol "(.*?)" not found/.exec(error.message)?.[1] : undefined;
        if (lacking === undefined || !group.delete(lacking)) throw error;
      }
    }
  }
}

function symbolOf([key, { symbol = key }]: NamedBinding): string {
  return symbol;
}

function takesStruct({ args }: Binding): boolean {
  return args.some(isStruct);
}

function isStruct(type: ArgumentType): type is Extract<ArgumentType, { readonly value: unknown }> {
  return typeof type === "object" && "value" in type;
}

const REGISTERS = 6;

function declare(binding: Binding): Declaration {
  const { args, result } = binding;
  const returns = nameOf(result);
  const { os, arch } = platform();
  if (!takesStruct(binding) || arch === "arm64") return { args: args.map(typeOf), returns };
  const others = args.filter((type) => !isStruct(type));
  const structs = args.filter(isStruct).map(({ byteLength }) => byteLength);
  const fits = others.length <= REGISTERS && !others.includes("f32") && !others.includes("f64") &&
    structs.every((byteLength) => byteLength > 16 && byteLength % 8 === 0);
  if (os !== "linux" || arch !== "x64" || !fits) {
    throw new UnsupportedError(`Cannot pass a struct by value under Bun on ${os} ${arch}: use Deno`);
  }
  const words = REGISTERS - others.length + structs.reduce((sum, byteLength) => sum + byteLength / 8, 0);
  return { args: [...others.map(typeOf), ...Array<string>(words).fill("u64_fast")], returns };
}

/** The raw function of a binding that takes structs by value: see Note [Structs by value]. */
function passingStruct(raw: RawFunction, { args }: Binding): RawFunction {
  const structs = new Set(args.flatMap((type, index) => isStruct(type) ? [index] : []));
  // In a struct's place, the marshalling gives a view of its bytes.
  const bytesOf = (value: unknown): Uint8Array => value as Uint8Array;
  if (platform().arch === "arm64") {
    return (...values) => raw(...values.map((value, index) => structs.has(index) ? bytesOf(value).slice() : value));
  }
  const fillers = Array<number>(REGISTERS - args.length + structs.size).fill(0);
  return (...values) => {
    const words = values.filter((_, index) => structs.has(index)).flatMap((value) => {
      const { buffer, byteOffset, byteLength } = bytesOf(value);
      return [...new BigUint64Array(buffer, byteOffset, byteLength / 8)];
    });
    return raw(...values.filter((_, index) => !structs.has(index)), ...fillers, ...words);
  };
}

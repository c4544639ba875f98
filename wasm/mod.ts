/**
 * The door to the CPU kernels: finds a module that is what the sources were built to, compiles it and instantiates it over a
 * memory. The table of kernels in `src/device/kernels/` lists what its exports take; the exports check nothing.
 *
 * Both modules (`scripts/build_wasm.sh` makes them) import one memory and nothing else.
 *
 * @module
 */
import { InternalError, UnsupportedError } from "../src/errors.ts";
import { packagedBytes } from "../src/runtime/packaged.ts";
import { MODULE_DIGESTS } from "./digests.ts";

/** Which arithmetic a module has: `strict` gives the same bits everywhere, `relaxed` may fuse multiply and add. */
export type KernelVariant = keyof typeof MODULE_DIGESTS;

/** What the module imports its memory as. The linker's choice; a test compares it with the binaries. */
const MEMORY_MODULE = "./fullyshard_wasm_bg.js";

/** An export: takes numbers, and gives one if it gives anything. */
export type WasmFunction = (...values: readonly number[]) => number;

/** An instance of a kernel module. */
export interface KernelModule {
  /** First address behind the module's data and working space: a heap begins here. */
  readonly heapBase: number;
  /** Address of 4096 words for shapes, strides and source addresses, which the next call reads. */
  readonly listArea: number;
  /** @throws {InternalError} if the module has no such export */
  function(name: string): WasmFunction;
}

/** The modules beside this file that were read: what is compiled as they run serves each device of a thread. */
const compiled = new Map<KernelVariant, Promise<WebAssembly.Module>>();

/**
 * Reads and compiles one of the two kernel modules. A module may be instantiated many times, also in other workers; the one
 * beside this file is read once.
 *
 * @param variant which arithmetic
 * @param source where it lies, a `file:`, `http:` or `https:` URL; by default beside this file
 * @throws {FileError} if it cannot be read, or is another module
 * @throws {UnsupportedError} if the runtime cannot compile it
 */
export async function loadKernelModule(variant: KernelVariant, source?: URL): Promise<WebAssembly.Module> {
  if (source !== undefined) return await compileFrom(source, variant);
  const known = compiled.get(variant) ?? compileFrom(defaultSource(variant), variant);
  compiled.set(variant, known);
  try {
    return await known;
  } catch (error) {
    compiled.delete(variant); // it may be there the next time
    throw error;
  }
}

async function compileFrom(url: URL, variant: KernelVariant): Promise<WebAssembly.Module> {
  const bytes = await packagedBytes(url, `module '${variant}'`, MODULE_DIGESTS[variant]);
  try {
    return await WebAssembly.compile(bytes);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    const detail = `This runtime cannot compile the kernel module '${variant}' (${reason}); use a newer one`;
    throw new UnsupportedError(detail, { cause });
  }
}

/** One literal URL a file, so that bundlers see both. */
function defaultSource(variant: KernelVariant): URL {
  return variant === "strict"
    ? new URL("./pkg/strict.wasm", import.meta.url)
    : new URL("./pkg/relaxed.wasm", import.meta.url);
}

/**
 * Instantiates a kernel module over a memory, which it fills up to `heapBase` at once and never grows.
 *
 * @param module from {@link loadKernelModule}
 * @param memory one that this instance alone writes below `heapBase`
 * @throws {InternalError} if the module is another one, or the memory is smaller than what lies below `heapBase`
 */
export function instantiateKernels(module: WebAssembly.Module, memory: WebAssembly.Memory): KernelModule {
  const exports = new Map<string, unknown>(
    Object.entries(new WebAssembly.Instance(module, { [MEMORY_MODULE]: { memory } }).exports),
  );
  const named = (name: string): WasmFunction => {
    const found = exports.get(name);
    if (isWasmFunction(found)) return found;
    throw new InternalError(`The kernel module lacks '${name}'; rebuild it with scripts/build_wasm.sh`);
  };
  const heapBase = named("heap_base")() >>> 0;
  if (memory.buffer.byteLength < heapBase) {
    throw new InternalError(`The kernels need ${heapBase} bytes of memory, got ${memory.buffer.byteLength}`);
  }
  return { heapBase, listArea: named("list_area")() >>> 0, function: named };
}

function isWasmFunction(value: unknown): value is WasmFunction {
  return typeof value === "function";
}

/**
 * The door to the CPU kernels: finds and compiles a module and instantiates it over a memory. What its exports take is told by
 * the table of kernels in `src/device/kernels/`; nothing is checked behind this door.
 *
 * Both modules (`scripts/build_wasm.sh` makes them) import one memory and nothing else.
 *
 * @module
 */
import { FileError, InternalError } from "../src/errors.ts";
import { permissionRemedy } from "../src/runtime/permissions.ts";

/** Which arithmetic a module has: `strict` gives the same bits everywhere, `relaxed` may fuse multiply and add. */
export type KernelVariant = "strict" | "relaxed";

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
 * @param source the binary or where it lies, a `file:`, `http:` or `https:` URL; by default the file beside this one
 * @throws {FileError} if it cannot be read, or is no module
 */
export async function loadKernelModule(
  variant: KernelVariant,
  source?: URL | Uint8Array<ArrayBuffer>,
): Promise<WebAssembly.Module> {
  if (source instanceof Uint8Array) return await WebAssembly.compile(source);
  if (source !== undefined) return await compileFrom(source);
  const known = compiled.get(variant) ?? compileFrom(defaultSource(variant));
  compiled.set(variant, known);
  try {
    return await known;
  } catch (error) {
    compiled.delete(variant); // it may be there the next time
    throw error;
  }
}

async function compileFrom(url: URL): Promise<WebAssembly.Module> {
  let bytes: ArrayBuffer;
  try {
    const response = await fetch(url);
    if (!response.ok) throw new Error(`HTTP status ${response.status}`);
    bytes = await response.arrayBuffer();
  } catch (cause) {
    const detail = permissionRemedy(cause) ?? "the package is incomplete; install it again";
    throw new FileError(url.href, "read", detail, undefined, { cause });
  }
  try {
    return await WebAssembly.compile(bytes);
  } catch (cause) {
    const reason = cause instanceof Error ? cause.message : String(cause);
    const detail = `it is damaged (${reason}); install the package again`;
    throw new FileError(url.href, "compile", detail, undefined, { cause });
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

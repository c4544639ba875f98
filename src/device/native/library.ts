/**
 * The kernels as a native library: the choice for this processor, and its functions. Each takes one argument, the address of the
 * working space that holds its arguments; see `wasm/src/workspace.rs`.
 *
 * Permissions on Deno: `--allow-ffi`, and `--allow-read` of the library.
 *
 * @module
 */
import { type NativeLevel, nativeLibraryPath } from "../../../wasm/native.ts";
import { LibraryNotFoundError, UnsupportedError } from "../../errors.ts";
import type { Posix } from "../../ffi/posix.ts";
import type { ResultType, Symbols } from "../../ffi/types.ts";
import { platform } from "../../runtime/processes.ts";
import { exportName } from "../kernels/packing.ts";
import { KERNELS } from "../kernels/table.ts";
import { lackingFor, leastLevel, levelOf, readProcessor } from "./processor.ts";

/** A function of the working space. */
interface OfSpace<R extends ResultType> {
  readonly args: readonly ["address"];
  readonly result: R;
  readonly check: "none";
}

function ofSpace<R extends ResultType>(result: R): OfSpace<R> {
  return { args: ["address"], result, check: "none" };
}

/**
 * Functions that are not kernels: addresses of areas, a copy from any address, functions of numbers, and functions of threads,
 * which take a pool's address.
 */
type Others =
  & { readonly [N in "heap_base" | "list_area" | "pool_bytes" | "pool_helpers"]: OfSpace<"usize"> }
  & { readonly [N in "copy_past_caches" | "pool_end"]: OfSpace<"void"> }
  & {
    readonly [N in "portable_exp" | "portable_log" | "portable_sin" | "portable_cos" | "portable_pow"]: OfSpace<"f64">;
  };

const OTHERS: Others = {
  heap_base: ofSpace("usize"),
  list_area: ofSpace("usize"),
  copy_past_caches: ofSpace("void"),
  pool_bytes: ofSpace("usize"),
  pool_helpers: ofSpace("usize"),
  pool_end: ofSpace("void"),
  portable_exp: ofSpace("f64"),
  portable_log: ofSpace("f64"),
  portable_sin: ofSpace("f64"),
  portable_cos: ofSpace("f64"),
  portable_pow: ofSpace("f64"),
};

/** The function that a helper calls, which returns when its pool ends. */
export const HELPER: { readonly pool_work: OfSpace<"void"> } = { pool_work: ofSpace("void") };

export interface NativeLibrary {
  readonly level: NativeLevel;
  readonly path: string;
  /** The library's kernels, by name of the export. */
  readonly kernels: Symbols<Readonly<Record<string, OfSpace<"void">>>>;
  readonly others: Symbols<Others>;
  /** Closes the library; its functions must not be called after. */
  close(): void;
}

/** A level in words. */
export const LEVEL_NAMES: Readonly<Record<NativeLevel, string>> = {
  v3: "x86-64-v3 (AVX2)",
  v4: "x86-64-v4 (AVX-512)",
  "v4-bf16": "x86-64-v4 (AVX-512, AVX512_BF16)",
  neon: "aarch64 (NEON)",
};

/**
 * Opens the library for this processor.
 *
 * @param asked the level; by default the best that the processor has
 * @throws {UnsupportedError} if there is no library file for this processor or system
 * @throws {FileError} if it cannot be read, or is not this version's
 * @throws {LibraryNotFoundError} if it cannot be opened
 */
export async function openNativeLibrary(posix: Posix, asked?: NativeLevel): Promise<NativeLibrary> {
  const level = requireLevel(posix, asked);
  const path = await nativeLibraryPath(level);
  const bindings = Object.fromEntries(Object.keys(KERNELS).map((name) => [exportName(name), ofSpace("void")]));
  try {
    const kernels = posix.provider.load("native kernels", path, bindings);
    const others = posix.provider.load("native kernels", path, OTHERS);
    const close = (): void => {
      kernels.close();
      others.close();
    };
    return { level, path, kernels: kernels.symbols, others: others.symbols, close };
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    throw new LibraryNotFoundError("native kernels", [{ path, reason }], "Use cpuMath 'wasm-relaxed'");
  }
}

function requireLevel(posix: Posix, asked: NativeLevel | undefined): NativeLevel {
  const { os, arch } = platform();
  const least = leastLevel(arch);
  if (os !== "linux" || least === undefined) {
    const built = "they are built for Linux on x86-64 and arm64";
    throw new UnsupportedError(`Cannot run native kernels on ${os} ${arch}: ${built}`);
  }
  const processor = readProcessor(posix);
  if (processor === undefined) throw new UnsupportedError("Cannot run native kernels: /proc/cpuinfo cannot be read");
  const level = asked ?? levelOf(processor) ?? least;
  const lacking = lackingFor(level, processor);
  if (lacking.length === 0) return level;
  throw new UnsupportedError(
    `Cannot run native kernels for ${LEVEL_NAMES[level]} on this processor: it lacks ${lacking.join(", ")}`,
  );
}

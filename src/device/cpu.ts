/**
 * The CPU as a device, by the code that computes on it. The choice is explicit, or `auto`: native kernels, or the reason why not.
 *
 * @module
 */
import { requireWord } from "../config/known_values.ts";
import { ArgumentError, FileError, LibraryNotFoundError, NativeError, UnsupportedError } from "../errors.ts";
import { isPermitted } from "../runtime/permissions.ts";
import type { Trace } from "../runtime/trace.ts";
import type { Device } from "./device.ts";
import type { NativeDeviceOptions } from "./native/device.ts";
import { openWasmDevice } from "./wasm/device.ts";

/**
 * Code that computes on the CPU.
 *
 * - `native`: libraries of this package, for Linux on processors with AVX2, AVX-512 or NEON.
 * - `wasm`, `wasm-relaxed`: WASM modules of the same kernels.
 * - `auto`: `native` where it works, else `wasm-relaxed`.
 */
export const CPU_MATH = ["auto", "native", "wasm", "wasm-relaxed"] as const;
/** Name of the code that computes on the CPU. */
export type CpuMath = typeof CPU_MATH[number];

/** Options of the CPU device. */
export interface CpuDeviceOptions {
  /** Size of the memory in bytes. @default the host's memory with `native`, else 4 GiB, which is also the most there */
  readonly memoryBytes?: number | undefined;
  /** The code that computes. @default `wasm`, the same bits in every runtime */
  readonly cpuMath?: CpuMath;
  /** Ranks on this host, which share its cores. @default 1 */
  readonly ranksOnHost?: number;
  /**
   * Threads of this rank that share the work of a kernel; results have the same bits for any number. Used by `native`; WASM has
   * one. Default: the host's cores divided by its ranks.
   */
  readonly threads?: number | undefined;
  /** Reports faults of kernels late, as on devices where the host would have to wait: for tests. */
  readonly lateStatus?: boolean;
  /** Records every call of a kernel. */
  readonly trace?: Trace | undefined;
}

/**
 * Opens the CPU.
 *
 * @throws {ArgumentError} if there is no such `cpuMath`, or if the memory's size, the number of threads or of ranks is out of range
 * @throws {UnsupportedError} if WASM is asked for several threads, or a thread cannot be started
 * @throws {UnsupportedError} {@link FileError} {@link LibraryNotFoundError} if `cpuMath` is `native` and does not work here
 */
export async function openCpuDevice(options: CpuDeviceOptions = {}): Promise<Device> {
  const { cpuMath = "wasm", ranksOnHost = 1, ...others } = options;
  requireWord("open a CPU device", "cpuMath", cpuMath, CPU_MATH);
  if (!(Number.isInteger(ranksOnHost) && ranksOnHost >= 1)) {
    throw new ArgumentError(`Cannot open a CPU device of a host that has ${ranksOnHost} ranks: it has at least one`);
  }
  if (cpuMath === "native") return await openNative({ ...others, ranksOnHost });
  if (cpuMath !== "auto") return await openWasmDevice({ ...others, cpuMath });
  // Deno must not ask for a permission that `auto` can do without.
  if (!isPermitted({ name: "ffi" })) {
    const why = "'auto' may not call native kernels: give Deno --allow-ffi for them";
    return await openWasmDevice({ ...others, cpuMath: "wasm-relaxed", why });
  }
  const native = await openNative({ ...others, ranksOnHost }).catch(obstacle);
  if (typeof native === "object") return native;
  const why = `'auto' found no native kernels (${native}); fullyshard doctor says more`;
  return await openWasmDevice({ ...others, cpuMath: "wasm-relaxed", why });
}

async function openNative(options: NativeDeviceOptions): Promise<Device> {
  const { openNativeDevice } = await import("./native/device.ts");
  return await openNativeDevice(options);
}

/** The reason why a device cannot be opened here, in words; other errors are thrown on. */
function obstacle(error: unknown): string {
  if (error instanceof LibraryNotFoundError) {
    const reasons = new Set(error.tried.map(({ reason }) => reason));
    return `${error.library} cannot be opened: ${[...reasons].join("; ")}`;
  }
  const isAbsent = error instanceof UnsupportedError || error instanceof FileError;
  // A system without virtual memory beyond its physical memory refuses the mapping.
  if (isAbsent || error instanceof NativeError) return error.message;
  throw error;
}

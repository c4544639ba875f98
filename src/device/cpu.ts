/**
 * The CPU as a device, by the code that computes on it. The choice is explicit, or `auto`: the first that works here, with the
 * reason why those before it do not.
 *
 * @module
 */
import { ArgumentError, FileError, LibraryNotFoundError, NativeError, UnsupportedError } from "../errors.ts";
import { isPermitted } from "../runtime/permissions.ts";
import type { Trace } from "../runtime/trace.ts";
import type { Device } from "./device.ts";
import type { NativeDeviceOptions } from "./native/device.ts";
import { openWasmDevice } from "./wasm/device.ts";

/**
 * Code that computes on the CPU.
 *
 * - `native`: libraries of this package, for processors with AVX2 or AVX-512 on Linux.
 * - `wasm`, `wasm-relaxed`: WASM modules of the same kernels.
 * - `onednn`: `wasm`, with matrix products by oneDNN.
 * - `auto`: the first that works of `native`, `onednn` and `wasm-relaxed`.
 */
export const CPU_MATH = ["auto", "native", "wasm", "wasm-relaxed", "onednn"] as const;
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
   * Threads of this rank that share the work of a kernel; results have the same bits for any number. Used by `native`, and by the
   * products of `onednn`; WASM has one. Default: the host's cores divided by its ranks.
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
 * @throws {ArgumentError} if the memory's size, the number of threads or of ranks is out of range
 * @throws {UnsupportedError} if WASM is asked for several threads, or a thread cannot be started
 * @throws {UnsupportedError} {@link FileError} {@link LibraryNotFoundError} if `cpuMath` is `native` or `onednn` and does not
 * work here
 */
export async function openCpuDevice(options: CpuDeviceOptions = {}): Promise<Device> {
  const { cpuMath = "wasm", ranksOnHost = 1, ...others } = options;
  if (!(Number.isInteger(ranksOnHost) && ranksOnHost >= 1)) {
    throw new ArgumentError(`Cannot open a CPU device of a host that has ${ranksOnHost} ranks: it has at least one`);
  }
  const given = { ...others, ranksOnHost };
  if (cpuMath === "native") return await openNative(given);
  if (cpuMath !== "auto") return await openWasmDevice({ ...given, cpuMath });
  // Deno must not ask for a permission that `auto` can do without.
  if (!isPermitted({ name: "ffi" })) {
    const why = "'auto' may call neither native kernels nor oneDNN without --allow-ffi";
    return await openWasmDevice({ ...given, cpuMath: "wasm-relaxed", why });
  }
  const native = await openNative(given).catch(obstacle);
  if (typeof native === "object") return native;
  const noNative = `'auto' found no native kernels (${native})`;
  const onednn = await openWasmDevice({ ...given, cpuMath: "onednn", why: noNative }).catch(obstacle);
  if (typeof onednn === "object") return onednn;
  const why = `'auto' found neither native kernels (${native}) nor oneDNN; fullyshard doctor says more`;
  return await openWasmDevice({ ...given, cpuMath: "wasm-relaxed", why });
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

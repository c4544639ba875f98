/**
 * The CPU as a device: one WebAssembly.Memory of fixed size per rank, the kernels instantiated over it, and an allocator
 * behind the kernels' own data. Pages cost nothing until they are touched. Matrix products may go to a native library on
 * the same memory; everything else is WASM.
 *
 * @module
 */
import { instantiateKernels, loadKernelModule } from "../../../wasm/mod.ts";
import { ArgumentError, LibraryNotFoundError } from "../../errors.ts";
import { coreCount } from "../../runtime/processes.ts";
import { Allocator } from "../allocator.ts";
import type { Device, DevicePtr } from "../device.ts";
import type { ExactMath, KernelTable } from "../kernels.ts";
import { exactMath, wasmKernels } from "./kernels.ts";

/** Who computes matrix products on the CPU. `auto`: oneDNN when it is found, else `wasm-relaxed`. */
export const CPU_MATH = ["auto", "wasm", "wasm-relaxed", "onednn"] as const;
/** Name of a provider of matrix products. */
export type CpuMath = typeof CPU_MATH[number];

/** Options of the CPU device. */
export interface WasmDeviceOptions {
  /** Size of the memory in bytes: 4 GiB unless said otherwise, which is also the most. */
  readonly memoryBytes?: number;
  /** `wasm` unless said otherwise: the same bits in every runtime. */
  readonly cpuMath?: CpuMath;
  /** Ranks on this host, which share its cores; 1 unless said otherwise. */
  readonly ranksOnHost?: number;
}

const PAGE_BYTES = 65536;
const MAX_PAGES = 65536;

/** The CPU. */
export class WasmDevice implements Device {
  readonly name = "cpu:0";
  readonly memory: WebAssembly.Memory;
  readonly allocator: Allocator;
  readonly kernels: KernelTable;
  readonly math: ExactMath;
  readonly mathName: string;
  /** What was chosen and why, for a log line. */
  readonly mathDetail: string;
  readonly #bytes: Uint8Array;
  readonly #close: () => void;

  /** Use {@link openWasmDevice}. */
  constructor(
    memory: WebAssembly.Memory,
    allocator: Allocator,
    kernels: KernelTable,
    math: ExactMath,
    provider: { readonly name: string; readonly detail: string; readonly close: () => void },
  ) {
    this.memory = memory;
    this.allocator = allocator;
    this.kernels = kernels;
    this.math = math;
    this.mathName = provider.name;
    this.mathDetail = provider.detail;
    this.#bytes = new Uint8Array(memory.buffer);
    this.#close = provider.close;
  }

  copyIn(dst: DevicePtr, src: Uint8Array): void {
    this.#bytes.set(src, dst);
  }

  copyOut(dst: Uint8Array, src: DevicePtr): void {
    dst.set(this.#bytes.subarray(src, src + dst.byteLength));
  }

  copy(dst: DevicePtr, src: DevicePtr, byteLength: number): void {
    this.#bytes.copyWithin(dst, src, src + byteLength);
  }

  synchronize(): void {}

  dispose(): void {
    this.#close();
  }
}

/**
 * Opens the CPU.
 *
 * @throws {ArgumentError} if the memory's size is out of range
 * @throws {LibraryNotFoundError} if `cpuMath` is `onednn` and it is not found
 */
export async function openWasmDevice(options: WasmDeviceOptions = {}): Promise<WasmDevice> {
  const { memoryBytes = MAX_PAGES * PAGE_BYTES, cpuMath = "wasm", ranksOnHost = 1 } = options;
  const pages = Math.floor(memoryBytes / PAGE_BYTES);
  if (!(pages >= 256 && pages <= MAX_PAGES)) {
    throw new ArgumentError(`Cannot open a CPU device of ${memoryBytes} bytes: it must have 16 MiB to 4 GiB`);
  }
  const memory = new WebAssembly.Memory({ initial: pages, maximum: pages });
  if (cpuMath === "wasm" || cpuMath === "wasm-relaxed") return await openWasmMath(memory, cpuMath, "");
  const exports = instantiateKernels(await loadKernelModule("strict"), memory);
  const kernels = wasmKernels(exports, memory);
  const allocator = new Allocator("cpu:0", exports.heap_base() >>> 0, pages * PAGE_BYTES);
  const { openOnednn } = await import("./gemm_onednn.ts");
  try {
    const threads = Math.max(1, Math.floor(coreCount() / ranksOnHost));
    const onednn = await openOnednn({ memory, kernels, scratch: allocator, threads });
    const table: KernelTable = {
      ...kernels,
      gemm: (args) => onednn.hasBfloat16 || args.dtype.byteLength === 4 ? onednn.gemm(args) : kernels.gemm(args),
    };
    const detail = `matrix products by oneDNN ${onednn.version} (${onednn.path})`;
    const provider = { name: "onednn", detail, close: () => onednn.dispose() };
    return new WasmDevice(memory, allocator, table, exactMath(exports), provider);
  } catch (error) {
    if (cpuMath === "onednn" || !(error instanceof LibraryNotFoundError)) throw error;
    return await openWasmMath(
      memory,
      "wasm-relaxed",
      ": 'auto' found no oneDNN (fullyshard doctor says how to install it)",
    );
  }
}

/** The CPU with nothing native. */
async function openWasmMath(
  memory: WebAssembly.Memory,
  name: "wasm" | "wasm-relaxed",
  why: string,
): Promise<WasmDevice> {
  const exports = instantiateKernels(await loadKernelModule(name === "wasm" ? "strict" : "relaxed"), memory);
  const allocator = new Allocator("cpu:0", exports.heap_base() >>> 0, memory.buffer.byteLength);
  const provider = { name, detail: `matrix products by WASM kernels${why}`, close: () => {} };
  return new WasmDevice(memory, allocator, wasmKernels(exports, memory), exactMath(exports), provider);
}

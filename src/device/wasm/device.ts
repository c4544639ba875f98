/**
 * The CPU as a device of WASM: one WebAssembly.Memory of fixed size for each rank, the kernels instantiated over it, and an
 * allocator behind the kernels' own data. Pages cost nothing until they are touched.
 *
 * @module
 */
import { instantiateKernels, type KernelVariant, loadKernelModule } from "../../../wasm/mod.ts";
import { ArgumentError, UnsupportedError } from "../../errors.ts";
import type { Trace } from "../../runtime/trace.ts";
import { Allocator } from "../allocator.ts";
import { type Device, type DevicePtr, devicePtr, type PortableMath } from "../device.ts";
import type { Kernels } from "../kernels/table.ts";
import { tracedKernels } from "../kernels/traced.ts";
import { Pauses } from "../pauses.ts";
import { OffloadPool, POOL_NAME } from "../offload.ts";
import { DeviceScalars } from "../scalars.ts";
import { DeviceStatus, STATUS_AREA_BYTES } from "../status.ts";
import { immediateStream, Streams } from "../stream.ts";
import { type DeviceTraits, PLAIN_TRAITS } from "../traits.ts";
import { portableMath, wasmKernels } from "./kernels.ts";

/** Options of {@link openWasmDevice}. */
export interface WasmDeviceOptions {
  /** Size of the memory in bytes. @default 4 GiB, which is also the most */
  readonly memoryBytes?: number | undefined;
  /** The code that computes. @default `wasm`, the same bits in every runtime */
  readonly cpuMath?: "wasm" | "wasm-relaxed";
  /** Reason why this device was chosen, for its log line. */
  readonly why?: string;
  /** Threads that share the work of a kernel; WASM has one. @default 1 */
  readonly threads?: number | undefined;
  /** Reports faults of kernels late, as on devices where the host would have to wait: for tests. */
  readonly lateStatus?: boolean;
  /** Records every call of a kernel. */
  readonly trace?: Trace | undefined;
}

type WasmParts =
  & Pick<
    WasmDevice,
    "name" | "memory" | "allocator" | "kernels" | "math" | "status" | "offload"
  >
  & { readonly pauses: Pauses; readonly trace: Trace | undefined };

/** The variant of the kernels, for checkpoints and for a log line. */
interface MathNames {
  readonly name: string;
  readonly detail: string;
}

const PAGE_BYTES = 65536;
const MAX_PAGES = 65536;

export class WasmDevice implements Device {
  readonly name: string;
  readonly memory: WebAssembly.Memory;
  readonly allocator: Allocator;
  readonly kernels: Kernels;
  readonly status: DeviceStatus;
  readonly offload: OffloadPool;
  readonly traits: DeviceTraits;
  readonly math: PortableMath;
  readonly mathName: string;
  readonly detail: string;
  readonly streams: Streams = new Streams(immediateStream);
  readonly scalars: DeviceScalars = new DeviceScalars(this);
  readonly #bytes: Uint8Array;

  /** Use {@link openWasmDevice}. */
  constructor({ name, memory, allocator, kernels, math, status, offload, pauses, trace }: WasmParts, names: MathNames) {
    this.name = name;
    this.memory = memory;
    this.offload = offload;
    this.allocator = allocator;
    this.traits = { ...PLAIN_TRAITS, hostBase: memory.buffer, pauses, trace };
    this.kernels = tracedKernels(kernels, trace, this.streams);
    this.status = status;
    this.math = math;
    this.mathName = names.name;
    this.detail = names.detail;
    this.#bytes = new Uint8Array(memory.buffer);
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

  scratchBytes(): number {
    return 0;
  }

  synchronize(): void {}

  dispose(): void {
    this.offload.dispose();
  }
}

function wasmMemory(pages: number, found: string): WebAssembly.Memory {
  try {
    return new WebAssembly.Memory({ initial: pages, maximum: pages });
  } catch (cause) {
    if (!(cause instanceof RangeError)) throw cause;
    throw new UnsupportedError(
      `Cannot open a CPU device of ${
        pages * PAGE_BYTES
      } bytes: the runtime gets no such memory from the system (ulimit -v)${found}; set memoryBytes to less`,
      { cause },
    );
  }
}

/**
 * Opens the CPU with WASM kernels.
 *
 * @throws {ArgumentError} if the memory's size is out of range
 * @throws {UnsupportedError} if WASM is asked for several threads, or the runtime cannot allocate the memory
 */
export async function openWasmDevice(options: WasmDeviceOptions = {}): Promise<WasmDevice> {
  const {
    memoryBytes = MAX_PAGES * PAGE_BYTES,
    cpuMath = "wasm",
    threads,
    lateStatus = false,
    why,
    trace,
  } = options;
  const pages = Math.floor(memoryBytes / PAGE_BYTES);
  const found = why === undefined ? "" : `, and ${why}`;
  if (!(pages >= 256 && pages <= MAX_PAGES)) {
    throw new ArgumentError(
      `Cannot open a CPU device of ${memoryBytes} bytes: it must have 16 MiB to 4 GiB with '${cpuMath}' math${found}`,
    );
  }
  if (threads !== undefined && threads !== 1) {
    throw new UnsupportedError(
      `Cannot run ${threads} threads with '${cpuMath}' math, which has one${found}: leave threads out, or use cpuMath 'native'`,
    );
  }
  const instantiate = (name: string, compiled: WebAssembly.Module): WasmParts => {
    const memory = wasmMemory(pages, found);
    const module = instantiateKernels(compiled, memory);
    const ptr = devicePtr(module.heapBase);
    const record = new DataView(memory.buffer, ptr);
    const pauses = new Pauses();
    return {
      pauses,
      name,
      memory,
      trace,
      allocator: new Allocator(name, ptr + STATUS_AREA_BYTES, memory.buffer.byteLength),
      kernels: wasmKernels(module, memory, ptr, pauses),
      math: portableMath(module),
      status: new DeviceStatus(ptr, lateStatus, { read: () => record, clear: () => record.setUint32(0, 0, true) }),
      // A pool offloads nothing itself.
      offload: new OffloadPool(() =>
        new WasmDevice(instantiate(POOL_NAME, compiled), { name: cpuMath, detail: `${detail} in host memory` })
      ),
    };
  };
  const open = async (variant: KernelVariant): Promise<WasmParts> =>
    instantiate("cpu:0", await loadKernelModule(variant));
  const detail = "WASM kernels";
  const relaxed = `${detail} with relaxed SIMD, whose bits are the runtime's own${why === undefined ? "" : `: ${why}`}`;
  if (cpuMath === "wasm") return new WasmDevice(await open("strict"), { name: cpuMath, detail });
  return new WasmDevice(await open("relaxed"), { name: cpuMath, detail: relaxed });
}

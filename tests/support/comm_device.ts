/**
 * Devices as tests of transports want them: their bytes at hand, and on the CPU a hook before every sum over ranks, to inject
 * delays. With them the float formats, written apart from the kernels.
 *
 * @module
 */
import type { Allocator } from "../../src/device/allocator.ts";
import type { Device, DevicePtr, PortableMath } from "../../src/device/device.ts";
import type { Kernels } from "../../src/device/kernels/table.ts";
import type { OffloadPool } from "../../src/device/offload.ts";
import type { DeviceScalars } from "../../src/device/scalars.ts";
import type { DeviceStatus } from "../../src/device/status.ts";
import type { Streams } from "../../src/device/stream.ts";
import type { DeviceTraits } from "../../src/device/traits.ts";
import { type CudaDevice, openCudaDevice } from "../../src/device/cuda/device.ts";
import { openWasmDevice } from "../../src/device/wasm/device.ts";
import type { WasmDevice } from "../../src/device/wasm/device.ts";

const BITS = new Uint32Array(1);
const FLOAT = new Float32Array(BITS.buffer);

/** The upper half of a float32, rounded to nearest even. */
export function toBfloat16(value: number): number {
  FLOAT[0] = value;
  const bits = BITS[0] ?? 0;
  if (Number.isNaN(value)) return (bits >>> 16) | 0x40;
  return ((bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16) & 0xffff;
}

/** The value of bfloat16 bits. */
export function fromBfloat16(bits: number): number {
  BITS[0] = bits << 16;
  return FLOAT[0] ?? 0;
}

/** The parts of a device that tests of transports use. */
export interface CommDevice extends Device {
  /** Called before every sum over ranks, where a kernel of the device makes it. */
  onSum: () => void;
  /** The contents of device memory, after all enqueued work. */
  bytes(ptr: DevicePtr, byteLength: number): Uint8Array;
  /** Writes one value to every byte. */
  fill(ptr: DevicePtr, byteLength: number, value: number): void;
}

/** The CPU device for tests. */
export class WasmCommDevice implements CommDevice {
  readonly name: string;
  readonly mathName: string;
  readonly memory: WebAssembly.Memory;
  readonly allocator: Allocator;
  readonly kernels: Kernels;
  readonly status: DeviceStatus;
  readonly math: PortableMath;
  readonly detail: string;
  readonly streams: Streams;
  readonly traits: DeviceTraits;
  readonly scalars: DeviceScalars;
  readonly offload: OffloadPool;
  onSum: () => void = () => {};
  readonly #device: WasmDevice;

  /** Use {@link openCommDevice}. */
  constructor(device: WasmDevice) {
    this.#device = device;
    this.name = device.name;
    this.mathName = device.mathName;
    this.memory = device.memory;
    this.allocator = device.allocator;
    this.math = device.math;
    this.status = device.status;
    this.detail = device.detail;
    this.streams = device.streams;
    this.traits = device.traits;
    this.scalars = device.scalars;
    this.offload = device.offload;
    this.kernels = {
      ...device.kernels,
      sumRanks: (args) => {
        this.onSum();
        device.kernels.sumRanks(args);
      },
    };
  }

  bytes(ptr: DevicePtr, byteLength: number): Uint8Array {
    return new Uint8Array(this.memory.buffer, ptr, byteLength);
  }

  fill(ptr: DevicePtr, byteLength: number, value: number): void {
    this.bytes(ptr, byteLength).fill(value);
  }

  copyIn(dst: DevicePtr, src: Uint8Array): void {
    this.#device.copyIn(dst, src);
  }

  copyOut(dst: Uint8Array, src: DevicePtr): void {
    this.#device.copyOut(dst, src);
  }

  copy(dst: DevicePtr, src: DevicePtr, byteLength: number): void {
    this.#device.copy(dst, src, byteLength);
  }

  scratchBytes(): number {
    return this.#device.scratchBytes();
  }

  synchronize(): void {}

  dispose(): void {
    this.#device.dispose();
  }
}

/** Opens a device with the strict kernels. */
export async function openCommDevice(memoryBytes: number = 64 * 2 ** 20): Promise<WasmCommDevice> {
  return new WasmCommDevice(await openWasmDevice({ memoryBytes, cpuMath: "wasm" }));
}

/** Opens the card of that number, of which the environment names the libraries. */
export async function openCudaCommDevice(index: number, memoryBytes: number): Promise<CudaDevice & CommDevice> {
  const device = await openCudaDevice(index, { memoryBytes });
  return Object.assign(device, {
    onSum: () => {},
    bytes: (ptr: DevicePtr, byteLength: number): Uint8Array => {
      const bytes = new Uint8Array(byteLength);
      device.copyOut(bytes, ptr);
      return bytes;
    },
    fill: (ptr: DevicePtr, byteLength: number, value: number): void =>
      device.copyIn(ptr, new Uint8Array(byteLength).fill(value)),
  });
}

/**
 * An NVIDIA GPU as a device. Kernels, copies, allocations and frees are enqueued on the current stream. The host waits only where
 * it reads values.
 *
 * @module
 */
import { InternalError, UnsupportedError } from "../../errors.ts";
import { CUDART_CONSTANTS } from "../../ffi/bindings/cudart.ts";
import type { FfiProvider, Handle, NativeAddress } from "../../ffi/types.ts";
import { type Environment, processEnvironment } from "../../runtime/env.ts";
import type { Trace } from "../../runtime/trace.ts";
import { type Attention, OWN_ATTENTION } from "../attention.ts";
import { openCpuDevice } from "../cpu.ts";
import { type Device, type DevicePtr, devicePtr, type PortableMath } from "../device.ts";
import { COPIED_IN, WAITED } from "../graphs.ts";
import type { Arguments } from "../kernels/signature.ts";
import type { Kernels } from "../kernels/table.ts";
import { tracedKernels } from "../kernels/traced.ts";
import { NativeDevice } from "../native/device.ts";
import { type MemoryPlace, OffloadPool } from "../offload.ts";
import { DeviceScalars } from "../scalars.ts";
import { DeviceStatus, STATUS_AREA_BYTES } from "../status.ts";
import { type StreamName, Streams } from "../stream.ts";
import type { DeviceTraits } from "../traits.ts";
import { CudaAllocator } from "./allocator.ts";
import { kernelCacheFolder, KernelCompiler } from "./compiler.ts";
import { CudnnAttention } from "./cudnn/attention.ts";
import { cudnnVersion } from "./cudnn/version.ts";
import { CudaGraphs } from "./graphs.ts";
import { cudaKernels } from "./kernels.ts";
import { LAUNCHES, type Launches } from "./launches.ts";
import { attributeOf, type CudaLibraries, leaveCard, type LocalRank, openCudaLibraries } from "./libraries.ts";
import { PinnedCopies } from "./pinned.ts";
import { Products } from "./products.ts";
import { scratchBytesReader } from "./spread.ts";
import { Staging } from "./staging.ts";
import { CudaStream, type HostWait } from "./streams.ts";
import { type KernelTexts, readKernelTexts } from "./texts.ts";
import { cardTraits, openCardMath } from "./traits.ts";

/** Options of {@link openCudaDevice}. */
export interface CudaDeviceOptions {
  /** Largest number of bytes of the card to use; default its free memory when it is opened. */
  readonly memoryBytes?: number | undefined;
  /** Records every call of a kernel. */
  readonly trace?: Trace | undefined;
  /** Threads that share the work of a kernel on offloaded memory. @default 1 */
  readonly threads?: number | undefined;
  /** Code that computes attention. @default own */
  readonly attention?: Attention | undefined;
  /** Receives a line for each kind of attention that cuDNN was asked for and cannot compute. @default no reports */
  readonly report?: ((text: string) => void) | undefined;
  /** Variables with the folders of libraries and compiled kernels; default the process's. */
  readonly environment?: Environment;
  /** Kernels that are implemented; default all of this version. */
  readonly launches?: Launches;
}

interface CudaParts {
  readonly libraries: CudaLibraries;
  readonly texts: KernelTexts;
  readonly math: PortableMath;
  /** The CPU, part of whose memory is this card's offload pool. */
  readonly host: Device;
  readonly options: CudaDeviceOptions;
}

/** Bytes after the status: the first sample from which kernels in graphs count. */
const SAMPLE_BYTES = 8;

export class CudaDevice implements Device {
  readonly name: string;
  readonly mathName = "cuda";
  readonly detail: string;
  readonly allocator: CudaAllocator;
  readonly kernels: Kernels;
  readonly status: DeviceStatus;
  readonly math: PortableMath;
  readonly traits: DeviceTraits;
  readonly streams: Streams;
  readonly graphs: CudaGraphs;
  readonly scalars: DeviceScalars = new DeviceScalars(this);
  readonly offload: OffloadPool;
  readonly #libraries: CudaLibraries;
  readonly #scratchBytes: Device["scratchBytes"];
  readonly #host: Device;
  #pinned: PinnedCopies | undefined;
  readonly #streams = new Map<StreamName, CudaStream>();
  readonly #staging: Staging;
  readonly #products: Products;
  readonly #cudnn: CudnnAttention | undefined;
  readonly #statusArea: NativeAddress;
  readonly #hostWaits: HostWait[] = [];
  #isOpen = true;

  /** Use {@link openCudaDevice}. */
  constructor({ libraries, texts, math, host, options }: CudaParts) {
    const { memoryBytes, trace, environment, launches = LAUNCHES, report = () => {} } = options;
    const { index, cudart, nvrtc, cudnn, provider } = libraries;
    this.name = `cuda:${index}`;
    this.math = math;
    this.#scratchBytes = scratchBytesReader(launches);
    this.#libraries = libraries;
    this.streams = new Streams((name) => {
      const stream = new CudaStream(name, cudart, () => this.#hostWaits.at(-1));
      this.#streams.set(name, stream);
      return stream;
    });
    const [free, total, area] = [provider.out("usize"), provider.out("usize"), provider.out("address")];
    cudart.symbols.cudaMemGetInfo(free, total);
    const capacity = Math.min(free.value, memoryBytes ?? free.value);
    this.allocator = new CudaAllocator(this.name, index, capacity, cudart, () => this.#current);
    this.#staging = new Staging(cudart);
    cudart.symbols.cudaMalloc(area, STATUS_AREA_BYTES + SAMPLE_BYTES);
    this.#statusArea = area.value;
    const status = devicePtr(provider.numberOf(area.value));
    cudart.symbols.cudaMemsetAsync(area.value, 0, STATUS_AREA_BYTES + SAMPLE_BYTES, this.#current.handle);
    cudart.symbols.cudaDeviceSynchronize();
    const record = new Uint8Array(STATUS_AREA_BYTES);
    this.status = new DeviceStatus(status, true, {
      read: () => {
        this.synchronize();
        this.copyOut(record, status);
        return new DataView(record.buffer);
      },
      clear: () => {
        this.synchronize();
        this.copyIn(status, new Uint8Array(4));
        this.synchronize();
      },
      readLater: () => this.#staging.readLater(status, STATUS_AREA_BYTES, this.#current),
      isCapturing: () => this.graphs.hostWork.isCapturing,
    });
    const firstSample = devicePtr(status + STATUS_AREA_BYTES);
    const [origin, ...others] = [...this.#streams.values()];
    if (origin === undefined) throw new InternalError("a card without streams");
    this.graphs = new CudaGraphs({
      ...{ cudart, allocator: this.allocator, origin, others, synchronize: () => this.synchronize() },
      writeFirstSample: (sample) => this.copyIn(firstSample, new Uint8Array(Float64Array.of(sample).buffer)),
    });
    this.traits = {
      ...cardTraits(launches),
      attention: cudnn === undefined ? OWN_ATTENTION : "cudnn",
      copyPinned: (to, from, byteLength) => this.#copyPinned(to, from, byteLength),
      hostWork: this.graphs.hostWork,
      graphs: this.graphs,
      trace,
    };
    const capability = attributeOf(cudart, index, "cudaDevAttrComputeCapabilityMajor") * 10 +
      attributeOf(cudart, index, "cudaDevAttrComputeCapabilityMinor");
    const compiler = new KernelCompiler(
      nvrtc,
      `sm_${capability}`,
      kernelCacheFolder(environment ?? processEnvironment()),
    );
    const byCudnn = cudnn === undefined ? "" : `, attention by cuDNN ${cudnnVersion(cudnn)} (${cudnn.path})`;
    this.detail = `CUDA kernels by ${compiler.detail} (${cudart.path})${byCudnn}`;
    const { name: device, allocator } = this;
    const stream = (): CudaStream => this.#current;
    const shared = { status, firstSample, sampleBase: () => this.graphs.sampleBase };
    const mayLoad = (kernel: string): void => {
      this.graphs.hostWork.refuse(`kernel '${kernel}' runs for the first time in it; run the work once more before`);
    };
    const parts = { device, index, cudart, compiler, texts, launches, allocator };
    const kernels = cudaKernels({ ...parts, stream, shared, mayLoad });
    this.#products = new Products(libraries, kernels.gemm, () => this.#current);
    const gemm: Kernels["gemm"] = (args) => this.#products.gemm(args);
    this.#cudnn = cudnn === undefined
      ? undefined
      : new CudnnAttention({ cudnn, device, own: kernels, stream, allocator, mayLoad, report });
    const attention = this.#cudnn?.kernels;
    this.kernels = tracedKernels({ ...kernels, gemm, ...attention }, trace, this.streams);
    this.#host = host;
    this.offload = new OffloadPool(() => {
      const { device } = host.offload;
      if (device instanceof NativeDevice) this.#pinned = new PinnedCopies(cudart, device.memory);
      return device;
    });
  }

  copyIn(dst: DevicePtr, src: Uint8Array): void {
    this.graphs.hostWork.refuse(COPIED_IN);
    this.#staging.copyIn(dst, src, this.#current);
  }

  copyOut(dst: Uint8Array, src: DevicePtr): void {
    this.graphs.hostWork.refuse(WAITED);
    this.#staging.copyOut(dst, src, this.#current);
  }

  copy(dst: DevicePtr, src: DevicePtr, byteLength: number): void {
    if (byteLength === 0) return;
    if (Math.abs(dst - src) >= byteLength) return this.#copyApart(dst, src, byteLength);
    const aside = this.allocator.allocate(byteLength, "copy of overlapping bytes", "staging");
    this.#copyApart(aside, src, byteLength);
    this.#copyApart(dst, aside, byteLength);
    this.allocator.free(aside);
  }

  #copyPinned(to: MemoryPlace, from: MemoryPlace, byteLength: number): boolean {
    const { isPinned, device: pool } = this.offload;
    const pinned = this.#pinned;
    const isOurs = (to.device === this && from.device === pool) || (to.device === pool && from.device === this);
    if (!isPinned || pinned === undefined || !isOurs) return false;
    this.graphs.hostWork.refuse(WAITED);
    pinned.enqueue(to.device === this ? "to card" : "from card", to, from, byteLength, this.#current);
    return true;
  }

  /** Writes zeros. */
  clear(ptr: DevicePtr, byteLength: number): void {
    if (byteLength === 0) return;
    this.#libraries.cudart.symbols.cudaMemsetAsync(this.addressOf(ptr), 0, byteLength, this.#current.handle);
  }

  /** Calls C functions of libraries that work on the card's memory. */
  get provider(): FfiProvider {
    return this.#libraries.provider;
  }

  /** The current stream, as such libraries know it. */
  get streamHandle(): Handle<"cudaStream_t"> {
    return this.#current.handle;
  }

  /** An address of the card's memory, as such libraries know it. */
  addressOf(ptr: DevicePtr): NativeAddress {
    const { provider } = this.#libraries;
    return provider.offset(provider.nullAddress, ptr);
  }

  /** The card's PCI bus id, which does not depend on its number in this process. */
  get busId(): string {
    const text = new Uint8Array(32);
    this.#libraries.cudart.symbols.cudaDeviceGetPCIBusId(text, text.byteLength, this.#libraries.index);
    return new TextDecoder().decode(text.subarray(0, text.indexOf(0)));
  }

  /** Makes the host wait by `wait` until the result is disposed; the last call counts. */
  waitBy(wait: HostWait): Disposable {
    this.#hostWaits.push(wait);
    return { [Symbol.dispose]: () => void this.#hostWaits.splice(this.#hostWaits.lastIndexOf(wait), 1) };
  }

  scratchBytes(kernel: string, args: Arguments): number {
    return this.#scratchBytes(kernel, args);
  }

  synchronize(): void {
    this.graphs.hostWork.refuse(WAITED);
    for (const stream of this.#streams.values()) stream.synchronize();
  }

  dispose(): void {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    const { symbols } = this.#libraries.cudart;
    using last = new DisposableStack(); // in reverse order; an error does not skip the rest
    last.defer(leaveCard);
    for (const stream of this.#streams.values()) last.defer(() => stream.destroy());
    last.defer(() => symbols.cudaFree(this.#statusArea));
    last.defer(() => this.allocator.close());
    last.defer(() => this.#staging.dispose());
    last.defer(() => this.#products.dispose());
    last.defer(() => this.#cudnn?.dispose());
    last.defer(() => this.#host.dispose()); // and the pool, which is the host's own
    last.defer(() => this.#pinned?.dispose());
    this.synchronize();
  }

  get #current(): CudaStream {
    const stream = this.#streams.get(this.streams.current.name);
    if (stream === undefined) throw new UnsupportedError(`${this.name} has no stream '${this.streams.current.name}'`);
    return stream;
  }

  #copyApart(dst: DevicePtr, src: DevicePtr, byteLength: number): void {
    const [to, from] = [this.addressOf(dst), this.addressOf(src)];
    const { cudaMemcpyDeviceToDevice } = CUDART_CONSTANTS;
    this.#libraries.cudart.symbols.cudaMemcpyAsync(
      to,
      from,
      byteLength,
      cudaMemcpyDeviceToDevice,
      this.#current.handle,
    );
  }
}

/**
 * Opens a card.
 *
 * @param which number of a visible card, or the rank whose card it is
 * @throws {LibraryNotFoundError} if the CUDA runtime, NVRTC, cuBLASLt or a cuDNN that is asked for is not found
 * @throws {UnsupportedError} if there is no driver, it or cuDNN is too old, there is no such card, or not one for each rank, or
 * this thread has another card open
 */
export async function openCudaDevice(
  which: number | LocalRank,
  options: CudaDeviceOptions = {},
): Promise<CudaDevice> {
  const { attention, environment = processEnvironment() } = options;
  const libraries = await openCudaLibraries(which, environment, attention);
  try {
    return await openOn(libraries, options);
  } catch (error) {
    leaveCard();
    throw error;
  }
}

async function openOn(libraries: CudaLibraries, options: CudaDeviceOptions): Promise<CudaDevice> {
  const texts = await readKernelTexts();
  const math = await openCardMath();
  // The CPU updates offloaded parameters; its memory costs nothing until it is touched.
  const { threads = 1, trace } = options;
  const host = await openCpuDevice({ cpuMath: "auto", threads, lateStatus: true, trace });
  return new CudaDevice({ libraries, texts, math, host, options });
}

/**
 * The CPU as a device of native code: a mapping as large as the host's memory, with native addresses, and the kernels of a
 * library for this processor. Arguments of a call are written to the working space at the beginning of the mapping, and its address
 * is all that is passed.
 *
 * Note [Checked addresses]: native code can write anywhere in the process. So every address from the host is compared with the
 * bounds of the mapping before use: a kernel's by its entry, a copy's here.
 *
 * @module
 */
import type { NativeLevel } from "../../../wasm/native.ts";
import { ArgumentError, InternalError, NativeError, UnsupportedError } from "../../errors.ts";
import { openPosix, type Posix } from "../../ffi/posix.ts";
import type { NativeAddress } from "../../ffi/types.ts";
import { threadsOfRank } from "../../runtime/processes.ts";
import type { Trace } from "../../runtime/trace.ts";
import { countOf } from "../../words.ts";
import { Allocator } from "../allocator.ts";
import { type Device, type DevicePtr, devicePtr, type PortableMath } from "../device.ts";
import { boundsOf } from "../kernels/accesses.ts";
import { exportName, LIST_WORDS, type ListArea, packer } from "../kernels/packing.ts";
import { type Kernels, makeKernels } from "../kernels/table.ts";
import { tracedKernels } from "../kernels/traced.ts";
import { Pauses } from "../pauses.ts";
import { OffloadPool, POOL_NAME } from "../offload.ts";
import { DeviceScalars } from "../scalars.ts";
import { DeviceStatus, STATUS_AREA_BYTES } from "../status.ts";
import { immediateStream, Streams } from "../stream.ts";
import { type DeviceTraits, type HostViews, type NonTemporalCopies, PLAIN_TRAITS } from "../traits.ts";
import { LEVEL_NAMES, type NativeLibrary, openNativeLibrary } from "./library.ts";
import { NativeMemory } from "./memory.ts";
import { openThreads, type ThreadPool } from "./threads.ts";

/** Options of {@link openNativeDevice}. */
export interface NativeDeviceOptions {
  /** Size of the memory in bytes. @default the host's memory */
  readonly memoryBytes?: number | undefined;
  /** Level of the library. @default the best that the processor has */
  readonly level?: NativeLevel;
  /** Ranks on this host, which share its cores among their threads. */
  readonly ranksOnHost?: number;
  /** Threads that share the work of a call. @default the host's cores divided by its ranks, or 1 if these are not given */
  readonly threads?: number | undefined;
  /** Least number of elements of work in a piece of a call: for tests, whose arrays are small. */
  readonly leastWork?: number;
  /** Reports faults of kernels late, as on devices where the host would have to wait: for tests. */
  readonly lateStatus?: boolean;
  /** Records every call of a kernel. */
  readonly trace?: Trace | undefined;
}

/** Least memory: the working space, and some for tensors. */
const LEAST_BYTES = 2 ** 24;

/** Traits of the CPU in native code. */
interface NativeTraits extends DeviceTraits {
  readonly hostViews: HostViews;
  readonly nonTemporal: NonTemporalCopies;
}

/** The CPU in native code. */
export class NativeDevice implements Device {
  readonly name: string;
  readonly mathName = "native";
  readonly detail: string;
  readonly allocator: Allocator;
  readonly kernels: Kernels;
  readonly status: DeviceStatus;
  readonly math: PortableMath;
  readonly traits: NativeTraits;
  readonly offload: OffloadPool;
  readonly streams: Streams = new Streams(immediateStream);
  readonly scalars: DeviceScalars = new DeviceScalars(this);
  readonly #memory: NativeMemory;
  readonly #library: NativeLibrary;
  readonly #pool: ThreadPool | undefined;
  /** Memory of the arguments of calls. */
  readonly #numbers: Float64Array;

  /** Use {@link openNativeDevice}. */
  constructor(
    name: string,
    memory: NativeMemory,
    library: NativeLibrary,
    pool: ThreadPool | undefined,
    { lateStatus = false, trace }: Pick<NativeDeviceOptions, "lateStatus" | "trace">,
  ) {
    this.name = name;
    const pauses = new Pauses();
    this.traits = {
      ...PLAIN_TRAITS,
      pauses,
      hostBase: "native",
      hostViews: (src, byteLength) => memory.bytesInPlace(src, byteLength),
      nonTemporal: {
        copy: (dst, src, byteLength) => {
          memory.requireInside(dst, byteLength);
          this.#copyNonTemporal(dst, src, byteLength);
        },
        copyOut: (dst, src) => {
          memory.requireInside(src, dst.byteLength);
          if (dst.byteLength === 0) return; // empty arrays have no address
          this.#copyNonTemporal(memory.addressOf(dst), src, dst.byteLength);
        },
      },
      trace,
    };
    this.offload = new OffloadPool(() =>
      new NativeDevice(POOL_NAME, memory.another(), library, pool, { lateStatus, trace })
    );
    this.#memory = memory;
    this.#library = library;
    this.#pool = pool;
    const threads = countOf(pool?.threads ?? 1, "thread");
    this.detail = `native kernels for ${LEVEL_NAMES[library.level]}, ${threads} (${library.path})`;
    const space = memory.address(memory.begin);
    const lists = library.others.list_area(space);
    const heap = devicePtr(library.others.heap_base(space));
    const record = new DataView(memory.viewOf(heap, STATUS_AREA_BYTES));
    this.status = new DeviceStatus(heap, lateStatus, {
      read: () => {
        memory.requireMapped();
        return record;
      },
      clear: () => {
        memory.requireMapped();
        record.setUint32(0, 0, true);
      },
    });
    this.allocator = new Allocator(this.name, heap + STATUS_AREA_BYTES, memory.end);
    const numbers = new Float64Array(memory.viewOf(memory.begin, lists - memory.begin));
    this.#numbers = numbers;
    if (pool !== undefined) numbers[numbers.length - 1] = pool.address;
    const words = new Int32Array(memory.viewOf(lists, LIST_WORDS * 4));
    const kernels = nativeKernels(memory, library, { words, address: lists, addressWords: 2 }, numbers, heap, pauses);
    this.kernels = tracedKernels(kernels, trace, this.streams);
    this.math = portableMath(memory, library, numbers);
  }

  copyIn(dst: DevicePtr, src: Uint8Array): void {
    this.#memory.copyIn(dst, src);
  }

  copyOut(dst: Uint8Array, src: DevicePtr): void {
    this.#memory.copyOut(dst, src);
  }

  copy(dst: DevicePtr, src: DevicePtr, byteLength: number): void {
    this.#memory.copy(dst, src, byteLength);
  }

  #copyNonTemporal(dst: number, src: number, byteLength: number): void {
    this.#numbers.set([byteLength, dst, src]);
    this.#library.others.copy_past_caches(this.#memory.address(this.#memory.begin));
  }

  scratchBytes(): number {
    return 0;
  }

  /** The memory, for a device that copies to it and from it itself. */
  get memory(): NativeMemory {
    return this.#memory;
  }

  synchronize(): void {}

  dispose(): void {
    if (!this.#memory.isMapped) return;
    this.offload.dispose();
    this.#memory.unmap();
    if (this.name === POOL_NAME) return; // it uses the library and threads of the device beside it
    this.#pool?.dispose();
    this.#library.close();
  }
}

/** Kernels whose arguments lie in `numbers`, at the beginning of memory, and in lists. */
function nativeKernels(
  memory: NativeMemory,
  library: NativeLibrary,
  lists: ListArea,
  numbers: Float64Array,
  status: DevicePtr,
  pauses: Pauses,
): Kernels {
  const space = memory.address(memory.begin);
  return makeKernels((name, entry) => {
    const call = library.kernels[exportName(name)];
    if (call === undefined) throw new InternalError(`${library.path} lacks '${name}'`);
    const pack = packer(name, entry, status, lists, numbers);
    const requireBounds = boundsOf(name, entry, status, memory.end);
    return (args) => {
      memory.requireMapped();
      pack(args);
      requireBounds(args);
      call(space);
      pauses.take();
    };
  });
}

function portableMath(memory: NativeMemory, { others }: NativeLibrary, numbers: Float64Array): PortableMath {
  const space = memory.address(memory.begin);
  const of = (call: (space: NativeAddress) => number) => (...values: readonly number[]): number => {
    memory.requireMapped();
    numbers.set(values);
    return call(space);
  };
  const { portable_exp, portable_log, portable_sin, portable_cos, portable_pow } = others;
  return {
    exp: of(portable_exp),
    log: of(portable_log),
    sin: of(portable_sin),
    cos: of(portable_cos),
    pow: of(portable_pow),
  };
}

/** Largest address of a process on any processor: larger numbers cannot be passed to the system. */
const MOST_BYTES = 2 ** 52;

function mapMemory(posix: Posix, byteLength: number): NativeMemory {
  const refused = "the system does not lend so many addresses (ulimit -v); set memoryBytes to less";
  if (byteLength > MOST_BYTES) {
    throw new UnsupportedError(`Cannot open a native CPU device of ${byteLength} bytes: ${refused}`);
  }
  try {
    return new NativeMemory(posix, byteLength);
  } catch (error) {
    if (!(error instanceof NativeError)) throw error;
    const why = `${refused} (${error.message})`;
    throw new UnsupportedError(`Cannot open a native CPU device of ${byteLength} bytes: ${why}`, { cause: error });
  }
}

/**
 * Opens the CPU with native kernels.
 *
 * @throws {ArgumentError} if the memory's size or the number of threads is out of range
 * @throws {UnsupportedError} if there is no library file for this processor or system, a thread cannot be started, or the system
 * refuses the mapping
 * @throws {FileError} if the library cannot be read, or is not this version's
 * @throws {LibraryNotFoundError} if it cannot be opened
 */
export async function openNativeDevice(options: NativeDeviceOptions = {}): Promise<NativeDevice> {
  const posix = await openPosix();
  const library = await openNativeLibrary(posix, options.level);
  try {
    const { memoryBytes = posix.hostBytes, ranksOnHost } = options;
    const { threads = ranksOnHost === undefined ? 1 : threadsOfRank(ranksOnHost) } = options;
    if (!(memoryBytes >= LEAST_BYTES)) {
      throw new ArgumentError(`Cannot open a CPU device of ${memoryBytes} bytes: it must have 16 MiB at least`);
    }
    const byteLength = Math.floor(memoryBytes / posix.pageBytes) * posix.pageBytes;
    const memory = mapMemory(posix, byteLength);
    try {
      const pool = await openThreads(posix, library, threads, options.leastWork);
      return new NativeDevice("cpu:0", memory, library, pool, options);
    } catch (error) {
      memory.unmap();
      throw error;
    }
  } catch (error) {
    library.close();
    throw error;
  }
}

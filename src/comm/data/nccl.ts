/**
 * The data plane between NVIDIA's cards, one a rank, by NCCL. All work is enqueued on the current stream, and the host waits
 * for nothing. A window is memory of the rank's own card, which peers receive by an all-gather.
 *
 * Where NCCL can, windows and the memory into which FSDP gathers are registered with all ranks, so that gathers leave
 * multiprocessors to computation (nccl_symmetric.ts). Memory of reductions is not registered: copy engines do not add.
 *
 * NCCL chooses the order of sums, and rounds them to the dtype that travels. The factor, a wider destination and
 * accumulation follow the sum, in the kernel that sums over ranks on all planes.
 *
 * @module
 */
import { at } from "../../at.ts";
import { CudaDevice } from "../../device/cuda/device.ts";
import { type Device, type DevicePtr, devicePtr } from "../../device/device.ts";
import { bfloat16, type DType, float16, float32, int64 } from "../../dtype.ts";
import { ArgumentError, InternalError } from "../../errors.ts";
import { NCCL, NCCL_CONSTANTS } from "../../ffi/bindings/nccl.ts";
import { openLibrary } from "../../ffi/mod.ts";
import { openPosix } from "../../ffi/posix.ts";
import { processEnvironment } from "../../runtime/env.ts";
import { requireSharedMemory } from "../../runtime/processes.ts";
import { ShmControlPlane } from "../control/shm.ts";
import { joinShm } from "../control/shm_join.ts";
import type { ControlPlane } from "../control_plane.ts";
import {
  type AllReduceArgs,
  type DataPlane,
  type ElementRange,
  enqueuedWork,
  type GatherMemory,
  type ReduceScatterArgs,
  type Transfer,
  type Window,
  type Work,
} from "../data_plane.ts";
import { type HostsJoinOptions, joinHosts } from "../hosts/join.ts";
import type { HostsControlPlane } from "../hosts/plane.ts";
import { ProcessGroup } from "../process_group.ts";
import type { ShareParts } from "../rank_parts.ts";
import { acquire, exchangeOutcomes } from "../together.ts";
import { isRegisteredWindow } from "./gather_slots.ts";
import { MessageLengths } from "./message_lengths.ts";
import { type Communicator, Communicators, type NcclCall } from "./nccl_communicator.ts";
import { SymmetricMemory } from "./nccl_symmetric.ts";
import { describeGathers, gathersBy, isWithoutWindows, joinsOnOneCard, type Nccl, versionOf } from "./nccl_version.ts";
import { openShmData, type ShmOptions } from "./shm.ts";

const { ncclUint8, ncclSum, ncclMax } = NCCL_CONSTANTS;
const TYPES: ReadonlyMap<DType, number> = new Map([
  [float32, NCCL_CONSTANTS.ncclFloat32],
  [bfloat16, NCCL_CONSTANTS.ncclBfloat16],
  [float16, NCCL_CONSTANTS.ncclFloat16],
  [int64, NCCL_CONSTANTS.ncclInt64],
]);

/** True if the ranks' parts are equally long and contiguous, as NCCL's own gathers and reductions require. */
function isEven(parts: readonly ElementRange[]): boolean {
  const [first] = parts;
  return parts.every(({ offset, length }, rank) =>
    length === first?.length && offset === first.offset + rank * first.length
  );
}

/** Settings that all planes of a world share. */
interface PlaneOptions {
  readonly share: ShareParts;
  /** True if ranks register memory, where there are several. */
  readonly registersMemory: boolean;
}

class NcclDataPlane implements DataPlane {
  readonly kind = "nccl";
  readonly sums = "any";
  readonly stagingBytes = 0;
  readonly #device: CudaDevice;
  readonly #communicator: Communicator;
  readonly #lengths: MessageLengths;
  readonly #options: PlaneOptions;
  readonly #kept = new DisposableStack();
  readonly #symmetric: SymmetricMemory | undefined;

  /** @param resources disposed with the plane */
  constructor(device: CudaDevice, communicator: Communicator, options: PlaneOptions, resources: Disposable) {
    this.#device = device;
    this.#communicator = communicator;
    this.#options = options;
    this.#kept.use(resources);
    this.#lengths = this.#kept.use(new MessageLengths(communicator.control, options.share));
    const registers = options.registersMemory && communicator.control.size > 1;
    this.#symmetric = registers ? this.#kept.use(new SymmetricMemory(device, communicator)) : undefined;
  }

  get registersMemory(): boolean {
    return this.#symmetric !== undefined;
  }

  gatherMemory(): GatherMemory | undefined {
    return this.#symmetric?.gatherMemory();
  }

  placeOf(ptr: DevicePtr): number {
    return this.#symmetric === undefined ? 0 : this.#symmetric.placeOf(ptr);
  }

  openWindow(byteLengths: readonly number[], unit: string): Window {
    const [device, { control }] = [this.#device, this.#communicator];
    const own = at(byteLengths, control.rank, "part of rank");
    const owner = `window '${unit}'`;
    const { value: pointer, kept } = this.#symmetric !== undefined && isRegisteredWindow(byteLengths)
      ? symmetricWindow(this.#symmetric, own, owner)
      : acquire(control, (taken) => {
        const memory = device.allocator.allocate(own, owner, "parameters");
        taken.defer(() => device.allocator.free(memory));
        return memory;
      });
    device.clear(pointer, own);
    let last: Work | undefined;
    return {
      pointer,
      gather: (dst, offsets) => {
        const parts = byteLengths.map((length, rank) => ({ length, offset: at(offsets, rank, "offset of rank") }));
        return last = this.#gatherParts(dst, pointer, parts);
      },
      // Peers only read the contents by their gathers, in which this rank takes part: its own last gather is the last read.
      beginWrite: () => last?.wait(),
      endWrite(): void {},
      dispose: () => {
        last?.wait();
        kept.dispose();
      },
    };
  }

  reduceScatter({ src, dtype, slices, dst, dstDtype, scale, accumulate }: ReduceScatterArgs): Work {
    const device = this.#device;
    const { allocator, kernels } = device;
    const { rank } = this.#communicator.control;
    const { length } = at(slices, rank, "slice of rank");
    const isFinal = dtype === dstDtype && !accumulate;
    const sums = isFinal ? dst : allocator.allocate(length * dtype.byteLength, "reduce-scatter", "staging");
    const [type, to] = [typeOf(dtype), device.addressOf(sums)];
    const from = (slice: { readonly offset: number }): DevicePtr => devicePtr(src + slice.offset * dtype.byteLength);
    const first = at(slices, 0, "slice of rank");
    if (isEven(slices)) {
      const all = device.addressOf(from(first));
      if (first.length > 0) {
        this.#communicator.enqueue((nccl, comm, stream) =>
          nccl.ncclReduceScatter(all, to, first.length, type, ncclSum, comm, stream)
        );
      }
    } else {
      const parts = slices.entries().filter(([, slice]) => slice.length > 0);
      this.#communicator.enqueue(
        ...parts.map(([root, slice]): NcclCall => (nccl, comm, stream) =>
          nccl.ncclReduce(device.addressOf(from(slice)), to, slice.length, type, ncclSum, root, comm, stream)
        ),
      );
    }
    if (length > 0 && (!isFinal || scale !== undefined)) {
      kernels.sumRanks({ dtype, dstDtype, n: length, accumulate, pastCaches: false, dst, sources: [sums], scale });
    }
    if (!isFinal) allocator.free(sums);
    return enqueuedWork(device);
  }

  allReduce({ ptr, n, dtype, op, scale }: AllReduceArgs): Work {
    const device = this.#device;
    if (n > 0) {
      const [type, place] = [typeOf(dtype), device.addressOf(ptr)];
      const combined = op === "sum" ? ncclSum : ncclMax;
      this.#communicator.enqueue((nccl, comm, stream) =>
        nccl.ncclAllReduce(place, place, n, type, combined, comm, stream)
      );
      const inPlace = { dtype, dstDtype: dtype, n, accumulate: false, pastCaches: false, dst: ptr, sources: [ptr] };
      if (scale !== undefined) device.kernels.sumRanks({ ...inPlace, scale });
    }
    return enqueuedWork(device);
  }

  allGather(dst: DevicePtr, src: DevicePtr, byteLength: number): Work {
    const { size } = this.#communicator.control;
    const parts = Array.from({ length: size }, (_, rank) => ({ offset: rank * byteLength, length: byteLength }));
    return this.#gatherParts(dst, src, parts);
  }

  broadcast(ptr: DevicePtr, byteLength: number, root: number): Work {
    const place = this.#device.addressOf(ptr);
    if (byteLength > 0) {
      this.#communicator.enqueue((nccl, comm, stream) =>
        nccl.ncclBroadcast(place, place, byteLength, ncclUint8, root, comm, stream)
      );
    }
    return enqueuedWork(this.#device);
  }

  transfer(transfers: readonly Transfer[]): Work {
    for (const transfer of transfers) this.#lengths.announce(transfer);
    this.#communicator.enqueue(...transfers.map(({ kind, ptr, byteLength, peer }): NcclCall => (nccl, comm, stream) => {
      const call = kind === "send" ? nccl.ncclSend : nccl.ncclRecv;
      return call(this.#device.addressOf(ptr), byteLength, ncclUint8, peer, comm, stream);
    }));
    return enqueuedWork(this.#device);
  }

  split(control: ControlPlane): DataPlane {
    const communicator = this.#communicator.split(control);
    const resources = { [Symbol.dispose]: () => communicator.close() };
    return new NcclDataPlane(this.#device, communicator, this.#options, resources);
  }

  dispose(): void {
    this.#kept.dispose();
  }

  /** Gathers the parts of all ranks, in bytes, to `dst`; `src` is this rank's. */
  #gatherParts(dst: DevicePtr, src: DevicePtr, parts: readonly ElementRange[]): Work {
    const device = this.#device;
    const from = device.addressOf(src);
    const first = at(parts, 0, "part of rank");
    const begin = device.addressOf(devicePtr(dst + first.offset));
    if (isEven(parts)) {
      if (first.length > 0) {
        this.#communicator.enqueue((nccl, comm, stream) =>
          nccl.ncclAllGather(from, begin, first.length, ncclUint8, comm, stream)
        );
      }
    } else {
      const full = parts.entries().filter(([, { length }]) => length > 0);
      this.#communicator.enqueue(...full.map(([root, { offset, length }]): NcclCall => (nccl, comm, stream) => {
        const to = device.addressOf(devicePtr(dst + offset));
        return nccl.ncclBroadcast(from, to, length, ncclUint8, root, comm, stream);
      }));
    }
    return enqueuedWork(device);
  }
}

/** The memory of a window that all ranks register, and the stack that frees it. */
function symmetricWindow(
  symmetric: SymmetricMemory,
  byteLength: number,
  owner: string,
): { readonly value: DevicePtr; readonly kept: DisposableStack } {
  const { ptr, close } = symmetric.openWindow(byteLength, owner);
  const kept = new DisposableStack();
  kept.defer(close);
  return { value: ptr, kept };
}

/** NCCL's number of a dtype. */
function typeOf(dtype: DType): number {
  const type = TYPES.get(dtype);
  if (type === undefined) throw new InternalError(`NCCL is to sum ${dtype.name}`);
  return type;
}

/** Meeting point of the ranks of several hosts. */
export type HostsPlace = Pick<HostsJoinOptions, "address" | "port" | "token" | "localWorldSize">;

/** Options of ranks that join on cards. */
export interface NcclOptions extends ShmOptions {
  /** Meeting point of several hosts; undefined if all ranks are on this host. */
  readonly hosts?: HostsPlace | undefined;
  /** True if ranks of one host that share a card, which NCCL may refuse, go through host memory instead. @default false */
  readonly mayStage?: boolean | undefined;
}

/**
 * Joins the other ranks of this host, or of several, each with a card of its own. Ranks that share a card are joined by NCCL
 * 2.30 and newer if NCCL_MULTI_RANK_GPU_ENABLE is 1, else as `mayStage` says; the way taken is reported.
 *
 * @param device a CUDA device
 * @throws {ArgumentError} if the device is not CUDA
 * @throws {LibraryNotFoundError} if NCCL is not found
 * @throws {RendezvousError} if a rank does not start in time, is started twice, or disagrees about the world's size
 * @throws {CollectiveError} if two ranks share a card, and nothing joins them
 * @example
 * ```ts ignore
 * using group = await openNccl(device, { rank: 0, worldSize: 2, run: "127.0.0.1:29500" });
 * ```
 */
export async function openNccl(device: Device, options: NcclOptions): Promise<ProcessGroup> {
  if (!(device instanceof CudaDevice)) {
    throw new ArgumentError(
      `Backend 'nccl' moves memory of NVIDIA's cards, but the device is ${device.name}: use 'shm'`,
    );
  }
  requireSharedMemory();
  const environment = processEnvironment();
  const [loaded] = await Promise.allSettled([openLibrary(NCCL, { provider: device.provider, environment })]);
  const { hosts, rank, mayStage = false } = options;
  const say = (text: string): void => rank === 0 ? options.report?.(text) : undefined;
  const posix = await openPosix();
  const control = hosts === undefined ? await joinShm(posix, options) : await joinHosts({ ...options, ...hosts });
  try {
    const host = hosts === undefined ? "" : `host ${Math.floor(rank / hosts.localWorldSize)}, `;
    const isSwitchedOff = isWithoutWindows(environment);
    // If one rank lacks NCCL, all ranks fail instead of waiting for it.
    const { value: nccl, notes } = exchangeOutcomes(control, loaded, (found) => {
      const version = versionOf(found);
      const joins = environment.integer("NCCL_MULTI_RANK_GPU_ENABLE") === 1 && joinsOnOneCard(version);
      const registers = gathersBy(version) !== "kernels" && !isSwitchedOff;
      return JSON.stringify([`${host}${device.busId}`, joins, registers]);
    });
    const cards = notes.map((note): readonly [card: string, joins: boolean, registers: boolean] => JSON.parse(note));
    const shared = sharedCard(cards.map(([card]) => card));
    const join = (): ProcessGroup => {
      if (control.size > 1) say(describeGathers(versionOf(nccl), isSwitchedOff));
      const registersMemory = cards.every(([, , registers]) => registers);
      return new ProcessGroup(control, openData(control, nccl, device, registersMemory));
    };
    if (shared === undefined) return join();
    if (cards.every(([, joins]) => joins)) {
      say(`${shared}: NCCL joins them there, as NCCL_MULTI_RANK_GPU_ENABLE is 1`);
      return join();
    }
    if (!(control instanceof ShmControlPlane) || !mayStage) {
      throw control.failure(
        `${shared}: start at most as many ranks on a host as it has cards, each with LOCAL_RANK or a CUDA_VISIBLE_DEVICES of its own`,
      );
    }
    nccl.close();
    say(
      `${shared}: what they exchange goes through memory of the host. NCCL 2.30 and newer joins them on the card where ` +
        "NCCL_MULTI_RANK_GPU_ENABLE is 1 for all ranks",
    );
    return new ProcessGroup(control, openShmData(control, posix, device, { ...options, mapping: "copy" }));
  } catch (error) {
    control.dispose();
    throw error;
  }
}

function openData(
  control: ShmControlPlane | HostsControlPlane,
  nccl: Nccl,
  device: CudaDevice,
  registersMemory: boolean,
): DataPlane {
  const all = new Communicators(nccl, device, control);
  try {
    return new NcclDataPlane(device, all.join(), { share: control.share, registersMemory }, all);
  } catch (error) {
    all[Symbol.dispose]();
    throw error;
  }
}

/** The ranks that share a card, in words; undefined if each has its own. */
function sharedCard(cards: readonly string[]): string | undefined {
  for (const [card, ranks] of Map.groupBy(cards.keys(), (rank) => at(cards, rank, "card of rank"))) {
    if (ranks.length > 1) return `ranks ${ranks.join(", ")} have one card (${card})`;
  }
  return undefined;
}

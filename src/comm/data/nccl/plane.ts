/**
 * The data plane between NVIDIA's cards, one a rank, by NCCL. All work is enqueued on the current stream, and the host waits
 * for nothing. A window is memory of the rank's own card, which peers receive by an all-gather.
 *
 * Where NCCL can, windows and the memory into which FSDP gathers are registered with all ranks, so that gathers leave
 * multiprocessors to computation (symmetric.ts). Memory of reductions is not registered: copy engines do not add.
 *
 * NCCL chooses the order of sums, and rounds them to the dtype that travels. The factor, a wider destination and
 * accumulation follow the sum, in the kernel that sums over ranks on all planes.
 *
 * @module
 */
import { at } from "../../../at.ts";
import type { CudaDevice } from "../../../device/cuda/device.ts";
import { type DevicePtr, devicePtr } from "../../../device/device.ts";
import { bfloat16, type DType, float16, float32, int64 } from "../../../dtype.ts";
import { InternalError } from "../../../errors.ts";
import { NCCL_CONSTANTS } from "../../../ffi/bindings/nccl.ts";
import type { ControlPlane } from "../../control_plane.ts";
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
} from "../../data_plane.ts";
import type { ShareParts } from "../../rank_parts.ts";
import { acquire } from "../../together.ts";
import { isRegisteredWindow } from "../gather_slots.ts";
import { MessageLengths } from "../message_lengths.ts";
import type { Communicator, NcclCall } from "./communicator.ts";
import { SymmetricMemory } from "./symmetric.ts";

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

/** The data plane of a group of cards. */
export class NcclDataPlane implements DataPlane {
  readonly kind = "nccl";
  readonly dryBackend = "nccl";
  readonly isEnqueued = true;
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

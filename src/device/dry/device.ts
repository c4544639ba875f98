/**
 * A device that computes nothing: the real allocator over an endless address range, kernels that are checked and counted, and
 * streams whose order is followed. A step on it shows the memory and work that the step takes on the device it stands for, and if
 * events order its streams. Reads give zeros.
 *
 * @module
 */
import { InternalError } from "../../errors.ts";
import type { Allocator } from "../allocator.ts";
import type { Device, DevicePtr, PortableMath } from "../device.ts";
import { GraphAllocator } from "../graph_allocator.ts";
import { COPIED_IN, WAITED } from "../graphs.ts";
import { accessesOf, flopsOf } from "../kernels/accesses.ts";
import { checksOf } from "../kernels/arguments.ts";
import { type KernelCall, type Kernels, makeKernels } from "../kernels/table.ts";
import type { KernelEntry } from "../kernels/signature.ts";
import { OffloadPool, POOL_NAME } from "../offload.ts";
import { DeviceScalars } from "../scalars.ts";
import { DeviceStatus, STATUS_AREA_BYTES } from "../status.ts";
import { type DeviceEvent, type Stream, type StreamName, Streams } from "../stream.ts";
import { type DeviceTraits, PLAIN_TRAITS } from "../traits.ts";
import { DryGraphs } from "./graphs.ts";
import { type Clock, Hazards, type Touch } from "./hazards.ts";

/** One past the last address: far beyond any memory, and exact as a number. */
const END = 2 ** 52;

/** A status record without a fault. */
const NO_FAULT = new DataView(new ArrayBuffer(STATUS_AREA_BYTES));

export interface KernelUse {
  readonly calls: number;
  readonly flops: number;
  /** Bytes read and written, each element once for each call. */
  readonly bytes: number;
}

/** Known traits of the device that a dry device stands for. */
export interface DryModel extends Pick<Device, "name" | "math" | "mathName" | "detail" | "scratchBytes"> {
  readonly traits: Pick<DeviceTraits, "backend" | "missingKernels" | "logitsPerChunk">;
  readonly allocator: Pick<Allocator, "begin">;
  readonly status: Pick<DeviceStatus, "ptr" | "isLate">;
}

/** An allocator that reports its blocks to the finder of hazards. */
class FollowedAllocator extends GraphAllocator {
  readonly #hazards: Hazards;
  readonly #stream: () => Stream;

  constructor(where: string, begin: number, hazards: Hazards, stream: () => Stream) {
    super(where, begin, END, stream);
    this.#hazards = hazards;
    this.#stream = stream;
  }

  protected override given(ptr: DevicePtr, bytes: number, owner: string): void {
    this.#hazards.allocated(this.#stream().name, ptr, bytes, owner);
  }

  protected override takenBack(ptr: DevicePtr): void {
    this.#hazards.freed(this.#stream().name, ptr);
  }
}

/** An event for the finder of hazards. */
class DryEvent implements DeviceEvent {
  readonly done = true;
  readonly clock: Clock;

  constructor(clock: Clock) {
    this.clock = clock;
  }
}

class DryStream implements Stream {
  readonly name: StreamName;
  readonly #hazards: Hazards;

  constructor(name: StreamName, hazards: Hazards) {
    this.name = name;
    this.#hazards = hazards;
  }

  record(): DeviceEvent {
    return new DryEvent(this.#hazards.record(this.name));
  }

  wait(event: DeviceEvent): void {
    if (!(event instanceof DryEvent)) throw new InternalError("a dry stream waits for an event of another device");
    this.#hazards.wait(this.name, event.clock);
  }
}

/** Stands for another device. */
export class DryDevice implements Device {
  readonly name: string;
  readonly allocator: Allocator;
  /** They exist even if the other device has none. */
  readonly graphs: DryGraphs;
  readonly kernels: Kernels;
  readonly status: DeviceStatus;
  readonly streams: Streams;
  readonly scalars: DeviceScalars = new DeviceScalars(this);
  readonly offload: OffloadPool;
  readonly math: PortableMath;
  readonly mathName: string;
  readonly detail: string;
  readonly traits: DeviceTraits;
  readonly #model: DryModel;
  readonly #hazards = new Hazards();
  readonly #uses = new Map<string, KernelUse>();

  /** @param model the device that it stands for, which is only read */
  constructor(model: DryModel, name: string = model.name) {
    this.#model = model;
    this.name = name;
    this.offload = new OffloadPool(() => new DryDevice(model, POOL_NAME));
    this.math = model.math;
    this.mathName = model.mathName;
    this.detail = model.detail;
    this.streams = new Streams((name) => new DryStream(name, this.#hazards));
    const { begin } = model.allocator;
    const allocator = new FollowedAllocator(name, begin, this.#hazards, () => this.streams.current);
    this.allocator = allocator;
    this.graphs = new DryGraphs(allocator, this.streams);
    const { backend, missingKernels, logitsPerChunk } = model.traits;
    const { graphs, graphs: { hostWork } } = this;
    this.traits = { ...PLAIN_TRAITS, backend, missingKernels, logitsPerChunk, hostWork, graphs };
    // The record lies below the allocator's addresses, as on the real device.
    const status = model.status.ptr;
    this.#hazards.allocated("compute", status, STATUS_AREA_BYTES, "status record");
    this.status = new DeviceStatus(status, model.status.isLate, {
      ...{ read: () => NO_FAULT, clear: () => {} },
      isCapturing: () => this.graphs.hostWork.isCapturing,
    });
    this.kernels = makeKernels((name, entry) => this.#kernel(name, entry, status));
  }

  /** Work of each kernel since {@link resetUses}. */
  get uses(): ReadonlyMap<string, KernelUse> {
    return this.#uses;
  }

  /** Resets the counts. */
  resetUses(): void {
    this.#uses.clear();
  }

  /**
   * Records work on the current stream that is not a kernel, e.g. a collective.
   *
   * @throws {HazardError} if nothing orders it after the work that it depends on
   */
  enqueue(operation: string, touches: readonly Touch[]): void {
    const { name } = this.streams.current;
    this.#hazards.begin(name);
    for (const touch of touches) this.#hazards.touch(name, operation, touch);
  }

  scratchBytes(kernel: string, args: Parameters<Device["scratchBytes"]>[1]): number {
    return this.#model.scratchBytes(kernel, args);
  }

  copyIn(dst: DevicePtr, { byteLength }: Uint8Array): void {
    this.graphs.hostWork.refuse(COPIED_IN);
    this.enqueue("copyIn", [{ address: dst, byteLength, writes: true, what: "dst" }]);
  }

  copyOut(dst: Uint8Array, src: DevicePtr): void {
    this.graphs.hostWork.refuse(WAITED);
    this.enqueue("copyOut", [{ address: src, byteLength: dst.byteLength, writes: false, what: "src" }]);
    dst.fill(0);
  }

  copy(dst: DevicePtr, src: DevicePtr, byteLength: number): void {
    this.enqueue("copy", [
      { address: src, byteLength, writes: false, what: "src" },
      { address: dst, byteLength, writes: true, what: "dst" },
    ]);
  }

  synchronize(): void {}

  dispose(): void {}

  #kernel(name: string, entry: KernelEntry, status: DevicePtr): KernelCall {
    const checks = checksOf(name, entry);
    return (args) => {
      for (const check of checks) check(args);
      const scratch = this.scratchBytes(name, args);
      if (scratch > 0) this.allocator.free(this.allocator.allocate(scratch, `${name} scratch`));
      const touches: Touch[] = [];
      let moved = 0;
      for (const { parameter: what, direction, address, byteLength, movedBytes } of accessesOf(entry, args, status)) {
        touches.push({ address, byteLength, writes: direction !== "reads", what });
        moved += movedBytes;
      }
      this.enqueue(name, touches);
      const { calls, flops, bytes } = this.#uses.get(name) ?? { calls: 0, flops: 0, bytes: 0 };
      this.#uses.set(name, { calls: calls + 1, flops: flops + flopsOf(entry, args), bytes: bytes + moved });
    };
  }
}

/** True if a device computes nothing, so that work on its memory must be reported. */
export function isDry(device: Device): device is DryDevice {
  return device instanceof DryDevice;
}

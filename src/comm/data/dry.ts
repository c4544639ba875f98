/**
 * The data plane that moves nothing: it takes the device memory that the plane it stands for would take, at the same
 * moments, tells a dry device what would be read and written, and runs no kernel. How much is communicated, the group's listeners see.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { MemoryKind } from "../../device/allocator.ts";
import { type Device, type DevicePtr, devicePtr } from "../../device/device.ts";
import { isDry } from "../../device/dry/device.ts";
import { float32 } from "../../dtype.ts";
import { type ControlPlane, placeInWorld } from "../control_plane.ts";
import { checkRank } from "../checks.ts";
import { DryControlPlane } from "../control/dry.ts";
import {
  type AllReduceArgs,
  type DataPlane,
  FINISHED,
  type ReduceScatterArgs,
  type Transfer,
  type Window,
  type Work,
} from "../data_plane.ts";
import { ProcessGroup } from "../process_group.ts";
import {
  allocatePages,
  divideSlot,
  evenRuns,
  oneShotLength,
  slotBytesOf,
  type SlotLayout,
  type StagingOptions,
  wholePages,
} from "./sizes.ts";
import { Scratch } from "./staging.ts";

/** Some bytes of device memory. */
interface MemoryRange {
  readonly address: DevicePtr;
  readonly byteLength: number;
}

/** What a dry group stands for; sizes as for that plane. */
export interface DryOptions extends StagingOptions {
  readonly rank: number;
  readonly worldSize: number;
  /** The plane whose memory is taken; default `shm`. */
  readonly standsFor?: "shm" | "loopback" | undefined;
  /** Bytes of a memory page; default 4096. */
  readonly pageBytes?: number | undefined;
}

/** Takes memory and moves nothing. */
export class DryDataPlane implements DataPlane {
  readonly kind = "dry";
  readonly sums = "rank-order";
  readonly stagingBytes: number;
  readonly #control: ControlPlane;
  readonly #device: Device;
  readonly #options: DryOptions;
  readonly #layout: SlotLayout;
  readonly #pageBytes: number;
  /** Whether memory is mapped, and so comes in whole pages. */
  readonly #isMapped: boolean;
  /** Where memory is mapped, all slots. */
  readonly #slots: DevicePtr | undefined;
  /** Elsewhere, copies of others' chunks. */
  readonly #scratch: Scratch;

  constructor(control: ControlPlane, device: Device, slotBytes: number, options: DryOptions) {
    const { standsFor = "shm", pageBytes = 4096 } = options;
    const { size } = control;
    this.#control = control;
    this.#device = device;
    this.#options = options;
    this.#layout = divideSlot(slotBytes, size, options);
    this.#pageBytes = pageBytes;
    this.#isMapped = standsFor === "shm" && size > 1;
    this.stagingBytes = this.#isMapped ? wholePages(size * slotBytes, pageBytes) : 0;
    this.#slots = this.#isMapped ? this.#allocate(this.stagingBytes, "staging", "staging") : undefined;
    this.#scratch = new Scratch(device.allocator);
  }

  openWindow(byteLengths: readonly number[], unit: string): Window {
    const { allocator } = this.#device;
    const own = at(byteLengths, this.#control.rank, "part of rank");
    const pointer = this.#allocate(own, `window '${unit}'`, "parameters");
    const gather = (dst: DevicePtr, offsets: readonly number[]): Work => {
      const parts = byteLengths.map((byteLength, r) => range(dst + at(offsets, r, "offset of rank"), byteLength));
      return this.#enqueue(`gather '${unit}'`, [range(pointer, own)], parts);
    };
    return { pointer, gather, beginWrite(): void {}, endWrite(): void {}, dispose: () => allocator.free(pointer) };
  }

  reduceScatter({ src, dtype, runs, dst, dstDtype, scale, accumulate }: ReduceScatterArgs): Work {
    const { length } = at(runs, this.#control.rank, "run of rank");
    this.#reserve(length, dtype.byteLength, false);
    const written = range(dst, length * dstDtype.byteLength);
    const read = runs.map((run) => range(src + run.offset * dtype.byteLength, run.length * dtype.byteLength));
    const reads = [...read, ...accumulate ? [written] : [], ...factor(scale)];
    return this.#enqueue("reduce-scatter", reads, [written]);
  }

  allReduce({ ptr, n, dtype, op, scale }: AllReduceArgs): Work {
    const { rank, size } = this.#control;
    const oneShot = oneShotLength(this.#layout, dtype.byteLength);
    const isAtOnce = n <= oneShot || op === "max";
    const length = isAtOnce ? Math.min(n, oneShot) : at(evenRuns(n, size), rank, "run of rank").length;
    this.#reserve(length, dtype.byteLength, op === "max");
    const whole = [range(ptr, n * dtype.byteLength)];
    return this.#enqueue("all-reduce", [...whole, ...factor(scale)], whole);
  }

  allGather(dst: DevicePtr, src: DevicePtr, byteLength: number): Work {
    return this.#enqueue("all-gather", [range(src, byteLength)], [range(dst, byteLength * this.#control.size)]);
  }

  broadcast(ptr: DevicePtr, byteLength: number, root: number): Work {
    const whole = [range(ptr, byteLength)];
    const isRoot = root === this.#control.rank;
    return this.#enqueue("broadcast", isRoot ? whole : [], isRoot ? [] : whole);
  }

  transfer(transfers: readonly Transfer[]): Work {
    const of = (kind: Transfer["kind"]): MemoryRange[] =>
      transfers.filter((one) => one.kind === kind).map(({ ptr, byteLength }) => range(ptr, byteLength));
    return this.#enqueue("send and receive", of("send"), of("receive"));
  }

  split(control: ControlPlane): DryDataPlane {
    return new DryDataPlane(control, this.#device, this.#layout.slotBytes, this.#options);
  }

  dispose(): void {
    if (this.#slots !== undefined) this.#device.allocator.free(this.#slots);
    this.#scratch[Symbol.dispose]();
  }

  #allocate(byteLength: number, owner: string, kind: MemoryKind): DevicePtr {
    const { allocator } = this.#device;
    return this.#isMapped
      ? allocatePages(allocator, byteLength, this.#pageBytes, owner, kind)
      : allocator.allocate(byteLength, owner, kind);
  }

  /** Takes the scratch that a sum of `length` elements of this rank needs, of which its own chunk is one if `withOwn`. */
  #reserve(length: number, unit: number, withOwn: boolean): void {
    const { rank, size } = this.#control;
    const byteLength = Math.min(length, Math.floor(this.#layout.chunkBytes / unit)) * unit;
    if (this.#isMapped || size === 1 || byteLength === 0) return;
    for (let from = 0; from < size; from++) if (withOwn || from !== rank) this.#scratch.of(from, byteLength);
  }

  /** A collective on the stream under way. */
  #enqueue(operation: string, reads: readonly MemoryRange[], writes: readonly MemoryRange[]): Work {
    const device = this.#device;
    if (!isDry(device)) return FINISHED;
    device.enqueue(operation, [
      ...joined(reads).map((range) => ({ ...range, writes: false, what: "what is sent" })),
      ...joined(writes).map((range) => ({ ...range, writes: true, what: "what is received" })),
    ]);
    const end = device.streams.current.record();
    return { done: true, wait: () => device.streams.current.wait(end) };
  }
}

/** The same bytes in fewer ranges: one where each begins at the end of the last, as the parts of many ranks do. */
function joined(ranges: readonly MemoryRange[]): readonly MemoryRange[] {
  const result: MemoryRange[] = [];
  for (const { address, byteLength } of ranges) {
    const last = result.at(-1);
    if (last === undefined || last.address + last.byteLength !== address) result.push({ address, byteLength });
    else result[result.length - 1] = range(last.address, last.byteLength + byteLength);
  }
  return result;
}

/** What a sum reads of its factor. */
function factor(scale: DevicePtr | undefined): readonly MemoryRange[] {
  return scale === undefined ? [] : [range(scale, float32.byteLength)];
}

function range(address: number, byteLength: number): MemoryRange {
  return { address: devicePtr(address), byteLength };
}

/**
 * Any rank of a world of any size, on its own: nothing is moved, nobody is waited for. Every other rank is taken to do what
 * this one does.
 *
 * @example
 * ```ts ignore
 * using group = openDry(device, { rank: 3, worldSize: 1024 });
 * group.observe((call) => (bytes += byteLengthOf(call)));
 * ```
 */
export function openDry(device: Device, options: DryOptions): ProcessGroup {
  const { rank, worldSize, standsFor = "shm" } = options;
  checkRank(rank, worldSize, "A dry group");
  const control = new DryControlPlane(placeInWorld(rank, worldSize));
  return new ProcessGroup(
    control,
    new DryDataPlane(control, device, slotBytesOf(standsFor, worldSize, options), options),
  );
}

/**
 * The data plane of a dry run, which moves nothing. It allocates what the real plane would, reports reads and writes to the dry device,
 * and launches nothing. Listeners of the group count the bytes.
 *
 * @module
 */
import { at } from "../../at.ts";
import { type Device, type DevicePtr, devicePtr } from "../../device/device.ts";
import { isDry } from "../../device/dry/device.ts";
import { float32 } from "../../dtype.ts";
import { type ControlPlane, placeInWorld } from "../control_plane.ts";
import { checkRank } from "../checks.ts";
import { DryControlPlane } from "../control/dry.ts";
import { type DataPlane, enqueuedWork, FINISHED, type Transfer, type Window, type Work } from "../data_plane.ts";
import { ProcessGroup } from "../process_group.ts";
import { type Backend, openPlaneMemory } from "../registry.ts";
import type { PlaneMemory, PlaneMemoryOptions } from "./plane_memory.ts";

interface MemoryRange {
  readonly address: DevicePtr;
  readonly byteLength: number;
}

/**
 * Options of a dry group; sizes mean the same as for the plane that it stands for.
 *
 * @internal
 */
export interface DryOptions extends PlaneMemoryOptions {
  readonly rank: number;
  readonly worldSize: number;
  /** The backend whose memory is allocated; default `shm`. */
  readonly standsFor?: Backend | undefined;
}

/** Dry options that stand for an open group, with as many ranks. */
export function twinOf(group: Parameters<typeof standInOf>[0]): Omit<DryOptions, "rank" | "worldSize"> {
  return { ...standInOf(group), ...group.twin };
}

/** Dry options that stand for an open group, whatever the number of ranks. */
export function standInOf(
  group: Pick<ProcessGroup, "twin" | "registersMemory" | "stagingRanks">,
): Pick<DryOptions, "standsFor" | "registersMemory" | "ranksPerHost"> {
  const { twin: { standsFor }, registersMemory, stagingRanks: ranksPerHost } = group;
  return { standsFor, registersMemory, ...standsFor === "mpi" ? { ranksPerHost } : {} };
}

/** A data plane that allocates memory and moves nothing. */
function dryPlane(control: ControlPlane, device: Device, memory: PlaneMemory, dryBackend: Backend): DataPlane {
  const { rank, size } = control;
  const { allocator } = device;
  const { stagingBytes, stagingRanks = size, registersMemory } = memory;
  return {
    kind: "dry",
    dryBackend,
    sums: "rank-order",
    stagingBytes,
    stagingRanks,
    registersMemory,
    gatherMemory: () => memory.gatherMemory(),
    openWindow(byteLengths, unit): Window {
      const own = at(byteLengths, rank, "part of rank");
      const pointer = memory.openWindow(byteLengths, `window '${unit}'`);
      const gather = (dst: DevicePtr, offsets: readonly number[]): Work => {
        const parts = byteLengths.map((byteLength, r) => range(dst + at(offsets, r, "offset of rank"), byteLength));
        return enqueue(device, `gather '${unit}'`, [range(pointer, own)], parts);
      };
      return { pointer, gather, beginWrite(): void {}, endWrite(): void {}, dispose: () => allocator.free(pointer) };
    },
    reduceScatter({ src, dtype, slices, dst, dstDtype, scale, accumulate }): Work {
      const { length } = at(slices, rank, "slice of rank");
      const endsInWait = memory.reduceScatter(length, dtype, dtype === dstDtype && !accumulate);
      const written = range(dst, length * dstDtype.byteLength);
      const read = slices.map((slice) => range(src + slice.offset * dtype.byteLength, slice.length * dtype.byteLength));
      const reads = [...read, ...accumulate ? [written] : [], ...factor(scale)];
      return { ...enqueue(device, "reduce-scatter", reads, [written]), endsInWait };
    },
    allReduce({ ptr, n, dtype, op, scale }): Work {
      memory.allReduce({ n, dtype, op });
      const whole = [range(ptr, n * dtype.byteLength)];
      return enqueue(device, "all-reduce", [...whole, ...factor(scale)], whole);
    },
    allGather: (dst, src, byteLength) =>
      enqueue(device, "all-gather", [range(src, byteLength)], [range(dst, byteLength * size)]),
    broadcast(ptr, byteLength, root): Work {
      const whole = [range(ptr, byteLength)];
      return enqueue(device, "broadcast", root === rank ? whole : [], root === rank ? [] : whole);
    },
    transfer(transfers): Work {
      const of = (kind: Transfer["kind"]): MemoryRange[] =>
        transfers.filter((one) => one.kind === kind).map(({ ptr, byteLength }) => range(ptr, byteLength));
      // Messages that touch may lie in different blocks.
      return enqueue(device, "send and receive", of("send"), of("receive"), (ranges) => ranges);
    },
    split: (part) => dryPlane(part, device, memory.split(part), dryBackend),
    dispose: () => memory[Symbol.dispose](),
  };
}

/** Records a collective on the current stream. */
function enqueue(
  device: Device,
  operation: string,
  reads: readonly MemoryRange[],
  writes: readonly MemoryRange[],
  join: (ranges: readonly MemoryRange[]) => readonly MemoryRange[] = joined,
): Work {
  if (!isDry(device)) return FINISHED;
  device.enqueue(operation, [
    ...join(reads).map((range) => ({ ...range, writes: false, what: "what is sent" })),
    ...join(writes).map((range) => ({ ...range, writes: true, what: "what is received" })),
  ]);
  return enqueuedWork(device);
}

/** Joins ranges that touch, as the parts of many ranks do. */
function joined(ranges: readonly MemoryRange[]): readonly MemoryRange[] {
  const result: MemoryRange[] = [];
  for (const { address, byteLength } of ranges) {
    const last = result.at(-1);
    if (last === undefined || last.address + last.byteLength !== address) result.push({ address, byteLength });
    else result[result.length - 1] = range(last.address, last.byteLength + byteLength);
  }
  return result;
}

/** The memory of a sum's factor. */
function factor(scale: DevicePtr | undefined): readonly MemoryRange[] {
  return scale === undefined ? [] : [range(scale, float32.byteLength)];
}

function range(address: number, byteLength: number): MemoryRange {
  return { address: devicePtr(address), byteLength };
}

/**
 * Opens a group of one rank alone, in a world of any size. Nothing is moved and no rank is waited for: all other ranks are
 * taken to do the same as this one.
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
  const memory = openPlaneMemory(standsFor, control, device, options);
  return new ProcessGroup(control, dryPlane(control, device, memory, standsFor));
}

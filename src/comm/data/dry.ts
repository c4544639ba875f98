/**
 * The data plane of a dry run, which moves nothing. It allocates the memory of the plane that it stands for, at the same moments,
 * tells a dry device which memory is read and written, and launches no kernel. Listeners of the group count the bytes.
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
import { type DataPlane, enqueuedWork, FINISHED, type Transfer, type Window, type Work } from "../data_plane.ts";
import { ProcessGroup } from "../process_group.ts";
import { GatherSlots, isRegisteredWindow, registeredBytes } from "./gather_slots.ts";
import {
  allocatePages,
  divideSlot,
  evenSlices,
  oneShotLength,
  roundUpToPage,
  slotBytesOf,
  type StagingOptions,
} from "./sizes.ts";
import { Scratch } from "./staging.ts";

interface MemoryRange {
  readonly address: DevicePtr;
  readonly byteLength: number;
}

/**
 * Options of a dry group; sizes mean the same as for the plane that it stands for.
 *
 * @internal
 */
export interface DryOptions extends StagingOptions {
  readonly rank: number;
  readonly worldSize: number;
  /** The plane whose memory is allocated; default `shm`. */
  readonly standsFor?: "shm" | "loopback" | "nccl" | undefined;
  /** True if ranks of `nccl` register the memory into which they gather. @default false */
  readonly registersMemory?: boolean | undefined;
  /** Bytes of a memory page; default 4096. */
  readonly pageBytes?: number | undefined;
}

/** Dry options that stand for an open group. */
export function standInOf(
  { kind, stagingBytes, registersMemory }: Pick<ProcessGroup, "kind" | "stagingBytes" | "registersMemory">,
): Pick<DryOptions, "standsFor" | "registersMemory"> {
  if (kind === "nccl") return { standsFor: kind, registersMemory };
  return { standsFor: stagingBytes > 0 ? "shm" : "loopback" }; // mapped, or copied
}

/** A data plane that allocates memory and moves nothing. */
function dryPlane(control: ControlPlane, device: Device, slotBytes: number, options: DryOptions): DataPlane {
  const { standsFor = "shm", pageBytes = 4096 } = options;
  const { rank, size } = control;
  const { allocator } = device;
  // Cards stage nothing.
  const layout = standsFor === "nccl" ? undefined : divideSlot(slotBytes, size, options);
  const registers = options.registersMemory === true && size > 1;
  const gathered = new GatherSlots(device, (bytes, owner, kind) => allocator.allocate(bytes, owner, kind));
  // Mapped memory comes in whole pages.
  const isMapped = standsFor === "shm" && size > 1;
  const allocate = (byteLength: number, owner: string, kind: MemoryKind): DevicePtr =>
    isMapped
      ? allocatePages(allocator, byteLength, pageBytes, owner, kind)
      : allocator.allocate(byteLength, owner, kind);
  const stagingBytes = isMapped ? roundUpToPage(size * slotBytes, pageBytes) : 0;
  // Mapped staging holds the slots of all ranks; other planes copy other ranks' chunks into scratch memory.
  const slots = isMapped ? allocate(stagingBytes, "staging", "staging") : undefined;
  const scratch = new Scratch(allocator);
  /** Allocates the scratch of a sum of this rank's `length` elements; `withOwn` counts this rank's chunk too. */
  const reserve = (length: number, unit: number, withOwn: boolean): void => {
    if (layout === undefined || isMapped || size === 1) return;
    const byteLength = Math.min(length, Math.floor(layout.chunkBytes / unit)) * unit;
    if (byteLength === 0) return;
    for (let from = 0; from < size; from++) if (withOwn || from !== rank) scratch.of(from, byteLength);
  };
  return {
    kind: "dry",
    sums: "rank-order",
    stagingBytes,
    registersMemory: registers,
    gatherMemory: () => registers ? gathered.open() : undefined,
    openWindow(byteLengths, unit): Window {
      const own = at(byteLengths, rank, "part of rank");
      const isRegistered = registers && isRegisteredWindow(byteLengths);
      const pointer = allocate(isRegistered ? registeredBytes(own) : own, `window '${unit}'`, "parameters");
      const gather = (dst: DevicePtr, offsets: readonly number[]): Work => {
        const parts = byteLengths.map((byteLength, r) => range(dst + at(offsets, r, "offset of rank"), byteLength));
        return enqueue(device, `gather '${unit}'`, [range(pointer, own)], parts);
      };
      return { pointer, gather, beginWrite(): void {}, endWrite(): void {}, dispose: () => allocator.free(pointer) };
    },
    reduceScatter({ src, dtype, slices, dst, dstDtype, scale, accumulate }): Work {
      const { length } = at(slices, rank, "slice of rank");
      reserve(length, dtype.byteLength, false);
      const isCast = dtype !== dstDtype || accumulate;
      const sums = layout === undefined && isCast
        ? allocator.allocate(length * dtype.byteLength, "reduce-scatter", "staging")
        : undefined;
      if (sums !== undefined) allocator.free(sums);
      const written = range(dst, length * dstDtype.byteLength);
      const read = slices.map((slice) => range(src + slice.offset * dtype.byteLength, slice.length * dtype.byteLength));
      return enqueue(device, "reduce-scatter", [...read, ...accumulate ? [written] : [], ...factor(scale)], [written]);
    },
    allReduce({ ptr, n, dtype, op, scale }): Work {
      if (layout !== undefined) {
        const oneShot = oneShotLength(layout, dtype.byteLength);
        const isAtOnce = n <= oneShot || op === "max";
        const length = isAtOnce ? Math.min(n, oneShot) : at(evenSlices(n, size), rank, "slice of rank").length;
        reserve(length, dtype.byteLength, op === "max");
      }
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
      return enqueue(device, "send and receive", of("send"), of("receive"));
    },
    split: (part) => dryPlane(part, device, slotBytes, options),
    dispose(): void {
      if (slots !== undefined) allocator.free(slots);
      scratch[Symbol.dispose]();
    },
  };
}

/** Records a collective on the current stream. */
function enqueue(
  device: Device,
  operation: string,
  reads: readonly MemoryRange[],
  writes: readonly MemoryRange[],
): Work {
  if (!isDry(device)) return FINISHED;
  device.enqueue(operation, [
    ...joined(reads).map((range) => ({ ...range, writes: false, what: "what is sent" })),
    ...joined(writes).map((range) => ({ ...range, writes: true, what: "what is received" })),
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
  const slotBytes = standsFor === "nccl" ? 0 : slotBytesOf(standsFor, worldSize, options);
  return new ProcessGroup(control, dryPlane(control, device, slotBytes, options));
}

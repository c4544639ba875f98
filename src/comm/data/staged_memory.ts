/**
 * The memory of planes over staging buffers, as dry runs allocate it. Mapped staging holds the slots of all ranks; without a mapping
 * the chunks of other ranks are copied to scratch memory.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { MemoryKind } from "../../device/allocator.ts";
import type { Device, DevicePtr } from "../../device/device.ts";
import type { DType } from "../../dtype.ts";
import type { AllReduceArgs } from "../data_plane.ts";
import type { OpenPlaneMemory, PlaneMemory, PlaneMemoryOptions, PlaneRanks } from "./plane_memory.ts";
import {
  allocatePages,
  divideSlot,
  evenSlices,
  oneShotLength,
  roundUpToPage,
  slotBytesOf,
  type SlotLayout,
} from "./sizes.ts";
import { Scratch } from "./staging.ts";

/** Settings that the groups of a world share. */
interface WorldStaging {
  readonly device: Device;
  readonly slotBytes: number;
  /** Windows and staging are mapped where there are several ranks. */
  readonly maps: boolean;
  readonly options: PlaneMemoryOptions;
}

class StagedMemory implements PlaneMemory {
  readonly stagingBytes: number;
  readonly registersMemory = false;
  readonly #world: WorldStaging;
  readonly #ranks: PlaneRanks;
  readonly #isMapped: boolean;
  readonly #layout: SlotLayout;
  readonly #slots: DevicePtr | undefined;
  readonly #scratch: Scratch;

  constructor(ranks: PlaneRanks, world: WorldStaging) {
    const { device, slotBytes, maps, options, options: { pageBytes = 4096 } } = world;
    this.#world = world;
    this.#ranks = ranks;
    this.#isMapped = maps && ranks.size > 1;
    this.#layout = divideSlot(slotBytes, ranks.size, options);
    this.stagingBytes = this.#isMapped ? roundUpToPage(ranks.size * slotBytes, pageBytes) : 0;
    this.#slots = this.#isMapped ? this.#allocate(this.stagingBytes, "staging", "staging") : undefined;
    this.#scratch = new Scratch(device.allocator);
  }

  gatherMemory(): undefined {}

  openWindow(byteLengths: readonly number[], owner: string): DevicePtr {
    return this.#allocate(at(byteLengths, this.#ranks.rank, "part of rank"), owner, "parameters");
  }

  reduceScatter(length: number, dtype: DType): boolean {
    this.#reserve(length, dtype.byteLength, false);
    return false;
  }

  allReduce({ n, dtype: { byteLength: unit }, op }: Pick<AllReduceArgs, "n" | "dtype" | "op">): void {
    const { rank, size } = this.#ranks;
    const oneShot = oneShotLength(this.#layout, unit);
    const isAtOnce = n <= oneShot || op === "max";
    const length = isAtOnce ? Math.min(n, oneShot) : at(evenSlices(n, size), rank, "slice of rank").length;
    this.#reserve(length, unit, op === "max");
  }

  split(ranks: PlaneRanks): PlaneMemory {
    return new StagedMemory(ranks, this.#world);
  }

  [Symbol.dispose](): void {
    if (this.#slots !== undefined) this.#world.device.allocator.free(this.#slots);
    this.#scratch[Symbol.dispose]();
  }

  /** Mapped memory comes in whole pages. */
  #allocate(byteLength: number, owner: string, kind: MemoryKind): DevicePtr {
    const { device: { allocator }, options: { pageBytes = 4096 } } = this.#world;
    return this.#isMapped
      ? allocatePages(allocator, byteLength, pageBytes, owner, kind)
      : allocator.allocate(byteLength, owner, kind);
  }

  /** Allocates the scratch of a sum of this rank's `length` elements; `withOwn` counts this rank's chunk too. */
  #reserve(length: number, unit: number, withOwn: boolean): void {
    const { rank, size } = this.#ranks;
    if (this.#isMapped || size === 1) return;
    const byteLength = Math.min(length, Math.floor(this.#layout.chunkBytes / unit)) * unit;
    if (byteLength === 0) return;
    for (let from = 0; from < size; from++) if (withOwn || from !== rank) this.#scratch.of(from, byteLength);
  }
}

/** The memory of ranks that map shared files. */
export const openMappedMemory: OpenPlaneMemory = (ranks, device, options) =>
  new StagedMemory(ranks, { device, slotBytes: slotBytesOf("shm", ranks.size, options), maps: true, options });

/** The memory of ranks that copy to and from shared memory. */
export const openCopiedMemory: OpenPlaneMemory = (ranks, device, options) =>
  new StagedMemory(ranks, { device, slotBytes: slotBytesOf("loopback", ranks.size, options), maps: false, options });

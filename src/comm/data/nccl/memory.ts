/**
 * The memory of NCCL's plane, as dry runs allocate it. Cards stage nothing.
 *
 * @module
 */
import { at } from "../../../at.ts";
import type { Device } from "../../../device/device.ts";
import { GatherSlots, isRegisteredWindow, registeredBytes } from "../gather_slots.ts";
import type { OpenPlaneMemory, PlaneMemory, PlaneMemoryOptions, PlaneRanks } from "../plane_memory.ts";

/** The memory of ranks with a card each. */
export const openNcclMemory: OpenPlaneMemory = (
  { rank, size }: PlaneRanks,
  device: Device,
  options: PlaneMemoryOptions,
) => {
  const { allocator } = device;
  const registersMemory = options.registersMemory === true && size > 1;
  const gathered = new GatherSlots(device, (bytes, owner, kind) => allocator.allocate(bytes, owner, kind));
  return {
    stagingBytes: 0,
    registersMemory,
    gatherMemory: () => registersMemory ? gathered.open() : undefined,
    openWindow(byteLengths, owner) {
      const own = at(byteLengths, rank, "part of rank");
      const isRegistered = registersMemory && isRegisteredWindow(byteLengths);
      return allocator.allocate(isRegistered ? registeredBytes(own) : own, owner, "parameters");
    },
    reduceScatter(length, dtype, isFinal): boolean {
      if (!isFinal) allocator.free(allocator.allocate(length * dtype.byteLength, "reduce-scatter", "staging"));
      return false;
    },
    allReduce(): void {},
    split: (ranks): PlaneMemory => openNcclMemory(ranks, device, options),
    [Symbol.dispose](): void {},
  };
};

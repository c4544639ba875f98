/**
 * Registered memory into which units gather in turn: slots that are made on demand, and then stay. The slot depends on the
 * order of calls alone, so ranks that make the same calls gather into the same slots.
 *
 * Note [Turns of slots]: reusing a slot makes the gather's stream wait until the slot was freed. To overlap that wait with
 * computation, a unit takes the free slot of its size that was freed first, if
 * 1. it was freed before the newest gather of that size: this gather overlaps with the computation of that one's unit;
 * 2. or a slot that was taken later is still in use: the wait overlaps with that unit's computation.
 * 3. Else the unit takes the slot that it had last, if that is free.
 *
 * Otherwise a new slot is made. While a graph is captured none can be made, so any free slot will do.
 * ```text
 * one by one:     gather A in 0 | free 0 | gather B in 1 | free 1 | gather C in 0 by rule 1
 * with prefetch:  gather A in 0 | gather B in 1 | free 0 | gather C in 0 by rule 2, as B computes | free 1
 * A once more:    gather A in 0 | free 0 | gather A in 0 by rule 3
 * ```
 *
 * Note [Slots of graphs]: each launch of a graph writes to its slots, so no other work gets them until the graph is dropped.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { MemoryKind } from "../../device/allocator.ts";
import type { Device, DevicePtr } from "../../device/device.ts";
import type { DeviceEvent, StreamName } from "../../device/stream.ts";
import { InternalError } from "../../errors.ts";
import type { GatherMemory } from "../data_plane.ts";

/**
 * Slots and windows are multiples of this many bytes: the driver shares memory between cards in such units, so the allocator
 * counts exactly what is taken.
 */
const GRANULARITY: number = 2 ** 21;

/** Smaller windows are not registered: {@link GRANULARITY} bytes each would cost more than the kernels that gather them. */
const LEAST_WINDOW = 4096;

/** True if ranks that register memory register a window of these parts: they are equal, and large enough. */
export function isRegisteredWindow(byteLengths: readonly number[]): boolean {
  return byteLengths.every((length) => length >= LEAST_WINDOW && length === byteLengths[0]);
}

/** Bytes of registered memory that a block takes. */
export function registeredBytes(byteLength: number): number {
  return Math.max(1, Math.ceil(byteLength / GRANULARITY)) * GRANULARITY;
}

/** A block of registered memory for one unit at a time. */
interface Slot {
  readonly ptr: DevicePtr;
  readonly byteLength: number;
  /** The unit that has it, or had it last. */
  user: object;
  /** Time at which it was last taken, in calls of `allocate` and `free`. */
  taken: number;
  /** Stream, event and time of its last free; undefined while it is in use. */
  freed: { readonly stream: StreamName; readonly event: DeviceEvent; readonly time: number } | undefined;
  /** Number of graphs that write to it. */
  graphs: number;
}

/** Allocates registered memory; undefined if none can be registered. */
type MakeSlot = (byteLength: number, owner: string, kind: MemoryKind) => DevicePtr | undefined;

export class GatherSlots {
  readonly #device: Device;
  readonly #make: MakeSlot;
  readonly #slots: Slot[] = [];
  /** Time of the last take, by the size of the slot. */
  readonly #taken = new Map<number, number>();
  #time = 0;

  /** @param make makes a new slot; collective if that registers memory */
  constructor(device: Device, make: MakeSlot) {
    this.#device = device;
    this.#make = make;
  }

  /** Memory of one unit: slots, or any memory where none can be made. See Note [Turns of slots]. */
  open(): GatherMemory {
    const [user, { allocator }] = [{}, this.#device];
    return {
      grows: (byteLength) => this.#find(user, registeredBytes(byteLength)) === undefined,
      allocate: (byteLength, owner, kind = "gathered") =>
        this.#take(user, registeredBytes(byteLength), owner, kind) ?? allocator.allocate(byteLength, owner, kind),
      free: (ptr) => this.numberOf(ptr) > 0 ? this.#free(ptr) : allocator.free(ptr),
    };
  }

  /** Number of the slot that begins at `ptr`, from 1; 0 if none does. */
  numberOf(ptr: DevicePtr): number {
    return this.#slots.findIndex((slot) => slot.ptr === ptr) + 1;
  }

  #find(user: object, byteLength: number): Slot | undefined {
    const { isCapturing } = this.#device.traits.hostWork;
    const all = this.#slots.filter((slot) => slot.byteLength === byteLength && (isCapturing || slot.graphs === 0));
    const free = all.filter(({ freed }) => freed !== undefined).sort((a, b) => timeOf(a) - timeOf(b));
    const [oldest] = free;
    const last = this.#taken.get(byteLength);
    if (oldest === undefined || last === undefined) return undefined;
    const isFollowed = all.some(({ freed, taken }) => freed === undefined && taken > oldest.taken);
    const mayWait = isCapturing || isFollowed || timeOf(oldest) < last;
    return mayWait ? oldest : free.find((slot) => slot.user === user);
  }

  #take(user: object, byteLength: number, owner: string, kind: MemoryKind): DevicePtr | undefined {
    const { traits: { hostWork }, streams: { current } } = this.#device;
    let slot = this.#find(user, byteLength);
    if (slot === undefined) {
      const ptr = this.#make(byteLength, owner, kind);
      if (ptr === undefined) return undefined;
      slot = { ptr, byteLength, user, taken: 0, freed: undefined, graphs: 0 };
      this.#slots.push(slot);
    }
    if (slot.freed !== undefined && slot.freed.stream !== current.name) current.wait(slot.freed.event);
    slot.user = user;
    slot.freed = undefined;
    slot.taken = ++this.#time;
    this.#taken.set(byteLength, slot.taken);
    if (hostWork.isCapturing) {
      const taken = slot;
      taken.graphs++;
      hostWork.afterGraph(() => taken.graphs--);
    }
    return slot.ptr;
  }

  #free(ptr: DevicePtr): void {
    const slot = at(this.#slots, this.numberOf(ptr) - 1, "slot");
    if (slot.freed !== undefined) throw new InternalError("a slot is freed twice");
    const { current } = this.#device.streams;
    slot.freed = { stream: current.name, event: current.record(), time: ++this.#time };
  }
}

function timeOf({ freed }: Slot): number {
  return freed === undefined ? Infinity : freed.time;
}

/**
 * Memory that units gather into by turns, where it is registered and so cannot be any: pieces that are made when they are first
 * needed, and then stay. Which one is given depends on the order of calls alone, so ranks that gather the same gather to the same.
 *
 * Note [Turns of slots]: a slot that was freed is used again after that by an event, which holds back a gather that could go on
 * elsewhere. So a unit takes one that was freed before one of that size was last taken (two take turns then, and a gather runs
 * beside what computes with the one before it); or one that was taken before another that is still in use, with which there is
 * something to compute meanwhile; or what it had itself. Else a new one is made. While work is captured none can be made, so any
 * that is free will do.
 *
 * Note [Slots of graphs]: a graph writes to its slots whenever it is launched, so until it is dropped nothing else has them.
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
 * Bytes of which slots and windows are multiples: the driver gives memory that cards share by pieces of so many, and whole pieces
 * are what is asked for, so that what is counted is what there is.
 */
export const GRANULARITY: number = 2 ** 21;

/** Windows of less are not registered: a piece of memory for each would cost more than kernels do that gather so little. */
const LEAST_WINDOW = 4096;

/** Whether a window with these parts is registered by ranks that register: parts are equal, and worth a piece of memory. */
export function isRegisteredWindow(byteLengths: readonly number[]): boolean {
  return byteLengths.every((length) => length >= LEAST_WINDOW && length === byteLengths[0]);
}

/** What a block takes of memory that is registered. */
export function registeredBytes(byteLength: number): number {
  return Math.max(1, Math.ceil(byteLength / GRANULARITY)) * GRANULARITY;
}

/** One piece of memory. */
interface Slot {
  readonly ptr: DevicePtr;
  readonly byteLength: number;
  /** Which unit has it, or had it last. */
  user: object;
  /** When it was last taken. */
  taken: number;
  /** Who freed it when; undefined while it is in use. */
  freed: { readonly stream: StreamName; readonly event: DeviceEvent; readonly time: number } | undefined;
  /** Graphs that write to it. */
  graphs: number;
}

/** Makes memory of so many bytes; undefined where there is none of the kind. */
type MakeSlot = (byteLength: number, owner: string, kind: MemoryKind) => DevicePtr | undefined;

/** The slots of one group on one device. */
export class GatherSlots {
  readonly #device: Device;
  readonly #make: MakeSlot;
  readonly #slots: Slot[] = [];
  /** When a slot of that size was last taken. */
  readonly #taken = new Map<number, number>();
  #time = 0;

  /** @param make makes another one; collective where that registers it */
  constructor(device: Device, make: MakeSlot) {
    this.#device = device;
    this.#make = make;
  }

  /** What gives slots to one unit, or any memory where none can be made. See Note [Turns of slots]. */
  open(): GatherMemory {
    const [user, { allocator }] = [{}, this.#device];
    return {
      grows: (byteLength) => this.#find(user, registeredBytes(byteLength)) === undefined,
      allocate: (byteLength, owner, kind = "gathered") =>
        this.#take(user, registeredBytes(byteLength), owner, kind) ?? allocator.allocate(byteLength, owner, kind),
      free: (ptr) => this.numberOf(ptr) > 0 ? this.#free(ptr) : allocator.free(ptr),
    };
  }

  /** The number of the slot that begins there, from 1; 0 for none. */
  numberOf(ptr: DevicePtr): number {
    return this.#slots.findIndex((slot) => slot.ptr === ptr) + 1;
  }

  #find(user: object, byteLength: number): Slot | undefined {
    const isCapturing = this.#device.graphs?.isCapturing === true;
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
    const { graphs, streams: { current } } = this.#device;
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
    if (graphs?.isCapturing === true) {
      const taken = slot;
      taken.graphs++;
      graphs.afterGraph(() => taken.graphs--);
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

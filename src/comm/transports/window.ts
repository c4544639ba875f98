/**
 * Windows over shared memory: epochs in the group's words order writes and gathers (Note [Order by epochs] in
 * `transport.ts`); where the bytes lie, and how they are fetched, a {@link WindowMemory} says.
 *
 * @module
 */
import { devicePtr } from "../../device/device.ts";
import type { DevicePtr } from "../../device/device.ts";
import { InternalError } from "../../errors.ts";
import type { GatherWindow } from "../transport.ts";
import { FINISHED } from "../work.ts";
import type { Work } from "../work.ts";
import { GATHERED, MAX_WINDOWS, PUBLISHED } from "./control.ts";
import type { Control } from "./control.ts";

/** The bytes of one window. */
export interface WindowMemory {
  /** This rank's part, in device memory. */
  readonly pointer: DevicePtr;
  /** Makes what was written visible to fetches of others. */
  publish(): void;
  /** Copies a rank's part, its own too, to device memory. */
  fetch(dst: DevicePtr, rank: number): void;
  dispose(): void;
}

/**
 * Places in the group's table of epochs. Ranks open and dispose windows in one order, so they agree on places without
 * talking. A place keeps its epoch when it is used again: a rank that is behind may still be looking at it.
 */
export class WindowSlots {
  readonly #free: number[] = [];
  readonly #epochs: number[] = [];

  /** A free place, and the epoch that it has reached. */
  take(): { readonly slot: number; readonly epoch: number } {
    const slot = this.#free.pop() ?? this.#epochs.length;
    if (slot >= MAX_WINDOWS) throw new InternalError(`more than ${MAX_WINDOWS} windows are open in one group`);
    const epoch = this.#epochs[slot] ?? 0;
    this.#epochs[slot] = epoch;
    return { slot, epoch };
  }

  /** Gives a place back at the epoch that it has reached. */
  give(slot: number, epoch: number): void {
    this.#epochs[slot] = epoch;
    this.#free.push(slot);
  }
}

/** A window whose order lies in a {@link Control}. */
export class EpochWindow implements GatherWindow {
  readonly pointer: DevicePtr;
  readonly byteLengths: readonly number[];
  readonly #control: Control;
  readonly #slots: WindowSlots;
  readonly #memory: WindowMemory;
  readonly #slot: number;
  #epoch: number;
  #disposed = false;

  /**
   * @param control the group's words
   * @param slots where the epochs lie
   * @param memory the bytes, zero
   * @param byteLengths bytes of each rank's part
   */
  constructor(control: Control, slots: WindowSlots, memory: WindowMemory, byteLengths: readonly number[]) {
    this.#control = control;
    this.#slots = slots;
    this.#memory = memory;
    this.pointer = memory.pointer;
    this.byteLengths = byteLengths;
    const { slot, epoch } = slots.take();
    this.#slot = slot;
    this.#epoch = epoch + 1;
    control.raise(PUBLISHED + slot, this.#epoch);
  }

  beginWrite(): void {
    this.#control.raise(GATHERED + this.#slot, this.#epoch);
    this.#control.waitAll(GATHERED + this.#slot, this.#epoch, "finishing its gathers before the write");
    this.#control.leave();
  }

  endWrite(): void {
    this.#memory.publish();
    this.#epoch++;
    this.#control.raise(PUBLISHED + this.#slot, this.#epoch);
  }

  gather(dst: DevicePtr, offsets: readonly number[], _label: string): Work {
    const { rank, size } = this.#control.options;
    // Starting with its own part, each rank reads in another order: no two wait for the same memory.
    for (let i = 0; i < size; i++) {
      const peer = (rank + i) % size;
      if (i > 0) this.#control.waitFor(peer, PUBLISHED + this.#slot, this.#epoch, "publishing what it wrote");
      if ((this.byteLengths[peer] ?? 0) > 0) this.#memory.fetch(devicePtr(dst + (offsets[peer] ?? 0)), peer);
    }
    this.#control.leave();
    return FINISHED;
  }

  dispose(): void {
    if (this.#disposed) return;
    this.#disposed = true;
    this.#slots.give(this.#slot, this.#epoch);
    this.#memory.dispose();
  }
}

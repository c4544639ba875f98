/**
 * What the staged collectives need of memory that ranks share: `shm` and `loopback` each provide one.
 *
 * @module
 */
import type { Device, DevicePtr } from "../../device/device.ts";
import type { Control } from "./control.ts";
import type { WindowMemory } from "./window.ts";

/** Staging memory: a slot of each rank, written by it and read by all. Offsets are bytes from the slot's begin. */
export interface Aperture {
  /** Bytes of one rank's slot; may be 0 with a single rank. */
  readonly slotBytes: number;
  /** Bytes of all slots, if they lie in this rank's device memory; else 0. */
  readonly sharedBytes: number;
  /** Writes device memory into this rank's slot. */
  put(offset: number, src: DevicePtr, byteLength: number): void;
  /** Writes host bytes into this rank's slot. */
  putHost(offset: number, bytes: Uint8Array): void;
  /** A device address where bytes of a rank's slot can be read; valid until the next `view` of that rank. */
  view(rank: number, offset: number, byteLength: number): DevicePtr;
  /** Copies from a rank's slot to device memory. */
  take(dst: DevicePtr, rank: number, offset: number, byteLength: number): void;
  /** Copies from a rank's slot to host bytes. */
  takeHost(dst: Uint8Array, rank: number, offset: number): void;
  dispose(): void;
}

/** The memory that a group's ranks share. */
export interface Medium {
  /** The transport's name. */
  readonly kind: string;
  readonly device: Device;
  readonly control: Control;
  readonly aperture: Aperture;
  /** Most bytes that go to one rank in one round. */
  readonly chunkBytes: number;
  /** Memory of one window; `exchange` is at hand for agreeing on where it lies. Contents zero. */
  openWindow(byteLengths: readonly number[], label: string, exchange: Exchange): WindowMemory;
  /** The medium of a subset of ranks, `groups[mine]`; collective over the parent's ranks. */
  split(groups: readonly (readonly number[])[], mine: number, name: string, exchange: Exchange): Medium;
  dispose(): void;
}

/** Host bytes of each rank to all. */
export type Exchange = (bytes: Uint8Array) => readonly Uint8Array[];

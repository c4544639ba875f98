/**
 * The transport between Workers of one process, or of one thread with itself: the same collectives and waits as `shm`,
 * over SharedArrayBuffers instead of shared pages. A rank's device memory is private, so what peers read is copied into
 * the shared arena when it is published, and out of it when it is gathered. No FFI: it runs wherever Workers do.
 *
 * @module
 */
import { devicePtr } from "../../device/device.ts";
import type { Device, DevicePtr } from "../../device/device.ts";
import { ArgumentError, InternalError } from "../../errors.ts";
import type { Transport } from "../transport.ts";
import { Control, controlBytes, spinsFor } from "./control.ts";
import type { WorldOptions } from "./control.ts";
import { CopyAperture } from "./copy_aperture.ts";
import { ARENA_WORDS, SharedArena } from "./shared_arena.ts";
import { StagedTransport } from "./staged.ts";
import type { Aperture, Exchange, Medium } from "./medium.ts";
import type { WindowMemory } from "./window.ts";
import {
  ABORT_WORDS,
  AbortArea,
  DEFAULT_CHUNK_BYTES,
  DEFAULT_REPORT_SECONDS,
  DEFAULT_TIMEOUT_SECONDS,
} from "./world.ts";
import type { Futex, Liveness, TransportOptions } from "./world.ts";

/** The shared memory of a loopback world: give it to each rank's Worker by `postMessage`. */
export interface LoopbackWorld {
  readonly size: number;
  readonly buffer: SharedArrayBuffer;
  /** Byte where the first group's block begins. */
  readonly groupBegin: number;
  /** Bytes of staging memory of the first group; others have as much a rank. */
  readonly apertureBytes: number;
}

/** Sizes of a loopback world. */
export interface LoopbackWorldOptions {
  /** Shared bytes in all, for windows and staging; default 256 MiB (pages never used cost nothing). */
  readonly arenaBytes?: number;
  /** Staging bytes of all ranks together; default 8 MiB. Groups split off take as much again. */
  readonly apertureBytes?: number;
}

const DEFAULT_ARENA_BYTES: number = 256 * 2 ** 20;
const DEFAULT_APERTURE_BYTES: number = 8 * 2 ** 20;
const MAX_RANKS = 1024;
const DEAD = ABORT_WORDS;
const ARENA_STATE: number = DEAD + MAX_RANKS;
const ARENA_BEGIN: number = Math.ceil((ARENA_STATE + ARENA_WORDS) * 4 / 256) * 256;

/**
 * Makes the shared memory of `size` ranks.
 *
 * @throws {ArgumentError} if `size` is no positive integer up to 1024
 * @example
 * ```ts ignore
 * const world = createLoopbackWorld(2);
 * worker.postMessage({ world, rank: 1 }); // in the Worker: openLoopback(world, 1, device)
 * ```
 */
export function createLoopbackWorld(size: number, options: LoopbackWorldOptions = {}): LoopbackWorld {
  if (!Number.isInteger(size) || size < 1 || size > MAX_RANKS) {
    throw new ArgumentError(`A loopback world has 1 to ${MAX_RANKS} ranks, got ${size}`);
  }
  const apertureBytes = size === 1 ? 0 : options.apertureBytes ?? DEFAULT_APERTURE_BYTES;
  const least = controlBytes(size) + apertureBytes;
  // A rank alone keeps nothing here but the words of its groups.
  const usual = size === 1 ? 2 ** 20 : DEFAULT_ARENA_BYTES;
  const arenaBytes = Math.max(options.arenaBytes ?? usual, least);
  const buffer = new SharedArrayBuffer(ARENA_BEGIN + Math.ceil(arenaBytes / 256) * 256);
  const groupBegin = arenaOf(buffer).allocate(least, size, "the first group");
  return { size, buffer, groupBegin, apertureBytes };
}

/**
 * This rank's end of a loopback world.
 *
 * @param world what {@link createLoopbackWorld} made, received by this thread
 * @param rank which rank this thread is; each one once
 */
export function openLoopback(
  world: LoopbackWorld,
  rank: number,
  device: Device,
  options: TransportOptions = {},
): Transport {
  if (!Number.isInteger(rank) || rank < 0 || rank >= world.size) {
    throw new ArgumentError(`Rank ${rank} is not in a world of ${world.size}`);
  }
  const words = new Int32Array(world.buffer);
  const worldRanks = Array.from({ length: world.size }, (_, r) => r);
  const shared = {
    abort: new AbortArea(words.subarray(0, ABORT_WORDS)),
    liveness: new DeadWords(words),
    timeoutSeconds: options.timeoutSeconds ?? DEFAULT_TIMEOUT_SECONDS,
    report: options.report ?? ((): void => {}),
    reportSeconds: options.reportSeconds ?? DEFAULT_REPORT_SECONDS,
    spins: spinsFor(world.size, navigator.hardwareConcurrency),
  };
  const group: GroupPlace = { begin: world.groupBegin, name: "world", rank, worldRanks };
  const chunkBytes = options.chunkBytes ?? DEFAULT_CHUNK_BYTES;
  return new StagedTransport(new LoopbackMedium(world, group, shared, device, chunkBytes));
}

/** Stops all ranks of a loopback world from outside, e.g. from the thread that started them. */
export function abortLoopback(world: LoopbackWorld, reason: string): void {
  new AbortArea(new Int32Array(world.buffer, 0, ABORT_WORDS)).set(-1, reason);
}

/** Tells the other ranks that a rank's thread is gone. */
export function markDead(world: LoopbackWorld, rank: number): void {
  Atomics.store(new Int32Array(world.buffer), DEAD + rank, 1);
}

function arenaOf(buffer: SharedArrayBuffer): SharedArena {
  const state = new Int32Array(buffer, ARENA_STATE * 4, ARENA_WORDS);
  return new SharedArena(state, ARENA_BEGIN, buffer.byteLength - ARENA_BEGIN);
}

/** A group's block in the arena, and who is in it. */
interface GroupPlace {
  readonly begin: number;
  readonly name: string;
  readonly rank: number;
  readonly worldRanks: readonly number[];
}

/** A group's words, then its slots, in one block of the arena. */
class LoopbackMedium implements Medium {
  readonly kind = "loopback";
  readonly device: Device;
  readonly control: Control;
  readonly aperture: Aperture;
  readonly chunkBytes: number;
  readonly #world: LoopbackWorld;
  readonly #place: GroupPlace;
  readonly #shared: WorldOptions;
  readonly #arena: SharedArena;

  constructor(world: LoopbackWorld, place: GroupPlace, shared: WorldOptions, device: Device, chunkBytes: number) {
    const { begin, name, rank, worldRanks } = place;
    const size = worldRanks.length;
    this.device = device;
    this.chunkBytes = chunkBytes;
    this.#world = world;
    this.#place = place;
    this.#shared = shared;
    this.#arena = arenaOf(world.buffer);
    const words = new Int32Array(world.buffer, begin, controlBytes(size) / 4);
    this.control = new Control({ ...shared, name, rank, size, worldRanks, words, futex: new AtomicsFutex(words) });
    const slots = new Uint8Array(world.buffer, begin + controlBytes(size), apertureBytesOf(world, size));
    this.aperture = new CopyAperture(device, slots, rank, size);
  }

  openWindow(byteLengths: readonly number[], label: string, exchange: Exchange): WindowMemory {
    const { rank, worldRanks } = this.#place;
    const size = worldRanks.length;
    const parts = size === 1 ? 0 : byteLengths.reduce((sum, bytes) => sum + alignUp(bytes), 0);
    const begin = size === 1 ? 0 : this.#agree(rank === 0, parts, size, `window '${label}'`, exchange);
    return new ArenaWindow(this.device, this.#world.buffer, begin, byteLengths, rank, label, () => {
      if (size > 1) this.#arena.release(begin);
    });
  }

  split(groups: readonly (readonly number[])[], mine: number, name: string, exchange: Exchange): Medium {
    const ranks = groups[mine] ?? [];
    const lead = ranks[0] === this.#place.rank;
    const bytes = controlBytes(ranks.length) + apertureBytesOf(this.#world, ranks.length);
    const begin = this.#agree(lead, bytes, ranks.length, `group '${name}'`, exchange, ranks[0]);
    const worldRanks = ranks.map((rank) => this.#place.worldRanks[rank] ?? 0);
    const place = { begin, name, rank: ranks.indexOf(this.#place.rank), worldRanks };
    const shared = { ...this.#shared, timeoutSeconds: this.control.timeoutSeconds };
    return new LoopbackMedium(this.#world, place, shared, this.device, this.chunkBytes);
  }

  dispose(): void {
    this.#arena.release(this.#place.begin);
  }

  /** A zeroed block that the leader allocates and all learn of; a failure of the leader reaches all, too. */
  #agree(lead: boolean, bytes: number, holders: number, owner: string, exchange: Exchange, leader = 0): number {
    let begin = -1;
    let failure: unknown;
    if (lead) {
      try {
        begin = this.#arena.allocate(bytes, holders, owner);
        new Uint8Array(this.#world.buffer, begin, bytes).fill(0);
      } catch (error) {
        failure = error;
      }
    }
    const own = new Uint8Array(8);
    new DataView(own.buffer).setFloat64(0, begin);
    const part = exchange(own)[leader];
    if (failure !== undefined) throw failure;
    if (part === undefined) throw new InternalError(`no answer of rank ${leader}`);
    const place = new DataView(part.buffer).getFloat64(0);
    if (place < 0) throw this.control.failure(`rank ${leader} could not allocate ${bytes} bytes for ${owner}`);
    return place;
  }
}

/** Sleeps by `Atomics.wait`. */
class AtomicsFutex implements Futex {
  readonly #words: Int32Array;

  constructor(words: Int32Array) {
    this.#words = words;
  }

  wait(index: number, expected: number, timeoutMs: number): void {
    Atomics.wait(this.#words, index, expected, timeoutMs);
  }

  wake(index: number): void {
    Atomics.notify(this.#words, index);
  }
}

/** A rank is dead when whoever started its thread has written so. */
class DeadWords implements Liveness {
  readonly #words: Int32Array;

  constructor(words: Int32Array) {
    this.#words = words;
  }

  isDead(worldRank: number): boolean {
    return Atomics.load(this.#words, DEAD + worldRank) !== 0;
  }
}

/** A window in the arena: parts one after another, and this rank's own in device memory besides. */
class ArenaWindow implements WindowMemory {
  readonly pointer: DevicePtr;
  readonly #device: Device;
  readonly #parts: readonly Uint8Array[];
  readonly #rank: number;
  readonly #ownBytes: number;
  readonly #release: () => void;

  constructor(
    device: Device,
    buffer: SharedArrayBuffer,
    begin: number,
    byteLengths: readonly number[],
    rank: number,
    label: string,
    release: () => void,
  ) {
    this.#device = device;
    this.#rank = rank;
    this.#release = release;
    this.#ownBytes = byteLengths[rank] ?? 0;
    let at = begin;
    this.#parts = byteLengths.length === 1 ? [] : byteLengths.map((bytes) => {
      const part = new Uint8Array(buffer, at, bytes);
      at += alignUp(bytes);
      return part;
    });
    this.pointer = device.allocator.allocate(this.#ownBytes, label);
    device.copyIn(this.pointer, new Uint8Array(this.#ownBytes));
  }

  publish(): void {
    const part = this.#parts[this.#rank];
    if (part !== undefined && part.length > 0) this.#device.copyOut(part, this.pointer);
  }

  fetch(dst: DevicePtr, rank: number): void {
    const part = this.#parts[rank];
    if (rank === this.#rank || part === undefined) this.#device.copy(dst, this.pointer, this.#ownBytes);
    else this.#device.copyIn(devicePtr(dst), part);
  }

  dispose(): void {
    this.#device.allocator.free(this.pointer);
    this.#release();
  }
}

function apertureBytesOf(world: LoopbackWorld, size: number): number {
  return size === 1 ? 0 : Math.floor(world.apertureBytes / world.size / 256) * 256 * size;
}

function alignUp(bytes: number): number {
  return Math.ceil(bytes / 256) * 256;
}

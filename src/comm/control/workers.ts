/**
 * The control plane between Workers of one process, or of one thread with itself, over a SharedArrayBuffer that exists
 * before they start. No FFI: it works wherever Workers do.
 *
 * Note [Cells]: Workers without an event loop cannot receive memory that is made later, so the buffer has, from the start,
 * {@link CELLS} cells with a block for each rank in each (unused pages cost nothing).
 * - A group lives in one cell; groups of other ranks may live in the same cell.
 * - A rank's block is free again when every member has left its group, so a late rank never reads another group's words.
 *
 * @module
 */
import { at } from "../../at.ts";
import { ArgumentError, UnsupportedError } from "../../errors.ts";
import { checkRank } from "../checks.ts";
import { type ControlOptions, type Place, placeInWorld } from "../control_plane.ts";
import { attempt, exchangeOutcomes } from "../together.ts";
import { ABORT_WORDS, AbortArea, DIED } from "./abort.ts";
import type { BlockMemory } from "./block_memory.ts";
import { BLOCK_BYTES, SharedControlPlane, spinsFor, type World } from "./shared.ts";
import { WAIT_ENTRY_BYTES, WaitBoard } from "./wait_board.ts";

const CELLS = 16;
const MAX_RANKS = 256;
const ALIGNMENT = 256;

/** The shared memory of Workers that are ranks: give it to each by `postMessage`. */
export interface LoopbackWorld {
  /** Number of ranks. */
  readonly size: number;
  /** The memory that the ranks share; of a single rank, memory of its own where a page may share none. */
  readonly buffer: ArrayBufferLike;
  /** Bytes of each block for the data plane. */
  readonly dataBytes: number;
}

/**
 * Makes the shared memory of `size` ranks, with `dataBytes` for the data plane in each block.
 *
 * @throws {ArgumentError} if `size` is no positive integer up to 256
 * @throws {UnsupportedError} for several ranks in a page that may share no memory
 */
export function createWorkersWorld(size: number, dataBytes: number): LoopbackWorld {
  if (!Number.isInteger(size) || size < 1 || size > MAX_RANKS) {
    throw new ArgumentError(`A loopback world has 1 to ${MAX_RANKS} ranks, got ${size}`);
  }
  const byteLength = placeOf({ size, dataBytes }, CELLS, 0);
  const world = { size, dataBytes, buffer: memoryOf(size, byteLength) };
  membersOf(world).fill(size, 0, size); // all ranks begin in the first cell
  return world;
}

function memoryOf(size: number, byteLength: number): ArrayBufferLike {
  if ("SharedArrayBuffer" in globalThis) return new SharedArrayBuffer(byteLength);
  if (size === 1) return new ArrayBuffer(byteLength);
  throw new UnsupportedError(
    `Cannot make a world of ${size} Workers: this page may share no memory. Serve it with the headers ` +
      "'Cross-Origin-Opener-Policy: same-origin' and 'Cross-Origin-Embedder-Policy: require-corp', or use one rank",
  );
}

/** Stops all ranks of a world, e.g. from the thread that started them. */
export function abortWorkers(world: LoopbackWorld, reason: string): void {
  abortAreaOf(world).set(-1, reason);
}

/** Tells the other ranks that a rank's thread has ended. */
export function markDead(world: LoopbackWorld, rank: number): void {
  Atomics.store(deathsOf(world), rank, 1);
}

/** Bytes before the block of a rank in a cell. */
function placeOf({ size, dataBytes }: Omit<LoopbackWorld, "buffer">, cell: number, rank: number): number {
  const round = (bytes: number): number => Math.ceil(bytes / ALIGNMENT) * ALIGNMENT;
  const head = round((ABORT_WORDS + size + CELLS * size) * 4 + size * WAIT_ENTRY_BYTES);
  return head + (cell * size + rank) * round(BLOCK_BYTES + dataBytes);
}

function abortAreaOf({ buffer }: LoopbackWorld): AbortArea {
  return new AbortArea(new Int32Array(buffer, 0, ABORT_WORDS));
}

/** For each rank, 1 if its thread has ended. */
function deathsOf({ buffer, size }: LoopbackWorld): Int32Array {
  return new Int32Array(buffer, ABORT_WORDS * 4, size);
}

/** For each cell and rank, the number of members of the block's group that have not left it. */
function membersOf({ buffer, size }: LoopbackWorld): Int32Array {
  return new Int32Array(buffer, (ABORT_WORDS + size) * 4, CELLS * size);
}

/** Whom the ranks wait for. */
function waitsOf({ buffer, size }: LoopbackWorld, rank: number): WaitBoard {
  const begin = (ABORT_WORDS + size + CELLS * size) * 4;
  return new WaitBoard(new Uint8Array(buffer, begin, size * WAIT_ENTRY_BYTES), rank);
}

function blocksIn(world: LoopbackWorld, cell: number, worldRanks: readonly number[]): BlockMemory {
  const members = membersOf(world);
  const begins = worldRanks.map((rank) => placeOf(world, cell, rank));
  const words = begins.map((begin) => new Int32Array(world.buffer, begin, BLOCK_BYTES / 4));
  return {
    block: (rank) => new Uint8Array(world.buffer, at(begins, rank, "block"), BLOCK_BYTES + world.dataBytes),
    sleep: (rank, word, expected, timeoutMs) => void Atomics.wait(at(words, rank, "block"), word, expected, timeoutMs),
    wake: (rank, word) => void Atomics.notify(at(words, rank, "block"), word),
    leave(): void {
      for (const rank of worldRanks) Atomics.sub(members, cell * world.size + rank, 1);
    },
  };
}

export class WorkersControlPlane extends SharedControlPlane {
  /** Each rank's bytes for the data plane, behind the {@link BLOCK_BYTES} of its block. */
  readonly blocks: readonly Uint8Array[];
  readonly #space: LoopbackWorld;

  /** Use {@link joinWorkers}. */
  constructor(space: LoopbackWorld, cell: number, place: Place, world: World, timeoutSeconds?: number) {
    const memory = blocksIn(space, cell, place.worldRanks);
    super(place, memory, world, timeoutSeconds);
    this.blocks = place.worldRanks.map((_, rank) => memory.block(rank).subarray(BLOCK_BYTES));
    this.#space = space;
  }

  split(ranks: readonly number[], name: string): WorkersControlPlane {
    const { buffer, size, dataBytes } = this.#space;
    const members = membersOf(this.#space);
    const own = this.worldRank(this.rank);
    const cells = Array.from({ length: CELLS }, (_, cell) => cell);
    const free = cells.filter((cell) => Atomics.load(members, cell * size + own) === 0);
    const common = this.agreeOnSplit(ranks, free.reduce((mask, cell) => mask | 1 << cell, 0))
      .reduce((mask, other) => mask & other);
    const prepare = (): number => {
      const cell = free.find((candidate) => (common & 1 << candidate) !== 0);
      if (cell === undefined) {
        throw this.failure(
          `no room for group '${name}': ranks may be in ${CELLS} groups at once where they are Workers. Make a mesh once and give it to all ` +
            "calls, and dispose groups that are not used any more; processes (backend 'shm') have no such limit",
        );
      }
      new Uint8Array(buffer, placeOf(this.#space, cell, own), BLOCK_BYTES + dataBytes).fill(0);
      Atomics.store(members, cell * size + own, ranks.length);
      return cell;
    };
    const prepared = attempt(prepare);
    const giveBack = (): void => {
      if (prepared.status === "fulfilled") Atomics.store(members, prepared.value * size + own, 0);
    };
    using undo = new DisposableStack();
    undo.defer(giveBack);
    const { value: cell } = exchangeOutcomes(this, prepared);
    undo.move();
    return new WorkersControlPlane(this.#space, cell, this.placeIn(ranks, name), this.world, this.timeoutSeconds);
  }
}

/** Joins a world that {@link createWorkersWorld} made; each rank is one thread. */
export function joinWorkers(space: LoopbackWorld, rank: number, options: ControlOptions): WorkersControlPlane {
  checkRank(rank, space.size, "This thread");
  const deaths = deathsOf(space);
  const deathOf = (peer: number): string | undefined => Atomics.load(deaths, peer) === 0 ? undefined : DIED;
  const spins = spinsFor(space.size, navigator.hardwareConcurrency);
  const world = { abort: abortAreaOf(space), deathOf, options, spins, waits: waitsOf(space, rank) };
  return new WorkersControlPlane(space, 0, placeInWorld(rank, space.size), world, options.timeoutSeconds);
}

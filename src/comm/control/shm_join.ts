/**
 * Joining of a run's processes on one host, by names in the shared-memory directory alone, with or without a launcher.
 *
 * Note [Joining]
 * 1. Each rank locks its lock file.
 * 2. Rank 0 puts the world's words and blocks into its own lock file, and writes the world's size there.
 * 3. Every rank maps that file, which is valid only while it is locked, sets its state to JOINED, and waits for all others.
 * 4. Each rank opens the others' lock files, to see which ranks live, and rank 0 zeroes the size, so that no later process joins.
 *
 * A crash leaves lock files only. One of them has bytes, the others are empty.
 *
 * @module
 */
import { ArgumentError, RendezvousError } from "../../errors.ts";
import type { Posix } from "../../ffi/posix.ts";
import { sha256 } from "../../runtime/checksum.ts";
import { sleep } from "../../runtime/clock.ts";
import { checkRank } from "../checks.ts";
import { type ControlOptions, placeInWorld } from "../control_plane.ts";
import { ABORT_WORDS, AbortArea, DIED } from "./abort.ts";
import { RunFiles } from "./run_files.ts";
import { reserve } from "./shared_files.ts";
import { BLOCK_BYTES, spinsFor } from "./shared.ts";
import { WAIT_ENTRY_BYTES, WaitBoard } from "./wait_board.ts";
import { nativeBlocks, ShmControlPlane } from "./shm.ts";

const MAX_RANKS = 1024;
const LIVENESS_MS = 250;
const LINGER_MS = 1500;
const STAND_IN_MS = 20;

// Words of the world's memory: the abort area, the world's size while ranks join, the state of each rank. Blocks follow, then waits.
const SIZE = ABORT_WORDS;
const STATES: number = SIZE + 1;
const HEAD_BYTES: number = Math.ceil((STATES + MAX_RANKS) * 4 / 256) * 256;
const JOINED = 1;

/** Options of a process that joins the ranks of its host. */
export interface ShmJoinOptions extends ControlOptions {
  /** This rank, from 0. */
  readonly rank: number;
  /** Number of ranks. */
  readonly worldSize: number;
  /** Text that is the same for all ranks of a run and different for other runs, e.g. `127.0.0.1:29500`. */
  readonly run: string;
  /** Directory of the shared files. @default /dev/shm */
  readonly directory?: string | undefined;
  /** Seconds to wait for a rank that has not started; default 60. */
  readonly joinTimeoutSeconds?: number | undefined;
}

/**
 * Joins the other ranks of this host.
 *
 * @throws {RendezvousError} if a rank does not start in time, is started twice, or disagrees about the world's size
 * @throws {OutOfMemoryError} if shared memory is too small
 */
export async function joinShm(posix: Posix, options: ShmJoinOptions): Promise<ShmControlPlane> {
  const { rank, worldSize, run, directory = "/dev/shm" } = options;
  if (!Number.isInteger(worldSize) || worldSize < 1 || worldSize > MAX_RANKS) {
    throw new ArgumentError(`shm joins 1 to ${MAX_RANKS} ranks, got ${worldSize}`);
  }
  checkRank(rank, worldSize, "This process");
  // A hash, because file names are short and may not hold all characters of `run`.
  const files = new RunFiles(posix, directory, sha256([run]).slice(0, 16));
  const joining = new ShmJoin(files, await files.claim(rank), options);
  try {
    return await joining.join();
  } catch (error) {
    await joining.giveUp(error);
    throw error;
  }
}

/**
 * Acts for a rank that ended before it joined, so that the others' rendezvous fails at once with `reason`. No effect if it had joined.
 *
 * @param options those of the rank that ended
 * @param signal ends the attempt where no rank waits
 */
export async function failRendezvousFor(
  posix: Posix,
  { rank, worldSize, run, directory = "/dev/shm" }: ShmJoinOptions,
  reason: string,
  signal: AbortSignal,
): Promise<void> {
  const files = new RunFiles(posix, directory, sha256([run]).slice(0, 16));
  const mapHead = (descriptor: number): Int32Array =>
    new Int32Array(posix.provider.viewOf(posix.mapShared(descriptor, HEAD_BYTES), HEAD_BYTES));
  if (rank === 0) {
    // The other ranks look for a world, and find this one with its abort set.
    const lock = await files.claim(rank);
    reserve(files, lock, HEAD_BYTES, "the first words of a world");
    const words = mapHead(lock);
    new AbortArea(words).set(rank, reason);
    Atomics.store(words, STATES, JOINED);
    Atomics.store(words, SIZE, worldSize);
    const isMissing = (peer: number): boolean => Atomics.load(words, STATES + peer) !== JOINED;
    const ranks = Array.from({ length: worldSize }, (_, peer) => peer);
    while (!signal.aborted && ranks.some(isMissing)) await sleep(STAND_IN_MS);
    files.release(rank, lock);
    return;
  }
  for (; !signal.aborted; await sleep(STAND_IN_MS)) {
    const descriptor = files.openHeld(0);
    if (descriptor === undefined) continue;
    const head = new Int32Array(HEAD_BYTES / 4);
    const hasHead = posix.libc.symbols.read(descriptor, head, HEAD_BYTES) === HEAD_BYTES;
    const isAwaited = hasHead && head[SIZE] !== 0 && head[STATES + rank] !== JOINED;
    if (isAwaited) {
      const words = mapHead(descriptor);
      new AbortArea(words).set(rank, reason);
      // After the abort, so that no rank sees a complete world. Rank 0, which lingers for missing ranks, awaits this one no longer.
      Atomics.store(words, STATES + rank, JOINED);
    }
    posix.close(descriptor);
    if (isAwaited || (hasHead && head[STATES + rank] === JOINED)) return;
  }
}

/** A rank that joins. See Note [Joining]. */
class ShmJoin {
  readonly #files: RunFiles;
  readonly #lock: number;
  readonly #options: ShmJoinOptions;
  readonly #ranks: readonly number[];
  readonly #joinSeconds: number;
  readonly #deadline: number;
  #words: Int32Array | undefined;
  /** Releases what joining has opened, if it fails. */
  readonly #joined = new DisposableStack();

  /** @param lock descriptor of this rank's lock file */
  constructor(files: RunFiles, lock: number, options: ShmJoinOptions) {
    this.#files = files;
    this.#lock = lock;
    this.#options = options;
    this.#ranks = Array.from({ length: options.worldSize }, (_, rank) => rank);
    this.#joinSeconds = options.joinTimeoutSeconds ?? 60;
    this.#deadline = performance.now() + this.#joinSeconds * 1000;
  }

  async join(): Promise<ShmControlPlane> {
    const { rank, worldSize } = this.#options;
    const files = this.#files;
    const { posix } = files;
    const waitsBegin = HEAD_BYTES + worldSize * BLOCK_BYTES;
    const byteLength = waitsBegin + worldSize * WAIT_ENTRY_BYTES;
    const descriptor = rank === 0 ? this.#lock : await this.#findWorld();
    if (rank === 0) {
      files.sweep();
      reserve(files, descriptor, HEAD_BYTES, "the first words of a world");
    }
    using taken = new DisposableStack();
    if (rank > 0) taken.defer(() => posix.close(descriptor));
    const address = posix.mapShared(descriptor, byteLength);
    taken.dispose(); // the mapping stays
    this.#joined.defer(() => posix.unmap(address, byteLength));
    const words = new Int32Array(posix.provider.viewOf(address, HEAD_BYTES));
    this.#words = words;
    if (rank === 0) {
      Atomics.store(words, SIZE, worldSize);
      reserve(files, descriptor, byteLength - HEAD_BYTES, `the words of ${worldSize} ranks`, HEAD_BYTES);
    } else this.#requireSize(words);
    Atomics.store(words, STATES + rank, JOINED);
    await this.#everyRank(words);
    // A process that starts now cannot join this world.
    if (rank === 0) Atomics.store(words, SIZE, 0);
    const locks = this.#ranks.map((peer) => {
      if (peer === rank) return this.#lock;
      const lock = files.openHeld(peer);
      if (lock !== undefined) this.#joined.defer(() => posix.close(lock));
      return lock;
    });
    const world = {
      abort: new AbortArea(words),
      deathOf(peer: number): string | undefined {
        const lock = locks[peer];
        return lock === undefined || files.isAbandoned(lock) ? DIED : undefined;
      },
      options: this.#options,
      spins: spinsFor(worldSize, posix.affinity().length),
      waits: new WaitBoard(
        new Uint8Array(posix.provider.viewOf(posix.provider.offset(address, waitsBegin), byteLength - waitsBegin)),
        rank,
      ),
    };
    const leave = (): void => {
      for (const [peer, lock] of locks.entries()) if (peer !== rank && lock !== undefined) posix.close(lock);
      files.release(rank, this.#lock);
    };
    const memory = nativeBlocks(posix, posix.provider.offset(address, HEAD_BYTES), worldSize, leave);
    this.#joined.move();
    return new ShmControlPlane(files, placeInWorld(rank, worldSize), memory, world, this.#options.timeoutSeconds);
  }

  /** Undoes what this rank has done, and gives the reason to the ranks that wait for it. */
  async giveUp(error: unknown): Promise<void> {
    const words = this.#words;
    if (words !== undefined) {
      const { rank } = this.#options;
      new AbortArea(words).set(rank, error instanceof Error ? error.message : String(error));
      // Ranks that are just starting must still find the abort, instead of waiting for rank 0 until their timeout.
      const end = Math.min(this.#deadline, performance.now() + LINGER_MS);
      while (rank === 0 && performance.now() < end && this.#missing(words).length > 0) await sleep(5);
    }
    this.#words = undefined;
    this.#joined.dispose();
    this.#files.release(this.#options.rank, this.#lock);
  }

  /** Waits for the world's memory, on ranks other than 0; returns its descriptor. */
  async #findWorld(): Promise<number> {
    const { posix } = this.#files;
    const head = new Int32Array(HEAD_BYTES / 4);
    for (;;) {
      const descriptor = this.#files.openHeld(0);
      if (descriptor !== undefined) {
        const length = posix.libc.symbols.read(descriptor, head, head.byteLength);
        if (length === head.byteLength && head[SIZE] !== 0) return descriptor;
        posix.close(descriptor);
      }
      if (performance.now() > this.#deadline) throw this.#absent([0]);
      await sleep(1);
    }
  }

  /** Stops all ranks if this rank was started with another world size than rank 0. */
  #requireSize(words: Int32Array): void {
    const { rank, worldSize } = this.#options;
    const size = Atomics.load(words, SIZE);
    if (size === worldSize) return;
    const detail = `rank 0 was started with a world size of ${size}, rank ${rank} with ${worldSize}`;
    new AbortArea(words).set(rank, `ranks disagree: ${detail}`);
    throw new RendezvousError(`Ranks disagree: ${detail}. Give all ranks the same WORLD_SIZE`);
  }

  /** Waits until every rank has joined, and checks that those which have joined live. */
  async #everyRank(words: Int32Array): Promise<void> {
    const abort = new AbortArea(words);
    let probeAt = performance.now() + LIVENESS_MS;
    for (let turn = 0;; turn++) {
      const missing = this.#missing(words);
      const { cause } = abort;
      if (cause !== undefined) {
        throw new RendezvousError(`Rank ${cause.rank} gave up joining: ${cause.reason}`, cause.rank);
      }
      if (missing.length === 0) return;
      const now = performance.now();
      if (now > this.#deadline) throw this.#absent(missing);
      if (now > probeAt) {
        probeAt = now + LIVENESS_MS;
        const dead = this.#ranks.find((peer) => !missing.includes(peer) && !this.#files.isHeld(peer));
        if (dead !== undefined) throw new RendezvousError(`Rank ${dead} died while the ranks were joining`);
      }
      // The first checks do not sleep; later ones let other processes use the core.
      if (turn > 200) await sleep(1);
    }
  }

  #missing(words: Int32Array): readonly number[] {
    return this.#ranks.filter((rank) => Atomics.load(words, STATES + rank) !== JOINED);
  }

  #absent(ranks: readonly number[]): RendezvousError {
    const { worldSize, run } = this.#options;
    return new RendezvousError(
      `Rank ${ranks.join(", ")} of ${worldSize} did not start within ${this.#joinSeconds} s (run '${run}', directory ` +
        `${this.#files.directory}). Start every rank, with the same WORLD_SIZE, MASTER_ADDR, MASTER_PORT and user`,
    );
  }
}

/**
 * How the processes of a run find each other, by names in the shared-memory directory alone. What they share afterwards
 * is in {@link Joined}; what is done with it lies in `shm.ts`.
 *
 * Note [Joining]: (1) a rank locks its lock file; (2) rank 0 makes the world segment and writes its name into its lock
 * file, or why there is none; others believe it only while it is locked; (3) every rank maps it, proves its mapping and says JOINED;
 * (4) rank 0 makes the aperture and says READY; (5) every rank maps it, opens the others' lock files and says SETTLED;
 * (6) when all have, rank 0 removes the segments' names. So a crash leaves lock files, of no bytes, and little else.
 *
 * @module
 */
import type { Posix } from "../../../ffi/posix.ts";
import type { NativeAddress } from "../../../ffi/types.ts";
import { NativeError, RendezvousError } from "../../errors.ts";
import { processId } from "../../runtime/processes.ts";
import { controlBytes } from "./control.ts";
import type { ShmOptions } from "./shm.ts";
import { openAperture } from "./shm_memory.ts";
import type { SharedPages } from "./shm_memory.ts";
import { LockLiveness, pause } from "./shm_names.ts";
import type { HeldLock, RunFiles } from "./shm_names.ts";
import type { Aperture } from "./medium.ts";
import { ABORT_WORDS, AbortArea } from "./world.ts";

// A chunk of 512 KiB for every pair of ranks, in each of four parts: more would not be touched by a reduction.
const APERTURE_BYTES: number = 2 * 2 ** 20;
const MAX_APERTURE_BYTES: number = 64 * 2 ** 20;
const DEFAULT_JOIN_SECONDS = 60;
/** Most ranks of one host. */
export const MAX_RANKS = 1024;
const LIVENESS_MS = 250;
const LINGER_MS = 1500;
/** Most characters of a note in a lock file: readers take no more than a page. */
const NOTE_LENGTH = 1000;

// Words of the world segment. The first page is for self-tests: word r is rank r's.
const ABORT = 1024;
const READY: number = ABORT + ABORT_WORDS;
const STATES: number = READY + 32;
const SIZES: number = STATES + MAX_RANKS;
const CONTROL: number = SIZES + MAX_RANKS;

const JOINED = 1;
const SETTLED = 2;

/** What a rank has when all ranks have joined. */
export interface Joined {
  /** What the names of the run's segments begin with. */
  readonly segment: string;
  /** The first group's words, and where they lie. */
  readonly words: Int32Array;
  readonly address: NativeAddress;
  readonly abort: AbortArea;
  readonly aperture: Aperture;
  readonly liveness: LockLiveness;
  /** Whether segments can be mapped over device memory. */
  readonly mapped: boolean;
}

/** What rank 0 writes into its lock file. */
interface Invitation {
  readonly pid: number;
  readonly worldSize: number;
  readonly segment: string;
  readonly apertureBytes: number;
}

/** What rank 0 writes there instead if it cannot make the segment. */
interface Refusal {
  readonly failure: string;
}

/** One rank on its way in. See Note [Joining]. */
export class Joining {
  readonly #pages: SharedPages;
  readonly #files: RunFiles;
  readonly #posix: Posix;
  readonly #lock: HeldLock;
  readonly #options: ShmOptions;
  readonly #deadline: number;
  readonly #liveness: LockLiveness;
  #words: Int32Array | undefined;
  /** Names that rank 0 has made and must remove. */
  readonly #made: string[] = [];

  /**
   * @param pages where segments go
   * @param lock this rank's lock file, held
   */
  constructor(pages: SharedPages, lock: HeldLock, options: ShmOptions) {
    this.#pages = pages;
    this.#files = pages.files;
    this.#posix = pages.files.posix;
    this.#lock = lock;
    this.#options = options;
    this.#deadline = performance.now() + (options.joinTimeoutSeconds ?? DEFAULT_JOIN_SECONDS) * 1000;
    this.#liveness = new LockLiveness(pages.files);
  }

  /** Joins; resolves when every rank has. */
  async join(): Promise<Joined> {
    const { rank, worldSize } = this.#options;
    const { segment, apertureBytes, descriptor } = rank === 0 ? this.#invite() : await this.#invitation();
    const bytes = segmentBytes(this.#pages, worldSize);
    const address = this.#posix.mapShared(descriptor, bytes);
    const words = new Int32Array(this.#posix.provider.viewOf(address, bytes));
    this.#words = words;
    const abort = new AbortArea(words.subarray(ABORT, ABORT + ABORT_WORDS));
    const failure = this.#options.mapping === "copy"
      ? "copying was asked for"
      : this.#pages.selfTest(descriptor, words, rank);
    if (failure !== undefined && this.#options.mapping !== "copy") {
      this.#options.report?.(`Rank ${rank} copies through shared memory, as it cannot be mapped: ${failure}`);
    }
    this.#posix.close(descriptor);
    Atomics.store(words, SIZES + rank, worldSize);
    Atomics.store(words, STATES + rank, JOINED);
    const mapped = failure === undefined;
    const size = apertureBytes;
    let aperture: Aperture;
    if (rank === 0) {
      const made = this.#create(`${segment}-aperture`, size, `the aperture of ${worldSize} ranks`);
      aperture = openAperture(this.#pages, made, size, rank, worldSize, mapped);
      Atomics.store(words, READY, 1);
    } else {
      await this.#until(() => Atomics.load(words, READY) === 1, [0], abort);
      aperture = openAperture(this.#pages, this.#open(`${segment}-aperture`), size, rank, worldSize, mapped);
    }
    await this.#everyRank(JOINED, abort);
    for (let peer = 0; peer < worldSize; peer++) if (peer !== rank) this.#liveness.watch(peer);
    Atomics.store(words, STATES + rank, SETTLED);
    await this.#everyRank(SETTLED, abort);
    this.#removeNames();
    return {
      segment,
      words: words.subarray(CONTROL, CONTROL + controlBytes(worldSize) / 4),
      address: this.#posix.provider.offset(address, CONTROL * 4),
      abort,
      aperture,
      liveness: this.#liveness,
      mapped,
    };
  }

  /** Undoes what this rank has done, and tells those who wait for it why. */
  async giveUp(error: unknown): Promise<void> {
    const { rank, worldSize } = this.#options;
    const words = this.#words;
    const message = error instanceof Error ? error.message : String(error);
    if (words === undefined && rank === 0 && worldSize > 1) await this.#refuse(message);
    if (words !== undefined) {
      new AbortArea(words.subarray(ABORT, ABORT + ABORT_WORDS)).set(rank, message);
      // Ranks that are just starting would find nobody, and wait for long.
      const end = Math.min(this.#deadline, performance.now() + LINGER_MS);
      const ranks = Array.from({ length: worldSize }, (_, r) => r);
      while (rank === 0 && performance.now() < end && ranks.some((r) => Atomics.load(words, STATES + r) < JOINED)) {
        await pause(5);
      }
    }
    this.#removeNames();
    this.#liveness.close();
    this.#files.release(this.#lock);
  }

  /** Rank 0: tells those who look for its word that there will be none. */
  async #refuse(message: string): Promise<void> {
    try {
      const refusal: Refusal = { failure: message.slice(0, NOTE_LENGTH) };
      this.#files.write(this.#lock, JSON.stringify(refusal));
    } catch (error) {
      // There may be no room for the note either: then the others have none for theirs, and fail by themselves.
      if (!(error instanceof NativeError)) throw error;
      return;
    }
    await pause(Math.max(0, Math.min(LINGER_MS, this.#deadline - performance.now())));
  }

  /** Rank 0: makes the world segment and tells its name. */
  #invite(): { segment: string; apertureBytes: number; descriptor: number } {
    const { worldSize } = this.#options;
    this.#files.sweep();
    this.#files.sweepOwn(worldSize);
    const segment = `seg-${crypto.randomUUID().slice(0, 8)}`;
    const apertureBytes = worldSize === 1 ? 0 : this.#pages.roundUp(
      this.#options.apertureBytes ?? Math.min(MAX_APERTURE_BYTES, APERTURE_BYTES * worldSize ** 2),
    );
    const descriptor = this.#create(segment, segmentBytes(this.#pages, worldSize), `the words of ${worldSize} ranks`);
    const invitation: Invitation = { pid: processId(), worldSize, segment, apertureBytes };
    this.#files.write(this.#lock, JSON.stringify(invitation));
    return { segment, apertureBytes, descriptor };
  }

  /** Other ranks: wait for rank 0's word. */
  async #invitation(): Promise<{ segment: string; apertureBytes: number; descriptor: number }> {
    const { rank, worldSize } = this.#options;
    this.#files.write(this.#lock, JSON.stringify({ pid: processId() }));
    for (;;) {
      const text = this.#files.read(0);
      const invitation: unknown = text === undefined ? undefined : JSON.parse(text);
      if (isRefusal(invitation)) throw new RendezvousError(`Rank 0 gave up joining: ${invitation.failure}`, 0);
      const descriptor = isInvitation(invitation)
        ? this.#posix.openFile(this.#files.path(invitation.segment), "readWrite")
        : undefined;
      if (isInvitation(invitation) && descriptor !== undefined) {
        if (invitation.worldSize !== worldSize) {
          const detail =
            `rank 0 was started with a world size of ${invitation.worldSize}, rank ${rank} with ${worldSize}`;
          this.#complain(descriptor, invitation.worldSize, detail);
          throw new RendezvousError(`Ranks disagree: ${detail}. Give all ranks the same WORLD_SIZE`);
        }
        return { ...invitation, descriptor };
      }
      if (performance.now() > this.#deadline) throw this.#absent([0]);
      await pause(1);
    }
  }

  /** Tells the ranks of a world that this one does not fit into. */
  #complain(descriptor: number, size: number, detail: string): void {
    const bytes = segmentBytes(this.#pages, size);
    const words = new Int32Array(this.#posix.provider.viewOf(this.#posix.mapShared(descriptor, bytes), bytes));
    new AbortArea(words.subarray(ABORT, ABORT + ABORT_WORDS)).set(this.#options.rank, `ranks disagree: ${detail}`);
    this.#posix.close(descriptor);
  }

  async #everyRank(state: number, abort: AbortArea): Promise<void> {
    const { worldSize } = this.#options;
    const ranks = Array.from({ length: worldSize }, (_, r) => r);
    const words = this.#words;
    const missing = (): number[] => ranks.filter((r) => words === undefined || Atomics.load(words, STATES + r) < state);
    await this.#until(() => missing().length === 0, ranks, abort, missing);
  }

  /** Polls, looking after the others' lives: of `ranks` each must live once it has joined. */
  async #until(
    done: () => boolean,
    ranks: readonly number[],
    abort: AbortArea,
    missing: () => readonly number[] = () => ranks,
  ): Promise<void> {
    let probeAt = performance.now() + LIVENESS_MS;
    for (let turn = 0; !done(); turn++) {
      const cause = abort.cause;
      if (cause !== undefined) {
        throw new RendezvousError(`Rank ${cause.rank} gave up joining: ${cause.reason}`, cause.rank);
      }
      const now = performance.now();
      if (now > this.#deadline) throw this.#absent(missing());
      if (now > probeAt) {
        probeAt = now + LIVENESS_MS;
        for (const rank of ranks) {
          if (rank === this.#options.rank || Atomics.load(this.#words ?? new Int32Array(1), STATES + rank) < JOINED) {
            continue;
          }
          if (this.#files.read(rank) === undefined && !done()) {
            throw new RendezvousError(`Rank ${rank} died while the ranks were joining`);
          }
        }
      }
      // A first few looks are free; then let others run.
      if (turn > 200) await pause(1);
    }
  }

  #absent(ranks: readonly number[]): RendezvousError {
    const { worldSize, run, joinTimeoutSeconds = DEFAULT_JOIN_SECONDS } = this.#options;
    return new RendezvousError(
      `Rank ${
        ranks.join(", ")
      } of ${worldSize} did not start within ${joinTimeoutSeconds} s (run '${run}', directory ` +
        `${this.#files.directory}). Start every rank, with the same WORLD_SIZE, MASTER_ADDR, MASTER_PORT and user`,
    );
  }

  #create(name: string, byteLength: number, owner: string): number {
    const descriptor = this.#pages.create(name, Math.max(byteLength, this.#posix.pageBytes), owner);
    this.#made.push(name);
    return descriptor;
  }

  #open(name: string): number {
    const descriptor = this.#posix.openFile(this.#files.path(name), "readWrite");
    if (descriptor === undefined) {
      throw new RendezvousError(`Segment ${this.#files.path(name)} is gone: rank 0 has ended`);
    }
    return descriptor;
  }

  #removeNames(): void {
    for (const name of this.#made.splice(0)) this.#posix.unlink(this.#files.path(name));
  }
}

function segmentBytes(pages: SharedPages, size: number): number {
  return pages.roundUp(CONTROL * 4 + controlBytes(size));
}

function isInvitation(value: unknown): value is Invitation {
  return typeof value === "object" && value !== null && "segment" in value && "worldSize" in value;
}

function isRefusal(value: unknown): value is Refusal {
  return typeof value === "object" && value !== null && "failure" in value;
}

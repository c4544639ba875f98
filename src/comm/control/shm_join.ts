/**
 * How the processes of a run find each other, by names in the shared-memory directory alone, with or without a launcher.
 *
 * Note [Joining]: (1) a rank locks its lock file; (2) rank 0 makes the world's segment and writes its name into its lock
 * file, or why there is none; others believe it only while it is locked; (3) every rank maps the segment and says JOINED;
 * (4) when all have, each opens the others' lock files, to see who lives, and they meet; (5) rank 0 removes the segment's
 * name. So a crash leaves lock files, of no bytes, and little else.
 *
 * @module
 */
import type { Posix } from "../../../ffi/posix.ts";
import { ArgumentError, NativeError, RendezvousError } from "../../errors.ts";
import { processId } from "../../runtime/processes.ts";
import type { ControlOptions } from "../control_plane.ts";
import { ABORT_WORDS, AbortArea } from "./abort.ts";
import { type HeldLock, LockLiveness, pause, RunFiles } from "./run_files.ts";
import { createSegment } from "./segments.ts";
import { BLOCK_BYTES, worldTimes } from "./shared.ts";
import { NativeBlocks, ShmControlPlane } from "./shm.ts";

const MAX_RANKS = 1024;
const LIVENESS_MS = 250;
const LINGER_MS = 1500;
/** Most characters of a note in a lock file: readers take no more than a page. */
const NOTE_LENGTH = 1000;

// Words of the world's segment: the abort area, then whether each rank has joined. The blocks come after them.
const STATES = ABORT_WORDS;
const HEAD_BYTES: number = Math.ceil((STATES + MAX_RANKS) * 4 / 256) * 256;
const JOINED = 1;

/** How a process joins its host's ranks. */
export interface ShmJoinOptions extends ControlOptions {
  readonly rank: number;
  readonly worldSize: number;
  /** What the ranks of a run have in common and no other run has, e.g. `127.0.0.1:29500`. */
  readonly run: string;
  /** Where segments are made; default `/dev/shm`. */
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
  if (!Number.isInteger(rank) || rank < 0 || rank >= worldSize) {
    throw new ArgumentError(`Rank ${rank} is not in a world of ${worldSize}`);
  }
  const files = new RunFiles(posix, directory, runName(run));
  const joining = new Joining(files, await files.claim(rank), options);
  try {
    return await joining.join();
  } catch (error) {
    await joining.giveUp(error);
    throw error;
  }
}

/** Letters and digits of a run's identity: names may not hold anything else, and be of any length. */
function runName(run: string): string {
  let low = 0x811c9dc5;
  let high = 0x9dc5811c;
  for (const byte of new TextEncoder().encode(run)) {
    low = Math.imul(low ^ byte, 0x01000193) >>> 0;
    high = Math.imul(high ^ byte, 0x85ebca6b) >>> 0;
    high = (high ^ (high >>> 15)) >>> 0;
  }
  return low.toString(16).padStart(8, "0") + high.toString(16).padStart(8, "0");
}

/** What rank 0 writes into its lock file. */
interface Invitation {
  readonly pid: number;
  readonly worldSize: number;
  readonly segment: string;
}

/** What rank 0 writes there instead if it cannot make the segment. */
interface Refusal {
  readonly failure: string;
}

/** One rank on its way in. See Note [Joining]. */
class Joining {
  readonly #files: RunFiles;
  readonly #lock: HeldLock;
  readonly #options: ShmJoinOptions;
  readonly #joinSeconds: number;
  readonly #deadline: number;
  readonly #liveness: LockLiveness;
  #words: Int32Array | undefined;
  /** The segment's name, while rank 0 must remove it. */
  #made: string | undefined;

  /** @param lock this rank's lock file, held */
  constructor(files: RunFiles, lock: HeldLock, options: ShmJoinOptions) {
    this.#files = files;
    this.#lock = lock;
    this.#options = options;
    this.#joinSeconds = options.joinTimeoutSeconds ?? 60;
    this.#deadline = performance.now() + this.#joinSeconds * 1000;
    this.#liveness = new LockLiveness(files);
  }

  /** Joins; resolves when every rank has. */
  async join(): Promise<ShmControlPlane> {
    const { rank, worldSize } = this.#options;
    const { posix } = this.#files;
    const descriptor = rank === 0 ? this.#invite() : await this.#invitation();
    const address = posix.mapShared(descriptor, HEAD_BYTES + worldSize * BLOCK_BYTES);
    posix.close(descriptor);
    const words = new Int32Array(posix.provider.viewOf(address, HEAD_BYTES));
    this.#words = words;
    Atomics.store(words, STATES + rank, JOINED);
    await this.#everyRank(words);
    for (let peer = 0; peer < worldSize; peer++) if (peer !== rank) this.#liveness.watch(peer);
    const { timeoutSeconds, ...times } = worldTimes(this.#options, worldSize, posix.affinity().length);
    const isDead = (worldRank: number): boolean => this.#liveness.isDead(worldRank);
    const control = new ShmControlPlane(
      this.#files,
      { name: "world", rank, worldRanks: Array.from({ length: worldSize }, (_, other) => other) },
      new NativeBlocks(posix, posix.provider.offset(address, HEAD_BYTES), worldSize),
      { ...times, abort: new AbortArea(words.subarray(0, ABORT_WORDS)), isDead },
      timeoutSeconds,
      () => this.#leave(),
    );
    control.exchange(new Uint8Array()); // now every rank has opened the others' lock files
    this.#removeName();
    return control;
  }

  /** Undoes what this rank has done, and tells those who wait for it why. */
  async giveUp(error: unknown): Promise<void> {
    const { rank, worldSize } = this.#options;
    const words = this.#words;
    const message = error instanceof Error ? error.message : String(error);
    if (words === undefined && rank === 0 && worldSize > 1) await this.#refuse(message);
    if (words !== undefined) {
      new AbortArea(words.subarray(0, ABORT_WORDS)).set(rank, message);
      // Ranks that are just starting would find nobody, and wait for long.
      const end = Math.min(this.#deadline, performance.now() + LINGER_MS);
      while (rank === 0 && performance.now() < end && this.#missing(words).length > 0) await pause(5);
    }
    this.#removeName();
    this.#leave();
  }

  #leave(): void {
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

  /** Rank 0: makes the world's segment and tells its name; returns its descriptor. */
  #invite(): number {
    const { worldSize } = this.#options;
    this.#files.sweep();
    this.#files.sweepOwn(worldSize);
    const segment = `seg-${crypto.randomUUID()}`;
    const bytes = HEAD_BYTES + worldSize * BLOCK_BYTES;
    const descriptor = createSegment(this.#files, segment, bytes, `the words of ${worldSize} ranks`);
    this.#made = segment;
    const invitation: Invitation = { pid: processId(), worldSize, segment };
    this.#files.write(this.#lock, JSON.stringify(invitation));
    return descriptor;
  }

  /** Other ranks: wait for rank 0's word; returns the segment's descriptor. */
  async #invitation(): Promise<number> {
    const { rank, worldSize } = this.#options;
    this.#files.write(this.#lock, JSON.stringify({ pid: processId() }));
    for (;;) {
      const text = this.#files.read(0);
      const invitation: unknown = text === undefined ? undefined : JSON.parse(text);
      if (isRefusal(invitation)) throw new RendezvousError(`Rank 0 gave up joining: ${invitation.failure}`, 0);
      const descriptor = isInvitation(invitation)
        ? this.#files.posix.openFile(this.#files.path(invitation.segment), "readWrite")
        : undefined;
      if (isInvitation(invitation) && descriptor !== undefined) {
        if (invitation.worldSize === worldSize) return descriptor;
        const detail =
          `rank 0 was started with a world size of ${invitation.worldSize}, rank ${rank} with ${worldSize}`;
        this.#complain(descriptor, `ranks disagree: ${detail}`);
        throw new RendezvousError(`Ranks disagree: ${detail}. Give all ranks the same WORLD_SIZE`);
      }
      if (performance.now() > this.#deadline) throw this.#absent([0]);
      await pause(1);
    }
  }

  /** Stops the ranks of a world that this one does not fit into. */
  #complain(descriptor: number, reason: string): void {
    const { posix } = this.#files;
    const view = posix.provider.viewOf(posix.mapShared(descriptor, HEAD_BYTES), HEAD_BYTES);
    new AbortArea(new Int32Array(view, 0, ABORT_WORDS)).set(this.#options.rank, reason);
    posix.close(descriptor);
  }

  /** Waits until every rank has joined, looking after the lives of those which have. */
  async #everyRank(words: Int32Array): Promise<void> {
    const abort = new AbortArea(words.subarray(0, ABORT_WORDS));
    let probeAt = performance.now() + LIVENESS_MS;
    for (let turn = 0;; turn++) {
      const missing = this.#missing(words);
      if (missing.length === 0) return;
      const { cause } = abort;
      if (cause !== undefined) {
        throw new RendezvousError(`Rank ${cause.rank} gave up joining: ${cause.reason}`, cause.rank);
      }
      const now = performance.now();
      if (now > this.#deadline) throw this.#absent(missing);
      if (now > probeAt) {
        probeAt = now + LIVENESS_MS;
        for (let peer = 0; peer < this.#options.worldSize; peer++) {
          const isSelf = peer === this.#options.rank;
          if (isSelf || missing.includes(peer) || this.#files.read(peer) !== undefined) continue;
          throw new RendezvousError(`Rank ${peer} died while the ranks were joining`);
        }
      }
      // A first few looks are free; then let others run.
      if (turn > 200) await pause(1);
    }
  }

  /** Ranks that have not joined. */
  #missing(words: Int32Array): number[] {
    return Array.from({ length: this.#options.worldSize }, (_, rank) => rank)
      .filter((rank) => Atomics.load(words, STATES + rank) !== JOINED);
  }

  #absent(ranks: readonly number[]): RendezvousError {
    const { worldSize, run } = this.#options;
    return new RendezvousError(
      `Rank ${ranks.join(", ")} of ${worldSize} did not start within ${this.#joinSeconds} s (run '${run}', directory ` +
        `${this.#files.directory}). Start every rank, with the same WORLD_SIZE, MASTER_ADDR, MASTER_PORT and user`,
    );
  }

  #removeName(): void {
    if (this.#made !== undefined) this.#files.posix.unlink(this.#files.path(this.#made));
    this.#made = undefined;
  }
}

function isInvitation(value: unknown): value is Invitation {
  return typeof value === "object" && value !== null && "segment" in value && "worldSize" in value;
}

function isRefusal(value: unknown): value is Refusal {
  return typeof value === "object" && value !== null && "failure" in value;
}

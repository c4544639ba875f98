/**
 * The transport between processes of one host: shards lie in shared segments, collectives go through one aperture, and
 * ranks find each other by names alone, with or without a launcher. Linux; needs FFI to the C library.
 *
 * Note [Joining]: (1) a rank locks its lock file; (2) rank 0 makes the world segment and writes its name into its lock
 * file, which others believe only while it is locked; (3) every rank maps it, proves its mapping and says JOINED;
 * (4) rank 0 makes the aperture and says READY; (5) every rank maps it, opens the others' lock files and says SETTLED;
 * (6) when all have, rank 0 removes the segments' names. So a crash leaves lock files, of no bytes, and little else.
 *
 * @module
 */
import { openPosix } from "../../../ffi/posix.ts";
import type { Posix } from "../../../ffi/posix.ts";
import type { NativeAddress } from "../../../ffi/types.ts";
import { NO_PTR } from "../../device/device.ts";
import type { Device } from "../../device/device.ts";
import { ArgumentError, RendezvousError, UnsupportedError } from "../../errors.ts";
import { processId } from "../../runtime/processes.ts";
import type { Transport } from "../transport.ts";
import { Control, controlBytes, spinsFor } from "./control.ts";
import { CopyAperture, DEFAULT_REPORT_SECONDS, DEFAULT_TIMEOUT_SECONDS } from "./loopback.ts";
import type { TransportOptions, WorldOptions } from "./loopback.ts";
import { hasWasmMemory, MappedAperture, SegmentWindow, SharedPages } from "./shm_memory.ts";
import type { MappedPart } from "./shm_memory.ts";
import { pause, RunFiles } from "./shm_names.ts";
import type { HeldLock } from "./shm_names.ts";
import { StagedTransport } from "./staged.ts";
import type { Aperture, Exchange, Medium } from "./staged.ts";
import type { WindowMemory } from "./window.ts";
import { ABORT_WORDS, AbortArea } from "./world.ts";
import type { Futex, Liveness } from "./world.ts";

/** How a process joins its host's ranks. */
export interface ShmOptions extends TransportOptions {
  readonly rank: number;
  readonly worldSize: number;
  /** What the ranks of a run have in common and no other run has, e.g. `127.0.0.1:29500`. */
  readonly run: string;
  /** Where segments are made; default `/dev/shm`. */
  readonly directory?: string;
  /** Staging bytes of all ranks together; default 64 MiB. Groups split off take as much again. */
  readonly apertureBytes?: number;
  /** Seconds to wait for a rank that has not started; default 60. */
  readonly joinTimeoutSeconds?: number;
  /** `copy` keeps segments out of the device's memory, as where they cannot be mapped there; default `auto`. */
  readonly mapping?: "auto" | "copy";
}

const DEFAULT_APERTURE_BYTES: number = 64 * 2 ** 20;
const DEFAULT_CHUNK_BYTES: number = 512 * 1024;
const DEFAULT_JOIN_SECONDS = 60;
const MAX_RANKS = 1024;
const LIVENESS_MS = 250;
const LINGER_MS = 1500;

// Words of the world segment. The first page is for self-tests: word r is rank r's.
const ABORT = 1024;
const READY: number = ABORT + ABORT_WORDS;
const STATES: number = READY + 32;
const SIZES: number = STATES + MAX_RANKS;
const CONTROL: number = SIZES + MAX_RANKS;

const JOINED = 1;
const SETTLED = 2;

/** What rank 0 writes into its lock file. */
interface Invitation {
  readonly pid: number;
  readonly worldSize: number;
  readonly segment: string;
  readonly apertureBytes: number;
}

/**
 * Joins the other ranks of this host.
 *
 * @param device whose memory the segments are mapped into
 * @throws {RendezvousError} if a rank does not start in time, is started twice, or disagrees about the world's size
 * @throws {OutOfMemoryError} if shared memory is too small
 * @example
 * ```ts ignore
 * const transport = await openShm(device, { rank: 0, worldSize: 2, run: "127.0.0.1:29500" });
 * ```
 */
export async function openShm(device: Device, options: ShmOptions): Promise<Transport> {
  const { rank, worldSize } = options;
  if (!Number.isInteger(worldSize) || worldSize < 1 || worldSize > MAX_RANKS) {
    throw new ArgumentError(`shm joins 1 to ${MAX_RANKS} ranks, got ${worldSize}`);
  }
  if (!Number.isInteger(rank) || rank < 0 || rank >= worldSize) {
    throw new ArgumentError(`Rank ${rank} is not in a world of ${worldSize}`);
  }
  if (!hasWasmMemory(device)) {
    throw new UnsupportedError(`Cannot share memory of device ${device.name} between processes: it has no WASM memory`);
  }
  const posix = await openPosix();
  const files = new RunFiles(posix, options.directory ?? "/dev/shm", runName(options.run));
  const lock = await files.claim(rank);
  const pages = new SharedPages(device, files);
  const joining = new Joining(pages, lock, options);
  try {
    return new StagedTransport(await joining.join());
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

/** One rank on its way in. See Note [Joining]. */
class Joining {
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

  constructor(pages: SharedPages, lock: HeldLock, options: ShmOptions) {
    this.#pages = pages;
    this.#files = pages.files;
    this.#posix = pages.files.posix;
    this.#lock = lock;
    this.#options = options;
    this.#deadline = performance.now() + (options.joinTimeoutSeconds ?? DEFAULT_JOIN_SECONDS) * 1000;
    this.#liveness = new LockLiveness(pages.files);
  }

  async join(): Promise<Medium> {
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
    return this.#medium(address, words, abort, aperture, segment, mapped);
  }

  /** Undoes what this rank has done, and tells those who wait for it why. */
  async giveUp(error: unknown): Promise<void> {
    const { rank, worldSize } = this.#options;
    const words = this.#words;
    if (words !== undefined) {
      const message = error instanceof Error ? error.message : String(error);
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

  #medium(
    address: NativeAddress,
    words: Int32Array,
    abort: AbortArea,
    aperture: Aperture,
    segment: string,
    mapped: boolean,
  ): Medium {
    const { rank, worldSize, timeoutSeconds = DEFAULT_TIMEOUT_SECONDS } = this.#options;
    const { report = (): void => {}, reportSeconds = DEFAULT_REPORT_SECONDS } = this.#options;
    const world: World = {
      pages: this.#pages,
      abort,
      liveness: this.#liveness,
      timeoutSeconds,
      report,
      reportSeconds,
      spins: spinsFor(worldSize, this.#posix.affinity().length),
      mapped,
      chunkBytes: this.#options.chunkBytes ?? DEFAULT_CHUNK_BYTES,
      leave: (): void => {
        this.#liveness.close();
        this.#files.release(this.#lock);
      },
    };
    const worldRanks = Array.from({ length: worldSize }, (_, r) => r);
    const control = words.subarray(CONTROL, CONTROL + controlBytes(worldSize) / 4);
    const at = this.#posix.provider.offset(address, CONTROL * 4);
    return new ShmMedium(world, { name: "world", id: segment, rank, worldRanks }, control, at, aperture, true);
  }

  /** Rank 0: makes the world segment and tells its name. */
  #invite(): { segment: string; apertureBytes: number; descriptor: number } {
    const { worldSize } = this.#options;
    this.#files.sweep();
    this.#files.sweepOwn(worldSize);
    const segment = `seg-${crypto.randomUUID().slice(0, 8)}`;
    const apertureBytes = worldSize === 1
      ? 0
      : this.#pages.roundUp(this.#options.apertureBytes ?? DEFAULT_APERTURE_BYTES);
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
      if (cause !== undefined) throw new RendezvousError(`Rank ${cause.rank} gave up joining: ${cause.reason}`);
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

/** Maps an aperture and closes its descriptor. */
function openAperture(
  pages: SharedPages,
  descriptor: number,
  byteLength: number,
  rank: number,
  size: number,
  mapped: boolean,
  begin = 0,
): Aperture {
  const { posix } = pages.files;
  try {
    if (size === 1) return new CopyAperture(pages.device, new Uint8Array(0), rank, size);
    if (mapped) {
      return new MappedAperture(
        pages,
        pages.mapIn(descriptor, byteLength, "shared aperture", begin),
        byteLength,
        rank,
        size,
      );
    }
    const view = posix.provider.viewOf(posix.mapShared(descriptor, byteLength, "readWrite", begin), byteLength);
    return new CopyAperture(pages.device, new Uint8Array(view), rank, size);
  } finally {
    posix.close(descriptor);
  }
}

/** A peer is dead when its lock can be had. */
class LockLiveness implements Liveness {
  readonly #files: RunFiles;
  readonly #descriptors = new Map<number, number>();

  constructor(files: RunFiles) {
    this.#files = files;
  }

  /** Opens a rank's lock file, which it holds now. One that is gone already counts as dead. */
  watch(rank: number): void {
    const descriptor = this.#files.posix.openFile(this.#files.lockPath(rank), "read");
    if (descriptor !== undefined) this.#descriptors.set(rank, descriptor);
  }

  isDead(worldRank: number): boolean {
    const descriptor = this.#descriptors.get(worldRank);
    if (descriptor === undefined) return true;
    if (!this.#files.posix.tryLock(descriptor, "shared")) return false;
    this.#files.posix.unlock(descriptor);
    return true;
  }

  close(): void {
    for (const descriptor of this.#descriptors.values()) this.#files.posix.close(descriptor);
    this.#descriptors.clear();
  }
}

/** Sleeps by futex system calls on a native mapping. */
class NativeFutex implements Futex {
  readonly #posix: Posix;
  readonly #address: NativeAddress;

  constructor(posix: Posix, address: NativeAddress) {
    this.#posix = posix;
    this.#address = address;
  }

  wait(index: number, expected: number, timeoutMs: number): void {
    this.#posix.futexWait(this.#posix.provider.offset(this.#address, index * 4), expected, timeoutMs);
  }

  wake(index: number): void {
    this.#posix.futexWake(this.#posix.provider.offset(this.#address, index * 4), 0x7fffffff);
  }
}

/** What the groups of one process have in common. */
interface World extends WorldOptions {
  readonly pages: SharedPages;
  readonly mapped: boolean;
  readonly chunkBytes: number;
  leave(): void;
}

/** Who is in a group; `id` heads the names of its segments. */
interface GroupPlace {
  readonly name: string;
  readonly id: string;
  readonly rank: number;
  readonly worldRanks: readonly number[];
}

/** Segments of one group. */
class ShmMedium implements Medium {
  readonly kind = "shm";
  readonly device: Device;
  readonly control: Control;
  readonly aperture: Aperture;
  readonly chunkBytes: number;
  readonly #world: World;
  readonly #place: GroupPlace;
  readonly #isRoot: boolean;
  /** Bytes of each rank's slot. */
  readonly #slotBytes: number;
  #made = 0;

  constructor(
    world: World,
    place: GroupPlace,
    words: Int32Array,
    address: NativeAddress,
    aperture: Aperture,
    isRoot: boolean,
  ) {
    const { pages, abort, liveness, timeoutSeconds, report, reportSeconds, spins } = world;
    const { name, rank, worldRanks } = place;
    this.device = pages.device;
    this.chunkBytes = world.chunkBytes;
    this.aperture = aperture;
    this.#world = world;
    this.#place = place;
    this.#isRoot = isRoot;
    this.#slotBytes = aperture.slotBytes;
    const futex = new NativeFutex(pages.files.posix, address);
    const shared = { abort, liveness, timeoutSeconds, report, reportSeconds, spins };
    this.control = new Control({ ...shared, name, rank, size: worldRanks.length, worldRanks, words, futex });
  }

  openWindow(byteLengths: readonly number[], label: string, exchange: Exchange): WindowMemory {
    const { pages, mapped } = this.#world;
    const { rank, id, worldRanks } = this.#place;
    const { posix } = pages.files;
    const alone = worldRanks.length === 1;
    const name = `${id}-w${this.#made++}`;
    const own = byteLengths[rank] ?? 0;
    const shares = !alone && own > 0;
    const isMapped = shares && mapped;
    const owner = `window '${label}'`;
    let pointer = NO_PTR;
    let copyTo: MappedPart | undefined;
    const parts: (MappedPart | undefined)[] = byteLengths.map(() => undefined);
    this.#together(exchange, `make its part of ${owner}`, () => {
      if (!shares) {
        pointer = this.device.allocator.allocate(own, label);
        this.device.copyIn(pointer, new Uint8Array(own));
        return;
      }
      const bytes = pages.roundUp(own);
      const descriptor = pages.create(`${name}-r${rank}`, bytes, owner);
      try {
        if (isMapped) pointer = pages.mapIn(descriptor, bytes, label);
        else {
          pointer = this.device.allocator.allocate(own, label);
          this.device.copyIn(pointer, new Uint8Array(own));
          copyTo = { address: posix.mapShared(descriptor, bytes), byteLength: bytes };
        }
      } finally {
        posix.close(descriptor);
      }
    });
    this.#together(exchange, `open ${owner}`, () => {
      for (const [peer, bytes] of byteLengths.entries()) {
        if (peer === rank || bytes === 0) continue;
        const descriptor = this.#open(`${name}-r${peer}`);
        const byteLength = pages.roundUp(bytes);
        parts[peer] = { address: posix.mapShared(descriptor, byteLength, "read"), byteLength };
        posix.close(descriptor);
      }
    });
    if (shares) posix.unlink(pages.files.path(`${name}-r${rank}`));
    return new SegmentWindow(pages, rank, byteLengths, pointer, isMapped, parts, copyTo);
  }

  split(groups: readonly (readonly number[])[], mine: number, name: string, exchange: Exchange): Medium {
    const { pages, mapped } = this.#world;
    const { posix } = pages.files;
    const ranks = groups[mine] ?? [];
    const size = ranks.length;
    const id = `${this.#place.id}-g${this.#made++}-${mine}`;
    const leads = ranks[0] === this.#place.rank;
    const apertureBytes = size === 1 ? 0 : pages.roundUp(this.#slotBytes * size);
    const wordBytes = pages.roundUp(controlBytes(size));
    const place = {
      name,
      id,
      rank: ranks.indexOf(this.#place.rank),
      worldRanks: ranks.map((rank) => this.#place.worldRanks[rank] ?? 0),
    };
    let made: number | undefined;
    this.#together(exchange, `make group '${name}'`, () => {
      if (leads) made = pages.create(id, wordBytes + apertureBytes, `group '${name}'`);
    });
    let medium: Medium | undefined;
    this.#together(exchange, `open group '${name}'`, () => {
      const descriptor = made ?? this.#open(id);
      const address = posix.mapShared(descriptor, wordBytes);
      const words = new Int32Array(posix.provider.viewOf(address, wordBytes), 0, controlBytes(size) / 4);
      const aperture = openAperture(pages, descriptor, apertureBytes, place.rank, size, mapped, wordBytes);
      const world = { ...this.#world, timeoutSeconds: this.control.timeoutSeconds };
      medium = new ShmMedium(world, place, words, address, aperture, false);
    });
    if (leads) posix.unlink(pages.files.path(id));
    if (medium === undefined) throw this.control.failure(`group '${name}' was not opened`);
    return medium;
  }

  // The words stay mapped: they are small, and a late abort() must not touch memory that is gone.
  dispose(): void {
    if (this.#isRoot) this.#world.leave();
  }

  /** Does something that may fail on one rank; then all ranks fail. */
  #together(exchange: Exchange, what: string, body: () => void): void {
    let failure: unknown;
    let text = "";
    try {
      body();
    } catch (error) {
      failure = error;
      text = error instanceof Error ? error.message : String(error);
    }
    const answers = exchange(new TextEncoder().encode(text));
    if (text !== "") throw failure;
    answers.forEach((answer, rank) => {
      if (answer.length === 0) return;
      const worldRank = this.#place.worldRanks[rank] ?? rank;
      throw this.control.failure(`rank ${worldRank} could not ${what}: ${new TextDecoder().decode(answer)}`);
    });
  }

  #open(name: string): number {
    const { posix } = this.#world.pages.files;
    const descriptor = posix.openFile(this.#world.pages.files.path(name), "readWrite");
    if (descriptor === undefined) throw this.control.failure(`segment ${name} is gone`);
    return descriptor;
  }
}

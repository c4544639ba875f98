/**
 * The transport between processes of one host: shards lie in shared segments, collectives go through one aperture, and
 * ranks find each other by names alone (`shm_join.ts`), with or without a launcher. Linux; needs FFI to the C library.
 *
 * @module
 */
import { openPosix } from "../../../ffi/posix.ts";
import type { Posix } from "../../../ffi/posix.ts";
import type { NativeAddress } from "../../../ffi/types.ts";
import { NO_PTR } from "../../device/device.ts";
import type { Device } from "../../device/device.ts";
import { ArgumentError, UnsupportedError } from "../../errors.ts";
import { requireSharedMemory } from "../../runtime/processes.ts";
import type { Transport } from "../transport.ts";
import { Control, controlBytes, spinsFor } from "./control.ts";
import type { WorldOptions } from "./control.ts";
import { Joining, MAX_RANKS } from "./shm_join.ts";
import { hasWasmMemory, openAperture, SegmentWindow, SharedPages } from "./shm_memory.ts";
import type { MappedPart } from "./shm_memory.ts";
import { RunFiles } from "./shm_names.ts";
import { StagedTransport } from "./staged.ts";
import type { Aperture, Exchange, Medium } from "./medium.ts";
import type { WindowMemory } from "./window.ts";
import { DEFAULT_CHUNK_BYTES, DEFAULT_REPORT_SECONDS, DEFAULT_TIMEOUT_SECONDS } from "./world.ts";
import type { Futex, TransportOptions } from "./world.ts";

/** How a process joins its host's ranks. */
export interface ShmOptions extends TransportOptions {
  readonly rank: number;
  readonly worldSize: number;
  /** What the ranks of a run have in common and no other run has, e.g. `127.0.0.1:29500`. */
  readonly run: string;
  /** Where segments are made; default `/dev/shm`. */
  readonly directory?: string;
  /** Staging bytes of all ranks together; default 2 MiB for each pair of ranks, at most 64 MiB. Groups split off take as much again. */
  readonly apertureBytes?: number;
  /** Seconds to wait for a rank that has not started; default 60. */
  readonly joinTimeoutSeconds?: number;
  /** `copy` keeps segments out of the device's memory, as where they cannot be mapped there; default `auto`. */
  readonly mapping?: "auto" | "copy";
}

/**
 * Joins the other ranks of this host.
 *
 * @param device whose memory the segments are mapped into
 * @throws {RendezvousError} if a rank does not start in time, is started twice, or disagrees about the world's size
 * @throws {OutOfMemoryError} if shared memory is too small
 * @throws {UnsupportedError} where processes cannot share memory: anywhere but on Linux
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
  requireSharedMemory();
  const posix = await openPosix();
  const files = new RunFiles(posix, options.directory ?? "/dev/shm", runName(options.run));
  const lock = await files.claim(rank);
  const pages = new SharedPages(device, files);
  const joining = new Joining(pages, lock, options);
  try {
    const joined = await joining.join();
    const world: World = {
      pages,
      abort: joined.abort,
      liveness: joined.liveness,
      timeoutSeconds: options.timeoutSeconds ?? DEFAULT_TIMEOUT_SECONDS,
      report: options.report ?? ((): void => {}),
      reportSeconds: options.reportSeconds ?? DEFAULT_REPORT_SECONDS,
      spins: spinsFor(worldSize, posix.affinity().length),
      mapped: joined.mapped,
      chunkBytes: options.chunkBytes ?? DEFAULT_CHUNK_BYTES,
      leave: (): void => {
        joined.liveness.close();
        files.release(lock);
      },
    };
    const worldRanks = Array.from({ length: worldSize }, (_, r) => r);
    const place = { name: "world", id: joined.segment, rank, worldRanks };
    return new StagedTransport(new ShmMedium(world, place, joined.words, joined.address, joined.aperture, true));
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
    try {
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
          try {
            parts[peer] = { address: posix.mapShared(descriptor, byteLength, "read"), byteLength };
          } finally {
            posix.close(descriptor);
          }
        }
      });
      return new SegmentWindow(pages, rank, byteLengths, pointer, isMapped, parts, copyTo);
    } catch (error) {
      // Whichever rank it was that failed, none keeps anything.
      for (const part of [...parts, copyTo]) if (part !== undefined) posix.unmap(part.address, part.byteLength);
      if (pointer !== NO_PTR && isMapped) pages.unmapIn(pointer, pages.roundUp(own));
      else if (pointer !== NO_PTR) this.device.allocator.free(pointer);
      throw error;
    } finally {
      // Opened by all or of use to none: the memory lives as long as it is mapped.
      if (shares) posix.unlink(pages.files.path(`${name}-r${rank}`));
    }
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
    // The segment's descriptor, until its mapping takes it over.
    let segment: number | undefined;
    let address: NativeAddress | undefined;
    let medium: Medium | undefined;
    try {
      this.#together(exchange, `make group '${name}'`, () => {
        if (leads) segment = pages.create(id, wordBytes + apertureBytes, `group '${name}'`);
      });
      this.#together(exchange, `open group '${name}'`, () => {
        const descriptor = segment ??= this.#open(id);
        address = posix.mapShared(descriptor, wordBytes);
        const words = new Int32Array(posix.provider.viewOf(address, wordBytes), 0, controlBytes(size) / 4);
        segment = undefined;
        const aperture = openAperture(pages, descriptor, apertureBytes, place.rank, size, mapped, wordBytes);
        const world = { ...this.#world, timeoutSeconds: this.control.timeoutSeconds };
        medium = new ShmMedium(world, place, words, address, aperture, false);
      });
      if (medium === undefined) throw this.control.failure(`group '${name}' was not opened`);
      return medium;
    } catch (error) {
      medium?.aperture.dispose();
      if (address !== undefined) posix.unmap(address, wordBytes);
      if (segment !== undefined) posix.close(segment);
      throw error;
    } finally {
      if (leads) posix.unlink(pages.files.path(id));
    }
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

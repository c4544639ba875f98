/**
 * Names of a run's files in the shared-memory directory, and the locks that tell who lives. Every rank holds an
 * exclusive lock on a file of its own for as long as its process lives; the kernel gives it back however that ends.
 *
 * Note [Whose leftovers]: files are named `fullyshard-<user>-<run>-…`. A run is over when none of its lock files is held;
 * then all of its files are leftovers. A rank makes and locks its lock file before any other file, and removes it last,
 * so a run that lives always shows a held lock. While a sweep holds a lock, whoever wants it tries again.
 *
 * @module
 */
import type { Posix } from "../../../ffi/posix.ts";
import { NativeError, RendezvousError } from "../../errors.ts";

/** How long a lock may be held by somebody who only looks. */
const GLANCE_MS = 400;

/** A lock file that this process holds. */
export interface HeldLock {
  readonly path: string;
  readonly descriptor: number;
}

/** The files of one run of one user in one directory. */
export class RunFiles {
  readonly posix: Posix;
  readonly directory: string;
  /** What all names of the run begin with. */
  readonly prefix: string;
  readonly #userPrefix: string;

  /**
   * @param directory where the files lie, e.g. `/dev/shm`
   * @param run name of the run, in letters and digits
   */
  constructor(posix: Posix, directory: string, run: string) {
    this.posix = posix;
    this.directory = directory;
    this.#userPrefix = `fullyshard-${posix.libc.symbols.getuid()}-`;
    this.prefix = `${this.#userPrefix}${run}-`;
  }

  /** Path of a file of this run. */
  path(name: string): string {
    return `${this.directory}/${this.prefix}${name}`;
  }

  /** Path of a rank's lock file. */
  lockPath(rank: number): string {
    return this.path(`lock-${rank}`);
  }

  /**
   * Becomes a rank: makes its lock file anew and locks it, removing one that a dead process left.
   *
   * @throws {RendezvousError} if a live process is that rank already
   */
  async claim(rank: number): Promise<HeldLock> {
    const path = this.lockPath(rank);
    const { posix } = this;
    const deadline = performance.now() + GLANCE_MS;
    for (;;) {
      const old = posix.openFile(path, "readWrite");
      if (old !== undefined) {
        const free = posix.tryLock(old, "exclusive");
        if (free) posix.unlink(path);
        posix.close(old);
        if (!free && performance.now() > deadline) throw this.#taken(rank);
        if (!free) await pause(5);
        continue;
      }
      const descriptor = this.#create(path);
      if (descriptor === undefined) continue;
      // Somebody may have looked at the file, or swept it away, between its making and its locking.
      if (posix.tryLock(descriptor, "exclusive") && this.#isHeld(path)) return { path, descriptor };
      posix.close(descriptor);
      if (performance.now() > deadline) throw this.#taken(rank);
    }
  }

  /** Writes what others should know into a held lock file; its last line ends it. */
  write(lock: HeldLock, text: string): void {
    const bytes = new TextEncoder().encode(`${text}\n`);
    this.posix.libc.symbols.write(lock.descriptor, bytes, bytes.length);
  }

  /** What the live holder of a rank's lock file has written, or `undefined` if there is none or it has not finished. */
  read(rank: number): string | undefined {
    const { posix } = this;
    const descriptor = posix.openFile(this.lockPath(rank), "read");
    if (descriptor === undefined) return undefined;
    try {
      if (posix.tryLock(descriptor, "shared")) return undefined;
      const bytes = new Uint8Array(4096);
      const length = posix.libc.symbols.read(descriptor, bytes, bytes.length);
      const text = new TextDecoder().decode(bytes.subarray(0, length));
      return text.endsWith("\n") ? text.trimEnd() : undefined;
    } finally {
      posix.close(descriptor);
    }
  }

  /** Gives a lock up and removes its file. */
  release(lock: HeldLock): void {
    this.posix.unlink(lock.path);
    this.posix.close(lock.descriptor);
  }

  /** Removes files of this user's runs of which no process lives, but for this one's locks; returns their names. */
  sweep(): readonly string[] {
    const removed: string[] = [];
    const runs = new Map<string, string[]>();
    for (const name of this.posix.listDirectory(this.directory)) {
      if (!name.startsWith(this.#userPrefix)) continue;
      const run = name.slice(0, name.indexOf("-", this.#userPrefix.length) + 1);
      runs.set(run, [...(runs.get(run) ?? []), name]);
    }
    for (const [run, names] of runs) {
      if (run === this.prefix) continue;
      const isLock = (name: string): boolean => name.startsWith(`${run}lock-`);
      const held: number[] = [];
      let alive = false;
      for (const name of names.filter(isLock)) {
        const descriptor = this.posix.openFile(`${this.directory}/${name}`, "readWrite");
        if (descriptor === undefined) continue;
        held.push(descriptor);
        if (!this.posix.tryLock(descriptor, "exclusive")) alive = true;
      }
      if (!alive) {
        // Locks last: a run without any lock file but with others would look the same, and is swept as well.
        for (const name of [...names].sort((a, b) => Number(isLock(a)) - Number(isLock(b)))) {
          if (this.posix.unlink(`${this.directory}/${name}`)) removed.push(name);
        }
      }
      for (const descriptor of held) this.posix.close(descriptor);
    }
    return removed;
  }

  /**
   * Removes what an earlier run of the same name left. Only rank 0 may, before it makes any file but its lock.
   *
   * @param size number of ranks; their lock files each rank sees to itself
   */
  sweepOwn(size: number): readonly string[] {
    const removed: string[] = [];
    for (const name of this.posix.listDirectory(this.directory)) {
      if (!name.startsWith(this.prefix)) continue;
      const lock = /^lock-(\d+)$/.exec(name.slice(this.prefix.length));
      if (lock !== null && (Number(lock[1]) < size || this.#isHeld(`${this.directory}/${name}`))) continue;
      if (this.posix.unlink(`${this.directory}/${name}`)) removed.push(name);
    }
    return removed;
  }

  /** Makes a file, or `undefined` if there is one. */
  #create(path: string): number | undefined {
    try {
      return this.posix.createFile(path);
    } catch (error) {
      if (error instanceof NativeError && error.code === "EEXIST") return undefined;
      throw error;
    }
  }

  /** Whether the file of that name is locked. */
  #isHeld(path: string): boolean {
    const descriptor = this.posix.openFile(path, "readWrite");
    if (descriptor === undefined) return false;
    const free = this.posix.tryLock(descriptor, "shared");
    this.posix.close(descriptor);
    return !free;
  }

  #taken(rank: number): RendezvousError {
    const holder = this.read(rank);
    return new RendezvousError(
      `Rank ${rank} of this run is a live process already${holder === undefined ? "" : ` (${holder})`}: ` +
        `${
          this.lockPath(rank)
        } is locked. Start each rank once; give runs that should not meet different MASTER_PORTs ` +
        `or FULLYSHARD_RUN_IDs`,
    );
  }
}

/** Tells who lives: a peer is dead when its lock can be had. */
export class LockLiveness {
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

  /** Whether a rank has died; one that left in order has not. */
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

/** Waits without holding up the thread. */
export function pause(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/**
 * Names of a run's files in the shared-memory directory, and the locks that show which ranks live. Every rank holds an
 * exclusive lock on its own lock file; the kernel gives it back when the process ends, in any way.
 *
 * Note [Foreign files]: other users may make files of these names in the directory. A file of another user is not used, and
 * no link is followed: mapped memory of theirs could change or end at any time.
 *
 * Note [Leftovers]: files are named `fullyshard-<user>-<run>-…`.
 * - A rank makes and locks its lock file before any other file, and removes it last, so a live run always shows a held lock.
 * - If no lock file of a run is held, the run is over and all of its files are leftovers.
 * - A sweep holds locks for a moment; a rank that wants one tries again.
 *
 * @module
 */
import { FileError, NativeError, RendezvousError } from "../../errors.ts";
import type { Posix } from "../../ffi/posix.ts";
import { sleep } from "../../runtime/clock.ts";
import { attempt } from "../together.ts";

/** Longest time that a claim tries again, as a sweep or a check may hold the lock for a moment. */
const CLAIM_RETRY_MS = 400;

/** The files of one run of one user in one directory. */
export class RunFiles {
  readonly posix: Posix;
  readonly directory: string;
  readonly #user: number;
  readonly #userPrefix: string;
  readonly #prefix: string;

  /** @param run name of the run, in letters and digits */
  constructor(posix: Posix, directory: string, run: string) {
    this.posix = posix;
    this.directory = directory;
    this.#user = posix.libc.symbols.getuid();
    this.#userPrefix = `fullyshard-${this.#user}-`;
    this.#prefix = `${this.#userPrefix}${run}-`;
  }

  /** Path of a file of this run. */
  path(name: string): string {
    return `${this.directory}/${this.#prefix}${name}`;
  }

  /**
   * Makes and locks the lock file of a rank, removing one that a dead process left.
   *
   * @returns the file's descriptor
   * @throws {RendezvousError} if a live process is that rank already
   * @throws {FileError} if no file can be made in the directory
   */
  async claim(rank: number): Promise<number> {
    const path = this.#lockPath(rank);
    const { posix } = this;
    const deadline = performance.now() + CLAIM_RETRY_MS;
    for (;;) {
      const old = this.#inDirectory(() => this.#open(path));
      if (old !== undefined) {
        const isFree = posix.tryLock(old, "exclusive");
        if (isFree) posix.unlink(path);
        posix.close(old);
        if (isFree) continue;
      } else {
        const descriptor = this.#create(path);
        if (descriptor === undefined) continue;
        // Between making and locking, another process may have locked the file to check it, or removed it in a sweep.
        if (posix.tryLock(descriptor, "exclusive") && this.isHeld(rank)) return descriptor;
        posix.close(descriptor);
      }
      if (performance.now() > deadline) {
        throw new RendezvousError(
          `Rank ${rank} of this run is a live process already, which holds ${path} ('fuser' tells which). Start each rank ` +
            "once; give runs that should not meet different MASTER_PORTs or FULLYSHARD_RUN_IDs",
        );
      }
      await sleep(5);
    }
  }

  /** Gives up a rank's lock and removes its file. */
  release(rank: number, descriptor: number): void {
    this.posix.unlink(this.#lockPath(rank));
    this.posix.close(descriptor);
  }

  /** True if a live process is that rank. */
  isHeld(rank: number): boolean {
    const descriptor = this.openHeld(rank);
    if (descriptor !== undefined) this.posix.close(descriptor);
    return descriptor !== undefined;
  }

  /** Opens the lock file of a rank; undefined if no live process holds it. */
  openHeld(rank: number): number | undefined {
    const { posix } = this;
    const descriptor = this.#inDirectory(() => this.#open(this.#lockPath(rank)));
    if (descriptor === undefined || !posix.tryLock(descriptor, "shared")) return descriptor;
    posix.close(descriptor);
    return undefined;
  }

  /** True if an open lock file is not held: its process is dead, even if a new process has become the same rank. */
  isAbandoned(descriptor: number): boolean {
    const isFree = this.posix.tryLock(descriptor, "shared");
    if (isFree) this.posix.unlock(descriptor);
    return isFree;
  }

  /**
   * Removes leftovers of this user's runs, and of an earlier run of this name. Rank 0 alone may call it, before any rank
   * makes another file than its lock. See Note [Leftovers].
   */
  sweep(): void {
    const own = this.posix.listDirectory(this.directory).filter((name) => name.startsWith(this.#userPrefix));
    const runs = Map.groupBy(own, (name) => name.slice(0, name.indexOf("-", this.#userPrefix.length) + 1));
    for (const [run, names] of runs) {
      const locks = names.filter((name) => name.startsWith(`${run}lock-`));
      const others = names.filter((name) => !locks.includes(name));
      // Each rank of this run removes its own old lock file.
      const seen = run === this.#prefix ? [] : locks;
      const found = seen.map((name) => attempt(() => this.#open(`${this.directory}/${name}`)));
      const opened = found.flatMap((one) => one.status === "fulfilled" && one.value !== undefined ? [one.value] : []);
      // A run with files of another user is left alone.
      const isOurs = found.every(({ status }) => status === "fulfilled");
      const isOver = isOurs && opened.every((descriptor) => this.posix.tryLock(descriptor, "exclusive"));
      // Locks last: a run's files without a lock file would look like leftovers.
      for (const name of isOver ? [...others, ...seen] : []) {
        attempt(() => this.posix.unlink(`${this.directory}/${name}`));
      }
      for (const descriptor of opened) this.posix.close(descriptor);
    }
  }

  /** Opens a file of this user; undefined if it does not exist. See Note [Foreign files]. */
  #open(path: string): number | undefined {
    const { posix } = this;
    const descriptor = posix.openFile(path, "readWrite");
    if (descriptor === undefined) return undefined;
    const owner = posix.ownerOf(descriptor);
    if (owner === this.#user) return descriptor;
    posix.close(descriptor);
    const detail =
      `it belongs to user ${owner}, and this process is user ${this.#user}. Give the run another MASTER_PORT or ` +
      "FULLYSHARD_RUN_ID, or name a directory of this user's own in FULLYSHARD_SHM_DIRECTORY";
    throw new FileError(path, "use", detail);
  }

  #lockPath(rank: number): string {
    return this.path(`lock-${rank}`);
  }

  /** Makes a file; `undefined` if it exists. */
  #create(path: string): number | undefined {
    return this.#inDirectory(() => {
      try {
        return this.posix.createFile(path);
      } catch (error) {
        if (error instanceof NativeError && error.code === "EEXIST") return undefined;
        throw error;
      }
    });
  }

  /** Opens or makes a file; the error of a failure names another directory. */
  #inDirectory<T>(open: () => T): T {
    try {
      return open();
    } catch (error) {
      if (!(error instanceof NativeError)) throw error;
      const remedy = "FULLYSHARD_SHM_DIRECTORY names another directory than /dev/shm";
      const detail = `${error.message}; choose one that is there and that this user may write in: ${remedy}`;
      throw new FileError(this.directory, "share memory in", detail, error.code, { cause: error });
    }
  }
}

/**
 * Wraps the parts of the C library that the project uses: shared segments, mappings, locks that die with their
 * process, futexes, space, affinity, environment. Every failure is a NativeError; ordinary outcomes (no such file, lock
 * taken, wait timed out) are results. Linux only.
 *
 * `node:fs` is not used, because Deno forbids /dev and /proc to it without `--allow-all`. Through the C library `--allow-ffi`
 * is enough.
 *
 * @module
 */
import { at } from "../at.ts";
import { NativeError, UnsupportedError } from "../errors.ts";
import { type Platform, platform } from "../runtime/processes.ts";
import * as c from "./bindings/libc.ts";
import { errnoNumber } from "../runtime/errno.ts";
import { openLibrary, type OpenLibraryOptions } from "./mod.ts";
import type { FfiProvider, Library, NativeAddress } from "./types.ts";

/** The C library, opened, and what is built on it. */
export class Posix {
  /** The library, for calls that need no more than its binding. */
  readonly libc: Library<typeof c.LIBC_BINDINGS>;
  /** The provider of its addresses. */
  readonly provider: FfiProvider;
  /** Bytes of a memory page. */
  readonly pageBytes: number;
  readonly #sysFutex: number;
  readonly #sysGetdents64: number;
  readonly #sysStatx: number;
  readonly #noFollow: number;
  // struct timespec { int64 seconds; int64 nanoseconds }, reused by every wait of this thread.
  readonly #timespec: BigInt64Array = new BigInt64Array(2);
  readonly #again: number = -number("EAGAIN");
  readonly #timedOut: number = -number("ETIMEDOUT");

  /**
   * @param libc the opened C library
   * @param here the platform, whose system call numbers are used
   */
  constructor(libc: Library<typeof c.LIBC_BINDINGS>, here: Platform = platform()) {
    const futex = c.SYS_futex[here.arch];
    const getdents64 = c.SYS_getdents64[here.arch];
    const statx = c.SYS_statx[here.arch];
    const noFollow = c.O_NOFOLLOW[here.arch];
    const isKnown = futex !== undefined && getdents64 !== undefined && statx !== undefined && noFollow !== undefined;
    if (here.os !== "linux" || !isKnown) {
      throw new UnsupportedError(`Cannot share memory between processes on ${here.os} ${here.arch}, only on Linux`);
    }
    this.libc = libc;
    this.provider = libc.provider;
    this.#sysFutex = futex;
    this.#sysGetdents64 = getdents64;
    this.#sysStatx = statx;
    this.#noFollow = noFollow;
    this.pageBytes = libc.symbols.sysconf(c._SC_PAGESIZE);
  }

  /** Bytes of memory that the host has. */
  get hostBytes(): number {
    return this.libc.symbols.sysconf(c._SC_PHYS_PAGES) * this.pageBytes;
  }

  /** Makes a file of size 0 for reading and writing by this user; one that exists already is an error (EEXIST). */
  createFile(path: string): number {
    return uninterrupted(() => this.libc.symbols.open(path, c.O_RDWR | c.O_CREAT | c.O_EXCL | c.O_CLOEXEC, 0o600));
  }

  /**
   * Opens a file. A link is refused (ELOOP) where the file is to be written, as it may lead to any other file of the user.
   *
   * @returns its descriptor, or undefined if there is no such file
   */
  openFile(path: string, mode: "read" | "readWrite"): number | undefined {
    const flags = (mode === "read" ? c.O_RDONLY : c.O_RDWR | this.#noFollow) | c.O_CLOEXEC;
    const result = uninterrupted(() => this.libc.symbols.tryOpen(path, flags, 0));
    return result < 0 ? undefined : result; // the one error that passes is ENOENT
  }

  /** Closes a descriptor. */
  close(descriptor: number): void {
    this.libc.symbols.close(descriptor);
  }

  /** The user whom an open file belongs to. */
  ownerOf(descriptor: number): number {
    const stat = new DataView(new ArrayBuffer(c.STATX.byteLength));
    this.libc.symbols.statx(this.#sysStatx, descriptor, "", c.AT_EMPTY_PATH, c.STATX_UID, stat);
    return stat.getUint32(c.STATX.stx_uid, true);
  }

  /** Removes a name; false if there was none. */
  unlink(path: string): boolean {
    return this.libc.symbols.unlink(path) === 0;
  }

  /**
   * Gives a file at least the size `begin + byteLength` and really reserves the room from `begin`, so that touching a page
   * later cannot kill the process.
   *
   * In /dev/shm a lack of room is ENOSPC. A signal that arrives while the kernel clears pages undoes the call, which is
   * then made again.
   *
   * @throws {NativeError} with code `ENOSPC` if there is no room
   */
  reserve(descriptor: number, byteLength: number, begin = 0): void {
    uninterrupted(() => this.libc.symbols.posix_fallocate(descriptor, begin, byteLength));
  }

  /** Maps `byteLength` bytes of a file from `offset` (whole pages) wherever there is room, shared. */
  mapShared(
    descriptor: number,
    byteLength: number,
    access: "read" | "readWrite" = "readWrite",
    offset = 0,
  ): NativeAddress {
    const protection = access === "read" ? c.PROT_READ : c.PROT_READ | c.PROT_WRITE;
    return this.libc.symbols.mmap(this.provider.nullAddress, byteLength, protection, c.MAP_SHARED, descriptor, offset);
  }

  /**
   * Maps a file over memory that this process has already, e.g. whole pages of a WebAssembly.Memory. What was there is
   * gone.
   *
   * @param address the first byte, at a page boundary
   */
  mapSharedAt(address: NativeAddress, descriptor: number, byteLength: number, offset = 0): void {
    this.libc.symbols.mmap(
      address,
      byteLength,
      c.PROT_READ | c.PROT_WRITE,
      c.MAP_SHARED | c.MAP_FIXED,
      descriptor,
      offset,
    );
  }

  /** Maps zeroed private pages wherever there is room; a page takes memory of the host from its first write on. */
  mapPrivate(byteLength: number): NativeAddress {
    const flags = c.MAP_PRIVATE | c.MAP_ANONYMOUS | c.MAP_NORESERVE;
    return this.libc.symbols.mmap(this.provider.nullAddress, byteLength, c.PROT_READ | c.PROT_WRITE, flags, -1, 0);
  }

  /** Maps fresh zeroed private pages over memory: undoes {@link mapSharedAt}. */
  mapPrivateAt(address: NativeAddress, byteLength: number): void {
    const flags = c.MAP_PRIVATE | c.MAP_ANONYMOUS | c.MAP_FIXED;
    this.libc.symbols.mmap(address, byteLength, c.PROT_READ | c.PROT_WRITE, flags, -1, 0);
  }

  /** Unmaps what {@link mapShared} or {@link mapPrivate} mapped. Views over it must not be used any more. */
  unmap(address: NativeAddress, byteLength: number): void {
    this.libc.symbols.munmap(address, byteLength);
  }

  /**
   * Tries to take an advisory lock on an open file. It is held until unlocked, closed, or its process is dead.
   *
   * @returns false if another opening holds it
   */
  tryLock(descriptor: number, kind: "exclusive" | "shared"): boolean {
    const operation = (kind === "exclusive" ? c.LOCK_EX : c.LOCK_SH) | c.LOCK_NB;
    return uninterrupted(() => this.libc.symbols.flock(descriptor, operation)) === 0;
  }

  /** Gives a lock back. */
  unlock(descriptor: number): void {
    this.libc.symbols.flock(descriptor, c.LOCK_UN);
  }

  /**
   * Sleeps while the 32-bit word at `address` (shared between processes) holds `expected`, until woken or `timeoutMs`
   * is over. May return `woken` with no reason; look at the word again.
   */
  futexWait(address: NativeAddress, expected: number, timeoutMs: number): "woken" | "changed" | "timeout" {
    const whole = Math.floor(timeoutMs / 1000);
    this.#timespec[0] = BigInt(whole);
    this.#timespec[1] = BigInt(Math.floor((timeoutMs - whole * 1000) * 1e6));
    const { futex } = this.libc.symbols;
    const result = futex(this.#sysFutex, address, c.FUTEX_WAIT, expected >>> 0, this.#timespec);
    return result === this.#again ? "changed" : result === this.#timedOut ? "timeout" : "woken";
  }

  /** Wakes up to `count` waiters of the word at `address`. @returns how many were woken */
  futexWake(address: NativeAddress, count: number): number {
    return this.libc.symbols.futex(this.#sysFutex, address, c.FUTEX_WAKE, count, null);
  }

  /** Space on the file system that holds a path. */
  spaceAt(path: string): { readonly freeBytes: number; readonly totalBytes: number } {
    const status = new DataView(new ArrayBuffer(c.STATVFS.byteLength));
    this.libc.symbols.statvfs(path, status);
    const member = (offset: number): number => Number(status.getBigUint64(offset, true));
    const block = member(c.STATVFS.f_frsize);
    return { freeBytes: member(c.STATVFS.f_bavail) * block, totalBytes: member(c.STATVFS.f_blocks) * block };
  }

  /** Names in a directory, sorted; none if there is no such directory. */
  listDirectory(path: string): string[] {
    const descriptor = this.openFile(path, "read");
    if (descriptor === undefined) return [];
    const names: string[] = [];
    try {
      const entries = new Uint8Array(65536);
      const view = new DataView(entries.buffer);
      const decoder = new TextDecoder();
      for (;;) {
        const filled = this.libc.symbols.getdents64(this.#sysGetdents64, descriptor, entries, entries.byteLength);
        if (filled === 0) break;
        for (let at = 0; at < filled; at += view.getUint16(at + c.DIRENT64.d_reclen, true)) {
          const start = at + c.DIRENT64.d_name;
          names.push(decoder.decode(entries.subarray(start, entries.indexOf(0, start))));
        }
      }
    } finally {
      this.close(descriptor);
    }
    return names.filter((name) => name !== "." && name !== "..").sort();
  }

  /** The bytes of a small file, e.g. in /proc; undefined if there is none. */
  readFile(path: string): Uint8Array | undefined {
    const descriptor = this.openFile(path, "read");
    if (descriptor === undefined) return undefined;
    let bytes = new Uint8Array(16384);
    let filled = 0;
    try {
      for (;;) {
        const room = bytes.subarray(filled);
        const count = uninterrupted(() => this.libc.symbols.read(descriptor, room, room.byteLength));
        if (count === 0) return bytes.slice(0, filled);
        filled += count;
        if (filled === bytes.byteLength) {
          const longer = new Uint8Array(2 * filled);
          longer.set(bytes);
          bytes = longer;
        }
      }
    } finally {
      this.close(descriptor);
    }
  }

  /** The cores that this thread may run on, ascending. */
  affinity(): number[] {
    const mask = new Uint8Array(128);
    this.libc.symbols.sched_getaffinity(0, mask.byteLength, mask);
    const cores: number[] = [];
    for (let core = 0; core < mask.byteLength * 8; core++) if (bit(mask, core)) cores.push(core);
    return cores;
  }

  /**
   * Sets a variable that C code of this process will see. Set it before a library is loaded that reads it; JavaScript's
   * view of the environment stays as it is.
   */
  setVariable(name: string, value: string): void {
    this.libc.symbols.setenv(name, value, 1);
  }

  /** Takes such a variable back. */
  clearVariable(name: string): void {
    this.libc.symbols.unsetenv(name);
  }

  /** A variable as C code sees it. */
  variable(name: string): string | undefined {
    return this.libc.symbols.getenv(name) ?? undefined;
  }
}

/**
 * Opens the C library of this process.
 *
 * @throws {LibraryNotFoundError} where there is none that is known
 * @throws {UnsupportedError} if this is not Linux
 */
export async function openPosix(options: OpenLibraryOptions = {}): Promise<Posix> {
  return new Posix(await openLibrary(c.LIBC, options));
}

/** Makes a call again as often as a signal interrupts it. */
function uninterrupted<T>(call: () => T): T {
  for (;;) {
    try {
      return call();
    } catch (error) {
      if (!(error instanceof NativeError && error.code === "EINTR")) throw error;
    }
  }
}

function number(name: string): number {
  const value = errnoNumber(name);
  if (value === undefined) throw new UnsupportedError(`Cannot find the number of '${name}'`);
  return value;
}

function bit(mask: Uint8Array, index: number): boolean {
  return (at(mask, index >> 3, "byte of mask") >> (index & 7) & 1) === 1;
}

/**
 * A folder that one run writes in at a time. The holder has a lock of the kernel on the file `.fullyshard.lock` there, which
 * ends with its process however that ends, and the file says who it is. Where there is no such lock, the file itself is one.
 *
 * Note [What a lock can tell]
 * - One host, any runtimes and containers: the kernel's lock decides. A killed holder blocks nobody.
 * - Several hosts on a file system that shares locks (NFS 4, NFS 3 with lockd, Lustre with `flock`, CephFS): the same.
 * - Several hosts on one that has locks but does not share them: the file's text and time decide. A holder writes the file
 *   anew every 20 s while its event loop turns; a file of another host that was written within the last minute is held.
 * - A file system without locks: the file is made exclusively. A holder of this host is looked up by its number and start; one
 *   that cannot be looked up is held until its file has not been written for 10 minutes, or is removed by hand.
 *
 * @module
 */
import { FileError } from "../../errors.ts";
import type { Posix } from "../../ffi/posix.ts";
import { openPosix } from "../../ffi/posix.ts";
import { blockFor } from "../../runtime/clock.ts";
import { type LockableFile, openLockable } from "../../runtime/deno_lock.ts";
import {
  makeDirectory,
  pathKind,
  readTextSync,
  removeEmpty,
  removePath,
  renamePath,
  resolveLinks,
} from "../../runtime/files.ts";
import { createFile, every, inodeOf, modifiedAt, openDescribed, overwriteFile } from "../../runtime/lock_files.ts";
import { isPermitted } from "../../runtime/permissions.ts";
import { platform, runtime } from "../../runtime/processes.ts";
import { describeHolder, type Holder, isOfThisHost, livesHere, ownHolder, parseHolder } from "./lock_holder.ts";

/** The lock file of a folder. */
export const LOCK_FILE = ".fullyshard.lock";

const HEARTBEAT_MS = 20_000;
/** How long the file of another host counts after it was written, where the kernel's lock says that it is free. */
const FRESH_MS = 60_000;
/** The same where there is no lock but the file. */
const FRESH_WITHOUT_LOCK_MS = 600_000;
/** Turns in which a file is removed by its holder between two looks at it. */
const MOST_TRIES = 100;

/** A lock that is held. Disposing it gives the folder up. */
export interface FolderLock extends Disposable {
  readonly folder: string;
}

/** How a folder is locked. */
export interface LockOptions {
  /** Advice at the end of a refusal, e.g. `give each run a folder of its own with '--out'`. */
  readonly remedy?: string;
  /** The lock file. @default `.fullyshard.lock` in the folder */
  readonly file?: string;
  /** Whether folders that were made for it, and are empty when it is given up, are removed. @default false */
  readonly removesEmpty?: boolean;
  /** Whether the kernel's locks are used. @default true, where there are some */
  readonly kernel?: boolean;
}

/** A lock file that was taken. */
interface Taken {
  readonly holder: Holder;
  close(): void;
}

interface Held extends Taken {
  uses: number;
  readonly folder: string;
  readonly firstMade: string | undefined;
  readonly stopHeartbeat: () => void;
}

/** What this thread holds, by the path of the lock file. */
const held = new Map<string, Held>();
let posix: Posix | undefined;

/**
 * Takes a folder, which is made if need be. One that this thread has already is taken once more.
 *
 * @throws {FileError} with code `EBUSY` if another run has it, naming its process, host and time; nothing is changed then
 * @throws {FileError} if the folder cannot be made or written in
 */
export async function lockFolder(folder: string, options: LockOptions = {}): Promise<FolderLock> {
  if (posix === undefined && platform().os === "linux" && isPermitted({ name: "ffi" })) {
    try {
      posix = await openPosix();
    } catch {
      // A C library that cannot be opened leaves Deno's locks, or the file as a lock.
    }
  }
  return lockFolderNow(folder, options);
}

/** Does the same where nobody else has the folder; undefined where another run does. */
export async function lockFolderIfFree(folder: string): Promise<FolderLock | undefined> {
  try {
    return await lockFolder(folder);
  } catch (error) {
    if (error instanceof FileError && error.code === "EBUSY") return undefined;
    throw error;
  }
}

/** {@link lockFolder} at once. Under Bun, where {@link lockFolder} was never called, the file itself is the lock. */
export function lockFolderNow(folder: string, options: LockOptions = {}): FolderLock {
  const made = makeDirectory(folder);
  const firstMade = options.removesEmpty === true ? made : undefined;
  const path = options.file ?? `${resolveLinks(folder)}/${LOCK_FILE}`;
  const own = held.get(path);
  if (own !== undefined && readHolder(path)?.id === own.holder.id) {
    own.uses++;
    return handleOf(path, own);
  }
  try {
    const taken = take(path, folder, options);
    const stopHeartbeat = every(HEARTBEAT_MS, () => write(path, taken.holder));
    const now = { ...taken, uses: 1, folder, firstMade, stopHeartbeat };
    held.set(path, now);
    return handleOf(path, now);
  } catch (error) {
    if (made !== undefined) removeEmpty(folder, made);
    throw error;
  }
}

function handleOf(path: string, own: Held): FolderLock {
  let isOpen = true;
  return {
    folder: own.folder,
    [Symbol.dispose](): void {
      if (!isOpen) return;
      isOpen = false;
      if (--own.uses > 0) return;
      own.stopHeartbeat();
      if (held.get(path) === own) held.delete(path);
      // Removed while it is locked, so that nobody else's file is.
      if (readHolder(path)?.id === own.holder.id) removeIfThere(path);
      own.close();
      if (own.firstMade !== undefined) removeEmpty(own.folder, own.firstMade);
    },
  };
}

/** Takes a lock file by the kernel's lock where that goes, else by making it. */
function take(path: string, folder: string, options: LockOptions): Taken {
  for (let turn = 0; turn < MOST_TRIES; turn++) {
    const taken = options.kernel === false ? undefined : takeByKernel(path, folder, options);
    if (taken === "again") continue;
    if (taken !== undefined) return taken;
    const made = takeByFile(path, folder, options);
    if (made !== undefined) return made;
  }
  throw refusal(folder, undefined, options);
}

/** Undefined where there are no such locks; `again` if the file was removed meanwhile. */
function takeByKernel(path: string, folder: string, options: LockOptions): Taken | "again" | undefined {
  if (!canLock()) return undefined;
  makeLockFile(path, folder, "");
  let file;
  try {
    file = openLockable(path) ?? openForPosix(path);
  } catch (error) {
    if (pathKind(path) === "none") return "again";
    throw error;
  }
  let isTaken = false;
  try {
    const isLocked = tryLock(file);
    if (isLocked === undefined) return undefined;
    const before = readHolder(path);
    if (!isLocked) throw refusal(folder, before ?? namedSoon(path), options);
    if (inodeOf(path) !== file.inode) return "again";
    if (before !== undefined) refuseLiving(path, folder, before, options);
    const holder = ownHolder("kernel", posix);
    write(path, holder);
    isTaken = true;
    return { holder, close: () => file.close() };
  } finally {
    if (!isTaken) file.close();
  }
}

/** The holder of a lock that was taken a moment ago, and is not described yet. */
function namedSoon(path: string): Holder | undefined {
  for (let turn = 0; turn < 20; turn++) {
    blockFor(5);
    const holder = readHolder(path);
    if (holder !== undefined) return holder;
  }
  return undefined;
}

/** Refuses a folder whose kernel lock is free although its holder lives: the lock is not shared, or is none. */
function refuseLiving(path: string, folder: string, before: Holder, options: LockOptions): void {
  if (before.lock === "file" && livesHere(before, posix) === true) throw refusal(folder, before, options);
  if (isOfThisHost(before, posix) !== false) return;
  const seconds = Math.round(ageOf(path) / 1000);
  if (seconds * 1000 >= FRESH_MS) return;
  const remedy = `its last sign of life is ${seconds} s old. If that process has ended, start again ` +
    `${FRESH_MS / 1000 - seconds} s from now, or remove '${path}'`;
  throw refusal(folder, before, { ...options, remedy });
}

/** Makes the file that is the lock; undefined if it must be tried again. */
function takeByFile(path: string, folder: string, options: LockOptions): Taken | undefined {
  const holder = ownHolder("file", posix);
  if (makeLockFile(path, folder, textOf(holder))) return { holder, close: () => {} };
  const before = readHolder(path);
  const lives = before === undefined ? undefined : livesHere(before, posix);
  if (lives === true) throw refusal(folder, before, options);
  if (lives === undefined && ageOf(path) < FRESH_WITHOUT_LOCK_MS) {
    const remedy = `this file system has no locks. If that process has ended, remove '${path}'`;
    throw refusal(folder, before, { ...options, remedy });
  }
  // Two processes may find the same dead holder. The slower one moves the new lock file of the faster one, and puts it back.
  const aside = `${path}.${holder.id}`;
  try {
    renamePath(path, aside);
  } catch {
    return undefined;
  }
  if (readHolder(aside)?.id !== before?.id && pathKind(path) === "none") renamePath(aside, path);
  else removePath(aside);
  return undefined;
}

function canLock(): boolean {
  return runtime().name === "deno" || posix !== undefined;
}

function openForPosix(path: string): LockableFile {
  const { descriptor, inode, close } = openDescribed(path);
  return { inode, close, tryLock: () => posix?.tryLock(descriptor, "exclusive") === true };
}

/** Undefined where the file system has no locks: ENOLCK, EOPNOTSUPP, ENOSYS or what Deno makes of these. */
function tryLock(file: LockableFile): boolean | undefined {
  try {
    return file.tryLock();
  } catch {
    return undefined;
  }
}

/** Makes the lock file; false if there is one. */
function makeLockFile(path: string, folder: string, text: string): boolean {
  try {
    return createFile(path, text);
  } catch (error) {
    if (!(error instanceof FileError)) throw error;
    throw new FileError(folder, "write in", error.detail, error.code, { cause: error });
  }
}

/** Milliseconds since a file was written, by its file system's own clock. */
function ageOf(path: string): number {
  const probe = `${path}.${crypto.randomUUID()}`;
  try {
    createFile(probe, "");
    return modifiedAt(probe) - modifiedAt(path);
  } catch {
    return 0; // nothing is known of a file that cannot be looked at
  } finally {
    removeIfThere(probe);
  }
}

function readHolder(path: string): Holder | undefined {
  try {
    return parseHolder(readTextSync(path));
  } catch {
    return undefined;
  }
}

/** Writes who holds the folder. It is for others to read: a disk that is full, or a file that has gone, stops no run. */
function write(path: string, holder: Holder): void {
  try {
    overwriteFile(path, textOf(holder));
  } catch {
    // The lock holds all the same.
  }
}

function textOf(holder: Holder): string {
  return `${JSON.stringify(holder)}\n`;
}

function removeIfThere(path: string): void {
  try {
    removePath(path);
  } catch {
    // It is only a name by now.
  }
}

function refusal(folder: string, holder: Holder | undefined, { remedy }: LockOptions): FileError {
  const help = remedy ?? "wait until it has ended, or give another folder";
  return new FileError(folder, "write in", `${describeHolder(holder)} is writing there; ${help}`, "EBUSY");
}

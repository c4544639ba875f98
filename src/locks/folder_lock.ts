/**
 * A lock on a folder, so that one run at a time writes in it. The holder has a kernel lock on the file `.fullyshard.lock` there,
 * which ends with its process, and the file names the holder. Where no kernel lock exists, the file itself is the lock.
 *
 * Note [Reach of a lock]
 * - One host, any runtimes and containers: the kernel's lock decides. A killed holder blocks no other run.
 * - Several hosts on a file system that shares locks (NFS 4, NFS 3 with lockd, Lustre with `flock`, CephFS): the same.
 * - Several hosts on one that has locks but does not share them: the file's text and time decide. A holder rewrites the file
 *   every 20 s while its event loop turns; a file of another host that was written within the last minute is held.
 * - A file system without locks: the file is made exclusively. A holder on this host is looked up by its process id and start;
 *   any other holder counts until its file is 10 minutes old, or is removed by hand.
 *
 * @module
 */
import { FileError } from "../errors.ts";
import type { Posix } from "../ffi/posix.ts";
import { openPosix } from "../ffi/posix.ts";
import { blockFor } from "../runtime/clock.ts";
import { type LockableFile, openLockable } from "../runtime/deno_lock.ts";
import {
  makeDirectory,
  pathKind,
  readTextSync,
  removeEmpty,
  removePath,
  renamePath,
  resolveLinks,
} from "../runtime/files.ts";
import { createFile, every, inodeOf, modifiedAt, openDescribed, overwriteFile } from "../runtime/lock_files.ts";
import { isPermitted } from "../runtime/permissions.ts";
import { platform, runtime } from "../runtime/processes.ts";
import {
  describeHolder,
  type Holder,
  isOfThisHost,
  livesHere,
  parseHolder,
  thisProcessAsHolder,
} from "./lock_holder.ts";

export const LOCK_FILE = ".fullyshard.lock";

const HEARTBEAT_MS = 20_000;
/** Age up to which another host's file is held, although the kernel's lock is free. */
const FRESH_MS = 60_000;
/** Age up to which a file is held where no kernel lock exists. */
const FRESH_WITHOUT_LOCK_MS = 600_000;
/** Attempts at a lock file that its holders keep removing. */
const MOST_TRIES = 100;

/** A lock that is held. Disposing it gives the folder up. */
export interface FolderLock extends Disposable {
  readonly folder: string;
}

export interface LockOptions {
  /** Advice that ends a refusal, e.g. `give each run a folder of its own with '--out'`. */
  readonly remedy?: string;
  /** The lock file. @default `.fullyshard.lock` in the folder */
  readonly file?: string;
  /** Removes folders that were made for the lock and are empty when it is given up. @default false */
  readonly removesEmpty?: boolean;
  /** Uses the kernel's locks. @default true, where they exist */
  readonly kernel?: boolean;
}

/** A lock file that this process holds. */
interface OpenLockFile {
  readonly holder: Holder;
  close(): void;
}

interface Held extends OpenLockFile {
  uses: number;
  readonly folder: string;
  readonly firstMade: string | undefined;
  readonly stopHeartbeat: () => void;
}

/** Locks that this thread holds, by the path of the lock file. */
const held = new Map<string, Held>();
let posix: Posix | undefined;

/**
 * Locks a folder, and makes it if it is missing. A folder that this thread holds already is counted once more.
 *
 * @throws {FileError} with code `EBUSY` if another run has it, naming its process, host and time; nothing is changed then
 * @throws {FileError} if the folder cannot be made or written in
 */
export async function lockFolder(folder: string, options: LockOptions = {}): Promise<FolderLock> {
  if (posix === undefined && platform().os === "linux" && isPermitted({ name: "ffi" })) {
    try {
      posix = await openPosix();
    } catch {
      // Without a C library, Deno's locks are used, or the file itself is the lock.
    }
  }
  return lockFolderNow(folder, options);
}

/** Locks a folder as {@link lockFolder} does; undefined if another run holds it. */
export async function lockFolderIfFree(folder: string): Promise<FolderLock | undefined> {
  try {
    return await lockFolder(folder);
  } catch (error) {
    if (error instanceof FileError && error.code === "EBUSY") return undefined;
    throw error;
  }
}

/** The synchronous {@link lockFolder}. Under Bun, until {@link lockFolder} was called once, it uses the file as the lock. */
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
      // The file is removed while it is locked, so that it cannot be another holder's.
      if (readHolder(path)?.id === own.holder.id) removeIfThere(path);
      own.close();
      if (own.firstMade !== undefined) removeEmpty(own.folder, own.firstMade);
    },
  };
}

/** Takes a lock file by the kernel's lock where there is one, else by making the file. */
function take(path: string, folder: string, options: LockOptions): OpenLockFile {
  for (let turn = 0; turn < MOST_TRIES; turn++) {
    const taken = options.kernel === false ? undefined : takeByKernel(path, folder, options);
    if (taken === "again") continue;
    if (taken !== undefined) return taken;
    const made = takeByFile(path, folder, options);
    if (made !== undefined) return made;
  }
  throw refusal(folder, undefined, options);
}

/** Undefined where no kernel lock exists; `again` if the file was removed meanwhile. */
function takeByKernel(path: string, folder: string, options: LockOptions): OpenLockFile | "again" | undefined {
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
    const holder = thisProcessAsHolder("kernel", posix);
    write(path, holder);
    isTaken = true;
    return { holder, close: () => file.close() };
  } finally {
    if (!isTaken) file.close();
  }
}

/** The holder of a lock. Waits a moment if the file does not name it yet, as the lock may just have been taken. */
function namedSoon(path: string): Holder | undefined {
  for (let turn = 0; turn < 20; turn++) {
    blockFor(5);
    const holder = readHolder(path);
    if (holder !== undefined) return holder;
  }
  return undefined;
}

/** Refuses a folder whose kernel lock is free although its holder lives: that lock is not shared, or is a file. */
function refuseLiving(path: string, folder: string, before: Holder, options: LockOptions): void {
  if (before.lock === "file" && livesHere(before, posix) === true) throw refusal(folder, before, options);
  if (isOfThisHost(before, posix) !== false) return;
  const seconds = Math.round(ageOf(path) / 1000);
  if (seconds * 1000 >= FRESH_MS) return;
  const remedy = `its last sign of life is ${seconds} s old. If that process has ended, start again ` +
    `${FRESH_MS / 1000 - seconds} s from now, or remove '${path}'`;
  throw refusal(folder, before, { ...options, remedy });
}

/** Makes the file that is the lock; undefined if the caller should try again. */
function takeByFile(path: string, folder: string, options: LockOptions): OpenLockFile | undefined {
  const holder = thisProcessAsHolder("file", posix);
  if (makeLockFile(path, folder, textOf(holder))) return { holder, close: () => {} };
  const before = readHolder(path) ?? namedSoon(path);
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

/** Undefined where the file system has no locks: ENOLCK, EOPNOTSUPP, ENOSYS or the error that Deno makes of these. */
function tryLock(file: LockableFile): boolean | undefined {
  try {
    return file.tryLock();
  } catch {
    return undefined;
  }
}

/** Makes the lock file; false if it exists. */
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
    return 0; // an unknown age counts as fresh, so that the lock stays held
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

/** Writes the holder's name into the file, for others to read: a full disk, or a missing file, stops no run. */
function write(path: string, holder: Holder): void {
  try {
    overwriteFile(path, textOf(holder));
  } catch {
    // The lock holds without the text.
  }
}

function textOf(holder: Holder): string {
  return `${JSON.stringify(holder)}\n`;
}

function removeIfThere(path: string): void {
  try {
    removePath(path);
  } catch {
    // The file is only a name by now.
  }
}

function refusal(folder: string, holder: Holder | undefined, { remedy }: LockOptions): FileError {
  const help = remedy ?? "wait until it has ended, or give another folder";
  return new FileError(folder, "write in", `${describeHolder(holder)} is writing there; ${help}`, "EBUSY");
}

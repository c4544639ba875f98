/**
 * Files and directories over `node:fs`, which both runtimes have. Every failure is a {@link FileError} with the path, the action,
 * the reason and the remedy. Files that other code relies on are replaced by {@link replaceFile}: written aside, synced, renamed.
 * So a reader sees the old bytes or the new ones, and a failed write keeps the old file.
 *
 * Permissions on Deno: `--allow-read` and `--allow-write` of the paths used. Nothing under /dev, /proc or /sys can be touched by
 * these functions without `--allow-all`; the C library can (`src/ffi/posix.ts`).
 *
 * @module
 */
import * as fs from "node:fs";
import * as path from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { FileError } from "../errors.ts";
import { processEnvironment } from "./env.ts";
import { codeOf, reason } from "./errno.ts";
import { foreignContent, irregular } from "./file_kind.ts";

/**
 * Reads all bytes of a regular file.
 *
 * @throws {FileError} if it does not exist, is not a regular file, or cannot be read
 */
export async function readBytes(file: string): Promise<Uint8Array> {
  requireRegular(file, "read");
  try {
    return await fs.promises.readFile(file);
  } catch (error) {
    throw wrapped(file, "read", error);
  }
}

/** Reads the text of a file, which must be valid UTF-8. */
export async function readText(file: string): Promise<string> {
  return decode(file, await readBytes(file));
}

/** Reads the text of a file synchronously; it must be valid UTF-8. */
export function readTextSync(file: string): string {
  return decode(file, readBytesSync(file));
}

/** The synchronous {@link readBytes}. */
export function readBytesSync(file: string): Uint8Array {
  requireRegular(file, "read");
  return guarded(file, "read", () => fs.readFileSync(file));
}

/**
 * Refuses irregular files before they are opened: opening a named pipe waits for its writer, perhaps forever, and a device may
 * have no end.
 */
function requireRegular(file: string, what: string): void {
  const status = guarded(file, what, () => fs.statSync(file));
  const detail = irregular(status);
  if (detail !== undefined) throw new FileError(file, what, detail, status.isDirectory() ? "EISDIR" : undefined);
}

/** A file open for reading at any offset. */
export interface ReadableFile extends Disposable {
  readonly path: string;
  /** The file's size when it was opened. */
  readonly byteLength: number;
  /**
   * Fills `into` with the bytes from `offset` on.
   *
   * @throws {FileError} if the file ends earlier
   */
  read(offset: number, into: Uint8Array): void;
  /** Reads bytes from `offset` on in pieces that fit in a processor's cache, each valid until the next. */
  pieces(offset: number, byteLength: number): Iterable<Uint8Array>;
  close(): void;
}

export function openReadable(file: string): ReadableFile {
  requireRegular(file, "open");
  const descriptor = guarded(file, "open", () => fs.openSync(file, "r"));
  const status = guarded(file, "open", () => fs.fstatSync(descriptor));
  const close = closing(file, "read", descriptor);
  const read = (offset: number, into: Uint8Array): void =>
    moveAll(into.byteLength, (done, length) => {
      const count = guarded(file, "read", () => fs.readSync(descriptor, into, done, length, offset + done));
      if (count > 0) return count;
      const end = offset + into.byteLength;
      throw new FileError(file, "read", `it ends at byte ${offset + done}, but bytes up to ${end} are wanted`);
    });
  return {
    path: file,
    byteLength: status.size,
    read,
    pieces: (offset, byteLength) => piecesOf(read, offset, byteLength),
    close,
    [Symbol.dispose]: close,
  };
}

/** Reads bytes piece by piece into the same memory. */
function* piecesOf(read: ReadableFile["read"], offset: number, byteLength: number): Generator<Uint8Array> {
  const chunk = new Uint8Array(Math.min(1 << 20, byteLength));
  for (let done = 0; done < byteLength; done += chunk.length) {
    const piece = chunk.subarray(0, Math.min(chunk.length, byteLength - done));
    read(offset + done, piece);
    yield piece;
  }
}

export interface WritableFile extends Disposable {
  /** The file's size when it was opened. */
  readonly byteLength: number;
  /** Writes all of `data` after the last write, or at byte `at`. */
  write(data: Uint8Array | string, at?: number): void;
  /** Waits until the disk has the data. */
  sync(): void;
  close(): void;
}

/** Treatment of an existing file that is opened for writing. */
export type WriteMode = "create" | "append" | "update" | "resume";

const { O_RDWR, O_CREAT } = fs.constants;
const WRITE_FLAGS: Readonly<Record<WriteMode, string | number>> = {
  create: "w",
  append: "a",
  update: "r+",
  resume: O_RDWR | O_CREAT,
};

/**
 * Opens a file for writing. An existing file is emptied (`create`), appended to (`append`), or overwritten in parts; then it must
 * exist (`update`), or is made if it does not (`resume`). Several processes may write ranges of one file.
 */
export function openWritable(file: string, mode: WriteMode): WritableFile {
  const descriptor = guarded(file, "write", () => {
    // Opening a named pipe waits for a reader; a device or a socket answers at once.
    if (fs.existsSync(file) && fs.statSync(file).isFIFO()) requireRegular(file, "write");
    return fs.openSync(file, WRITE_FLAGS[mode]);
  });
  const close = closing(file, "write", descriptor);
  return {
    byteLength: guarded(file, "open", () => fs.fstatSync(descriptor)).size,
    write(data, at): void {
      const bytes = typeof data === "string" ? encoder.encode(data) : data;
      moveAll(bytes.byteLength, (done, length) => {
        try {
          return fs.writeSync(descriptor, bytes, done, length, at === undefined ? null : at + done);
        } catch (error) {
          throw unwritten(file, bytes.byteLength - done, error);
        }
      });
    },
    sync: () => guarded(file, "write", () => fs.fsyncSync(descriptor)),
    close,
    [Symbol.dispose]: close,
  };
}

/**
 * Replaces a file atomically: `data` is written aside, synced and renamed into place. If anything fails, the existing file is
 * unchanged, and nothing is left beside it.
 */
export function replaceFile(file: string, data: string | Uint8Array | Iterable<Uint8Array>): void {
  const aside = path.join(path.dirname(file), `.${path.basename(file)}.${process.pid}.partial`);
  try {
    const writer = openWritable(aside, "create");
    try {
      for (const piece of typeof data === "string" || data instanceof Uint8Array ? [data] : data) writer.write(piece);
      writer.sync();
    } finally {
      writer.close();
    }
    renamePath(aside, file);
  } catch (error) {
    removeQuietly(aside);
    // The user knows `file`, and not the name under which it is written.
    if (error instanceof FileError && error.path === aside) {
      throw new FileError(file, "write", error.detail, error.code, { cause: error.cause });
    }
    throw error;
  }
  syncDirectory(path.dirname(file));
}

/** Renames a file or directory, replacing a file of the new name; both must be on one file system. */
export function renamePath(from: string, to: string): void {
  guarded(to, "rename to", () => fs.renameSync(from, to));
}

/**
 * Makes a directory and its parents; an existing one is unchanged.
 *
 * @returns the first directory that was made; undefined if all existed
 */
export function makeDirectory(directory: string): string | undefined {
  return guarded(directory, "make directory", () => fs.mkdirSync(directory, { recursive: true }));
}

/**
 * Refuses a directory that cannot be made or written in. It is removed again, so that a run which fails later leaves no empty
 * directory.
 */
export function requireWritableDirectory(directory: string): void {
  const first = guarded(directory, "make directory", () => fs.mkdirSync(directory, { recursive: true }));
  try {
    // Deno reports permissions only to programs that may know the user, so a write is tried.
    guarded(directory, "write in", () => fs.rmdirSync(fs.mkdtempSync(path.join(directory, ".try-"))));
  } finally {
    if (first !== undefined) removeEmpty(directory, first);
  }
}

/** Removes a directory and its parents up to `last`, unless one of them is not empty. */
export function removeEmpty(directory: string, last: string): void {
  const [lower, upper] = [path.resolve(directory), path.resolve(last)];
  try {
    fs.rmdirSync(lower);
  } catch {
    return; // another run uses it by now
  }
  if (lower !== upper) removeEmpty(path.dirname(lower), upper);
}

/** Makes a temporary directory that only this user can enter; its name begins with `prefix`. */
export function makeTemporaryDirectory(prefix: string): string {
  const start = temporaryPath(prefix);
  return guarded(start, "make directory", () => fs.mkdtempSync(start));
}

/** Makes a directory that only this user can enter: `prefix` and some letters that no other one has. */
export function makePrivateDirectory(prefix: string): string {
  return guarded(prefix, "make directory", () => fs.mkdtempSync(prefix));
}

/** The path of `name` in the system's temporary directory. */
export function temporaryPath(name: string): string {
  return path.join(processEnvironment().text("TMPDIR") ?? "/tmp", name);
}

/** Removes a file, or a directory with its contents; a missing one is no error. */
export function removePath(target: string): void {
  guarded(target, "remove", () => fs.rmSync(target, { recursive: true, force: true }));
}

/** Removes the remains of a failed write, as far as possible. */
export function removeQuietly(target: string): void {
  try {
    removePath(target);
  } catch {
    // The failure that led here is the one to report.
  }
}

/** Copies a directory with its files, synced. */
export function copyDirectory(from: string, to: string): void {
  guarded(to, "make directory", () => fs.mkdirSync(to, { recursive: true }));
  for (const name of listDirectory(from)) {
    const [source, target] = [`${from}/${name}`, `${to}/${name}`];
    if (pathKind(source) === "directory") copyDirectory(source, target);
    else guarded(target, "write", () => fs.copyFileSync(source, target));
  }
  for (const name of listDirectory(to)) if (pathKind(`${to}/${name}`) === "file") syncDirectory(`${to}/${name}`);
}

/** Waits until the disk has the names in a directory, so that a rename survives a power failure. */
export function syncDirectory(directory: string): void {
  const descriptor = guarded(directory, "sync", () => fs.openSync(directory, "r"));
  try {
    fs.fsyncSync(descriptor);
  } catch {
    // Some file systems do not sync directories. The rename is atomic anyway; its durability depends on them.
  } finally {
    fs.closeSync(descriptor);
  }
}

/** Kind of a path; `none` also if a part of the path is a file. */
export function pathKind(target: string): "file" | "directory" | "other" | "none" {
  try {
    const status = fs.statSync(target);
    return status.isFile() ? "file" : status.isDirectory() ? "directory" : "other";
  } catch (error) {
    const code = codeOf(error);
    // A broken link and a link to itself are treated alike.
    if (code === "ENOENT" || code === "ENOTDIR" || code === "ELOOP") return "none";
    throw wrapped(target, "look at", error);
  }
}

export function pathExists(target: string): boolean {
  return pathKind(target) !== "none";
}

export function fileByteLength(file: string): number {
  return guarded(file, "look at", () => fs.statSync(file)).size;
}

/** Names in a directory, sorted by code unit, so that all ranks and runtimes see one order. */
export function listDirectory(directory: string): string[] {
  return guarded(directory, "list", () => fs.readdirSync(directory)).sort();
}

export function filePath(place: string | URL): string {
  return place instanceof URL ? fileURLToPath(place) : place;
}

/** The path from the root, without `.`, `..` or a `/` at its end. */
export function absolutePath(target: string): string {
  return path.resolve(target);
}

/** Makes a symbolic link, replacing any file of its name. */
export function replaceLink(link: string, target: string): void {
  const aside = `${link}.${process.pid}.partial`;
  removePath(aside);
  guarded(link, "link", () => fs.symlinkSync(target, aside));
  renamePath(aside, link);
}

/** The path with every symbolic link followed. */
export function resolveLinks(target: string): string {
  return guarded(target, "look at", () => fs.realpathSync(target));
}

/** Bytes of a file system: those that an unprivileged user may still write, and the total. */
export interface Space {
  readonly freeBytes: number;
  readonly totalBytes: number;
}

/** Space on the file system that holds a path. */
export function spaceAt(target: string): Space {
  const { bavail, blocks, bsize } = guarded(target, "look at", () => fs.statfsSync(target));
  return { freeBytes: bavail * bsize, totalBytes: blocks * bsize };
}

const encoder = new TextEncoder();

/** Repeats a read or write until all bytes are moved: one system call moves at most 2 GiB. */
function moveAll(byteLength: number, move: (done: number, length: number) => number): void {
  let done = 0;
  while (done < byteLength) done += move(done, Math.min(byteLength - done, 1 << 30));
}

/** Makes a function that closes a file; a second call does nothing. */
function closing(file: string, what: string, descriptor: number): () => void {
  let open = true;
  return () => {
    if (!open) return;
    open = false;
    // A network file system reports a full disk only here.
    guarded(file, what, () => fs.closeSync(descriptor));
  };
}

function decode(file: string, bytes: Uint8Array): string {
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: false }).decode(bytes);
  } catch (cause) {
    const kind = foreignContent(bytes);
    throw new FileError(file, "read", `it is ${kind ?? "not valid UTF-8 text"}`, undefined, { cause });
  }
}

/** Does an action with a file; a failure becomes a {@link FileError} naming the file. `what` is a verb, e.g. `read`. */
export function guarded<T>(target: string, what: string, action: () => T): T {
  try {
    return action();
  } catch (error) {
    if (error instanceof FileError) throw error;
    throw wrapped(target, what, error);
  }
}

function wrapped(target: string, what: string, error: unknown): FileError {
  const code = codeOf(error);
  const isLost = code === "ENOENT" && target.includes("\ufffd");
  const detail = isLost ? "a name that is not UTF-8 opens nothing: rename it (ENOENT)" : reason(code, error);
  return new FileError(target, what, detail, code, { cause: error });
}

/** The error of a failed write; if the disk is full, with the free bytes. */
function unwritten(file: string, byteLength: number, error: unknown): FileError {
  const code = codeOf(error);
  const lacksRoom = code === "ENOSPC" || code === "EDQUOT";
  const room = lacksRoom ? `; ${byteLength} bytes were to be written, ${freeBytesBeside(file)} bytes are free` : "";
  return new FileError(file, "write", `${reason(code, error)}${room}`, code, { cause: error });
}

/** Bytes that may still be written beside a file; 0 if the system does not report them. */
function freeBytesBeside(file: string): number {
  try {
    return spaceAt(path.dirname(file)).freeBytes;
  } catch {
    return 0;
  }
}

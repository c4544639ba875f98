/**
 * File functions for locks of folders, beside `files.ts`.
 *
 * Permissions on Deno: `--allow-read` and `--allow-write` of the files.
 *
 * @module
 */
import * as fs from "node:fs";
import { clearInterval, setInterval } from "node:timers";
import { codeOf } from "./errno.ts";
import { guarded, pathKind } from "./files.ts";

/** A file with the system's own descriptor, which `node:fs` gives under Bun only: for calls of the C library. */
export interface DescribedFile {
  readonly descriptor: number;
  /** Number of the file on its device. */
  readonly inode: string;
  close(): void;
}

/** Opens an existing file for reading and writing, or for reading only if it may not be written. */
export function openDescribed(file: string): DescribedFile {
  const descriptor = guarded(file, "open", () => {
    try {
      return fs.openSync(file, "r+");
    } catch (error) {
      if (codeOf(error) !== "EACCES") throw error;
      return fs.openSync(file, "r");
    }
  });
  return {
    descriptor,
    inode: String(fs.fstatSync(descriptor).ino),
    close: () => guarded(file, "close", () => fs.closeSync(descriptor)),
  };
}

/** Makes a file with a text; false if one of that name exists, which is unchanged. */
export function createFile(file: string, text: string): boolean {
  try {
    guarded(file, "write", () => fs.writeFileSync(file, text, { flag: "wx" }));
    return true;
  } catch (error) {
    if (pathKind(file) === "none") throw error;
    return false;
  }
}

/** Replaces the contents of an existing file by a text. */
export function overwriteFile(file: string, text: string): void {
  guarded(file, "write", () => {
    const descriptor = fs.openSync(file, "r+");
    try {
      fs.writeSync(descriptor, text, 0);
      fs.ftruncateSync(descriptor, new TextEncoder().encode(text).length);
    } finally {
      fs.closeSync(descriptor);
    }
  });
}

/** Inode of a path; undefined if it does not exist. */
export function inodeOf(file: string): string | undefined {
  return pathKind(file) === "none" ? undefined : String(guarded(file, "look at", () => fs.statSync(file)).ino);
}

/** Time of a file's last write, in milliseconds since the epoch, by the clock of its file system. */
export function modifiedAt(file: string): number {
  return guarded(file, "look at", () => fs.statSync(file)).mtimeMs;
}

/** Calls a function at intervals, without keeping the process alive; returns a function that ends it. */
export function every(ms: number, action: () => void): () => void {
  const timer = setInterval(action, ms);
  timer.unref();
  return () => clearInterval(timer);
}

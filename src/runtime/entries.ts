/**
 * Names in a directory with their kinds, including names that are not UTF-8, which the runtimes cannot open, broken links, and
 * special files.
 *
 * Permissions on Deno: `--allow-read` of the paths used.
 *
 * @module
 */
import * as fs from "node:fs";
import { codeOf } from "./errno.ts";
import { guarded } from "./files.ts";

/**
 * Kind of a path, with links followed:
 * - `special`: a pipe, a socket or a device
 * - `nowhere`: a link whose target is missing, or that leads back to itself
 * - `unreadable`: a path that this user may not look at
 */
export type EntryKind = "file" | "directory" | "special" | "nowhere" | "unreadable";

export interface DirectoryEntry {
  /** The name; if it is `unnamed`, with `\xe9` for bytes that are not UTF-8 (Deno has U+FFFD in their place). */
  readonly name: string;
  /** `unnamed`: the name is not UTF-8, so it cannot be opened. */
  readonly kind: EntryKind | "unnamed";
}

/** All names in a directory, sorted by code unit. @throws {FileError} if it cannot be listed */
export function listEntries(directory: string): DirectoryEntry[] {
  const names = guarded(directory, "list", () => fs.readdirSync(directory)).sort();
  if (!names.some((name) => name.includes("\ufffd"))) return names.flatMap((name) => entryOf(directory, name));
  const bytes = guarded(directory, "list", () => fs.readdirSync(directory, { encoding: "buffer" }));
  const seen = new Set<string>();
  return bytes.map(nameOf).sort((a, b) => a.name < b.name ? -1 : 1).flatMap(({ name, isExact }): DirectoryEntry[] => {
    // Deno gives the same text for all names that differ in such bytes only, and cannot open it.
    const isDouble = seen.has(name);
    seen.add(name);
    const isLost = !isExact || (name.includes("\ufffd") && (isDouble || !isThere(`${directory}/${name}`)));
    return isLost ? [{ name, kind: "unnamed" }] : entryOf(directory, name);
  });
}

/** Kind of a path; undefined if it does not exist. */
export function entryKind(target: string): EntryKind | undefined {
  try {
    const status = fs.statSync(target);
    return status.isFile() ? "file" : status.isDirectory() ? "directory" : "special";
  } catch (error) {
    const code = codeOf(error);
    if (code === "EACCES" || code === "EPERM") return "unreadable";
    if (code === "ENOENT" || code === "ENOTDIR" || code === "ELOOP") return isThere(target) ? "nowhere" : undefined;
    return guarded(target, "look at", () => {
      throw error;
    });
  }
}

/** A file's inode and its times in milliseconds since the epoch, in the precision that both runtimes have. */
export function fileTimes(
  file: string,
): { readonly inode: number; readonly modifiedMs: number; readonly changedMs: number } {
  const { ino, mtimeMs, ctimeMs } = guarded(file, "look at", () => fs.statSync(file));
  // Deno gives the time of change in seconds.
  return { inode: ino, modifiedMs: Math.floor(mtimeMs), changedMs: Math.floor(ctimeMs / 1000) * 1000 };
}

function entryOf(directory: string, name: string): DirectoryEntry[] {
  const kind = entryKind(`${directory}/${name}`);
  return kind === undefined ? [] : [{ name, kind }]; // it has gone meanwhile
}

/** True if a name exists, even as a broken link. */
function isThere(target: string): boolean {
  try {
    fs.lstatSync(target);
    return true;
  } catch {
    return false;
  }
}

function nameOf(bytes: Uint8Array): { readonly name: string; readonly isExact: boolean } {
  const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
  const again = new TextEncoder().encode(text);
  const isExact = again.length === bytes.length && again.every((byte, i) => byte === bytes[i]);
  return isExact ? { name: text, isExact } : { name: escapeBytes(bytes), isExact };
}

/** Bytes as text, with `\xe9` for bytes that are not UTF-8. */
function escapeBytes(bytes: Uint8Array): string {
  let text = "";
  for (let at = 0; at < bytes.length;) {
    // The longest character that begins here: at most 4 bytes.
    const length = [1, 2, 3, 4].find((count) => isCharacter(bytes.subarray(at, at + count)));
    const [byte = 0] = bytes.subarray(at);
    text += length === undefined
      ? `\\x${byte.toString(16).padStart(2, "0")}`
      : new TextDecoder().decode(bytes.subarray(at, at + length));
    at += length ?? 1;
  }
  return text;
}

function isCharacter(bytes: Uint8Array): boolean {
  try {
    new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
    return true;
  } catch {
    return false;
  }
}

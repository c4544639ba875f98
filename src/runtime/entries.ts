/**
 * Names in a directory with what each of them is: also names that are not UTF-8, which the runtimes cannot open, links that
 * lead nowhere, and what is neither a file nor a directory.
 *
 * Permissions on Deno: `--allow-read` of the paths used.
 *
 * @module
 */
import * as fs from "node:fs";
import { codeOf } from "./errno.ts";
import { guarded } from "./files.ts";

/**
 * What lies at a path, links followed:
 * - `special`: a pipe, a socket or a device
 * - `nowhere`: a link whose target is not there, or that leads back to itself
 * - `unreadable`: something that this user may not look at
 */
export type EntryKind = "file" | "directory" | "special" | "nowhere" | "unreadable";

/** A name in a directory. */
export interface Entry {
  /** The name; of one that is `unnamed`, with the bytes that are not UTF-8 as `\xe9` (Deno gives U+FFFD in place of them). */
  readonly name: string;
  /** `unnamed`: the name is not UTF-8, so that nothing can be opened by it. */
  readonly kind: EntryKind | "unnamed";
}

/** All names in a directory, sorted by code unit. @throws {FileError} if it cannot be listed */
export function listEntries(directory: string): Entry[] {
  const names = guarded(directory, "list", () => fs.readdirSync(directory)).sort();
  if (!names.some((name) => name.includes("\ufffd"))) return names.flatMap((name) => entryOf(directory, name));
  const bytes = guarded(directory, "list", () => fs.readdirSync(directory, { encoding: "buffer" }));
  const seen = new Set<string>();
  return bytes.map(nameOf).sort((a, b) => a.name < b.name ? -1 : 1).flatMap(({ name, isExact }): Entry[] => {
    // Deno gives the same text for all names that differ in such bytes only, and opens nothing by it.
    const isDouble = seen.has(name);
    seen.add(name);
    const isLost = !isExact || (name.includes("\ufffd") && (isDouble || !isThere(`${directory}/${name}`)));
    return isLost ? [{ name, kind: "unnamed" }] : entryOf(directory, name);
  });
}

/** What lies at a path; undefined if there is nothing of that name. */
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

/** A file's number on its device, and its times in milliseconds since the epoch, in the grain that both runtimes give. */
export function fileTimes(
  file: string,
): { readonly inode: number; readonly modifiedMs: number; readonly changedMs: number } {
  const { ino, mtimeMs, ctimeMs } = guarded(file, "look at", () => fs.statSync(file));
  // Deno tells the time of change in whole seconds.
  return { inode: ino, modifiedMs: Math.floor(mtimeMs), changedMs: Math.floor(ctimeMs / 1000) * 1000 };
}

function entryOf(directory: string, name: string): Entry[] {
  const kind = entryKind(`${directory}/${name}`);
  return kind === undefined ? [] : [{ name, kind }]; // it has gone meanwhile
}

/** Whether a name is there, whatever it leads to. */
function isThere(target: string): boolean {
  try {
    fs.lstatSync(target);
    return true;
  } catch {
    return false;
  }
}

/** A name's text, and whether it is all that the name is. */
function nameOf(bytes: Uint8Array): { readonly name: string; readonly isExact: boolean } {
  const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(bytes);
  const again = new TextEncoder().encode(text);
  const isExact = again.length === bytes.length && again.every((byte, i) => byte === bytes[i]);
  return isExact ? { name: text, isExact } : { name: escapeBytes(bytes), isExact };
}

/** Bytes as text, those that are not UTF-8 as `\xe9`. */
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

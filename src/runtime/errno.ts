/**
 * Reasons of failed system calls: the code, and the remedy in words.
 *
 * @module
 */
import * as os from "node:os";
import { getSystemErrorMap } from "node:util";
import { permissionRemedy } from "./permissions.ts";

const REMEDIES: Readonly<Record<string, string>> = {
  ENOENT: "there is no such file or directory; check the spelling and the working directory",
  ENOTDIR: "a part of the path is a file, not a directory",
  EISDIR: "it is a directory, not a file",
  EEXIST: "something of that name is there already; remove it or choose another name",
  EACCES: "permission denied; choose a path that this user may use",
  EPERM: "the operation is not permitted; choose a path that this user may use",
  EROFS: "the file system is read-only; choose a path on another one",
  ENOSPC: "no space is left on the device; free some, or choose a path on another one",
  EDQUOT: "the disk quota is used up; free some space, or choose a path on another device",
  EFBIG: "the file would be larger than the process' limit (ulimit -f)",
  EMFILE: "too many files are open in this process (ulimit -n)",
  ENFILE: "too many files are open in the system",
  ENAMETOOLONG: "the name is too long",
  ELOOP: "it runs through too many symbolic links",
  ENOTEMPTY: "the directory is not empty",
  EXDEV: "source and target are on different file systems",
};

/** The reason of a failed call, with the remedy. */
export function reason(code: string | undefined, error: unknown): string {
  const known = code === undefined ? undefined : REMEDIES[code];
  if (known !== undefined) return `${known} (${code})`;
  return permissionRemedy(error) ?? (error instanceof Error ? error.message : String(error));
}

/** The system's error code; for Deno's refusals, the name of the error. */
export function codeOf(error: unknown): string | undefined {
  if (!(error instanceof Error)) return undefined;
  if ("code" in error && typeof error.code === "string") return error.code;
  if (error.name === "NotCapable") return error.name;
  // Deno gives some errors (EFBIG, EDQUOT) no code, but the system's number in the text.
  const number = /\(os error (\d+)\)/.exec(error.message)?.[1];
  return number === undefined ? undefined : errnoName(Number(number));
}

/** Names of the system's error numbers. Where two names share a number, the first in the alphabet, such as EAGAIN, is kept. */
let names: ReadonlyMap<number, string> | undefined;

/** The name of an error number, e.g. `ENOSPC`, or undefined if the system has no such number. */
export function errnoName(number: number): string | undefined {
  names ??= new Map(
    Object.entries(os.constants.errno).toSorted(([a], [b]) => a < b ? 1 : -1).map(([name, value]) => [value, name]),
  );
  return names.get(number);
}

/** The number of an error's name, e.g. of `EAGAIN`, or undefined if the system has no such name. */
export function errnoNumber(name: string): number | undefined {
  return Object.entries(os.constants.errno).find(([known]) => known === name)?.[1];
}

/** An error number in words: `ENOSPC (no space left on device)`. */
export function errnoText(number: number): string {
  if (number === 0) return "unknown error (errno was lost)";
  const name = errnoName(number);
  if (name === undefined) return `errno ${number}`;
  const text = getSystemErrorMap().get(-number)?.[1];
  return text === undefined ? name : `${name} (${text})`;
}

/**
 * The programs that started this process: its parent, the parent's parent, and so on, as Linux lists them.
 *
 * Permissions on Deno: `--allow-read`; without it there are none.
 *
 * @module
 */
import process from "node:process";
import { FileError } from "../errors.ts";
import { readTextSync, resolveLinks } from "./files.ts";

/** Longest chain that is followed. */
const MOST = 16;

/** Absolute paths of the programs of this process's ancestors, the nearest first; those that may not be looked at are left out. */
export function ancestorPrograms(): readonly string[] {
  const programs: string[] = [];
  for (let pid = process.ppid, turn = 0; pid > 1 && turn < MOST; turn++) {
    const path = ifReadable(() => resolveLinks(`/proc/${pid}/exe`));
    if (path !== undefined) programs.push(path);
    // The name in brackets may hold anything; the state and the parent follow it.
    const parent = /^.*\) \S (\d+)/s.exec(ifReadable(() => readTextSync(`/proc/${pid}/stat`)) ?? "")?.[1];
    if (parent === undefined) break;
    pid = Number(parent);
  }
  return programs;
}

function ifReadable<T>(action: () => T): T | undefined {
  try {
    return action();
  } catch (error) {
    if (error instanceof FileError) return undefined;
    throw error;
  }
}

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

/** A process that started this one, or an ancestor of it. */
export interface Ancestor {
  readonly pid: number;
  /** Absolute path of its program. */
  readonly program: string;
}

/** This process's ancestors, the nearest first, without processes that this one may not look at. */
export function ancestors(): readonly Ancestor[] {
  const found: Ancestor[] = [];
  for (let pid = process.ppid, turn = 0; pid > 1 && turn < MOST; turn++) {
    const path = ifReadable(() => resolveLinks(`/proc/${pid}/exe`));
    if (path !== undefined) found.push({ pid, program: path });
    // The name in brackets may hold anything; the state and the parent follow it.
    const parent = /^.*\) \S (\d+)/s.exec(ifReadable(() => readTextSync(`/proc/${pid}/stat`)) ?? "")?.[1];
    if (parent === undefined) break;
    pid = Number(parent);
  }
  return found;
}

function ifReadable<T>(action: () => T): T | undefined {
  try {
    return action();
  } catch (error) {
    if (error instanceof FileError) return undefined;
    throw error;
  }
}

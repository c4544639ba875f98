/**
 * The processes of a run that a launcher has started, and signals to them.
 *
 * @module
 */
import type { ChildProcess } from "node:child_process";
import * as fs from "node:fs";
import process from "node:process";

/** A rank's process. */
export interface RankProcess {
  readonly pid: number;
  readonly rank: number;
}

/** The processes of a command. */
export interface RunProcesses {
  readonly launchers: number[];
  /** Ranks, by their first place. */
  readonly ranks: RankProcess[];
  /** Processes that were started without a place; one may have taken one. */
  readonly spares: number[];
}

/** The processes that a command has at present. */
export function processesOf({ pid }: ChildProcess): RunProcesses {
  if (pid === undefined) throw new Error("The run was not started");
  // The command is a script of Node, whose child is the launcher, whose children are ranks and a shell.
  const launchers = childrenOf(pid);
  const children = launchers.flatMap(childrenOf).map((pid) => ({ pid, environ: readQuietly(`/proc/${pid}/environ`) }));
  const ranks = children.flatMap(({ pid, environ }) => {
    const rank = /(?:^|\0)RANK=(\d+)/.exec(environ)?.[1];
    return rank === undefined ? [] : [{ pid, rank: Number(rank) }];
  });
  const spares = children.flatMap(({ pid, environ }) => environ.includes("FULLYSHARD_ELASTIC_SPARE=1") ? [pid] : []);
  return { launchers, ranks, spares };
}

function childrenOf(pid: number): number[] {
  return readQuietly(`/proc/${pid}/task/${pid}/children`).split(" ").filter((part) => part !== "").map(Number);
}

/** The output of a process that may be gone. */
function readQuietly(file: string): string {
  try {
    return fs.readFileSync(file, "utf8");
  } catch {
    return "";
  }
}

/** Signals a process; 0 only asks. @returns whether it is there */
export function signal(pid: number, name: "SIGKILL" | 0): boolean {
  // One that has ended and is not yet waited for is gone.
  if (/^\d+ \(.*\) Z/.test(readQuietly(`/proc/${pid}/stat`))) return false;
  try {
    return process.kill(pid, name);
  } catch {
    return false;
  }
}

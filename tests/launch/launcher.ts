/**
 * Runs the launcher as a user does, as a process under the runtime that runs the test.
 *
 * @module
 */

import { spawn } from "node:child_process";
import { readFileSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";

/** The outcome of a launcher. */
export interface LauncherResult {
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** A launcher that runs. */
export interface Launcher {
  readonly pid: number;
  /** Its standard output so far. */
  stdout(): string;
  /** Resolves when its output matches. */
  until(pattern: RegExp): Promise<void>;
  readonly ended: Promise<LauncherResult>;
}

const isDeno = process.versions["deno"] !== undefined;

/** Path of a script of these tests. */
export function scriptPath(name: string): string {
  return fileURLToPath(new URL(`./scripts/${name}`, import.meta.url));
}

/** Starts the command line. Ranks under Deno get all permissions, because the scripts do more than ranks do. */
export function startCli(args: readonly string[], variables: Readonly<Record<string, string>> = {}): Launcher {
  const main = fileURLToPath(new URL("../../src/cli/main.ts", import.meta.url));
  const [command, ...rest] = args;
  const ranks = isDeno && command === "run" ? ["--deno-args=-A --no-check"] : [];
  const before = isDeno ? ["run", "-A", "--no-check", main] : [main];
  const child = spawn(process.execPath, [...before, ...(command === undefined ? [] : [command]), ...ranks, ...rest], {
    stdio: ["ignore", "pipe", "pipe"],
    env: { ...process.env, NO_COLOR: "1", ...variables },
  });
  const output = { stdout: "", stderr: "" };
  const watchers = new Set<() => void>();
  for (const stream of ["stdout", "stderr"] as const) {
    child[stream].setEncoding("utf8");
    child[stream].on("data", (text: string) => {
      output[stream] += text;
      for (const watcher of watchers) watcher();
    });
  }
  const ended = new Promise<LauncherResult>((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (code) => {
      resolve({ code, ...output });
      for (const watcher of watchers) watcher();
    });
  });
  return {
    pid: child.pid ?? -1,
    stdout: () => output.stdout,
    until: (pattern) =>
      new Promise((resolve, reject) => {
        const watcher = (): void => {
          if (pattern.test(output.stdout)) {
            watchers.delete(watcher);
            resolve();
          } else if (child.exitCode !== null || child.signalCode !== null) {
            reject(new Error(`The launcher ended before its output matched ${pattern}:\n${JSON.stringify(output)}`));
          }
        };
        watchers.add(watcher);
        watcher();
      }),
    ended,
  };
}

/** Runs the command line to its end. */
export function runCli(
  args: readonly string[],
  variables: Readonly<Record<string, string>> = {},
): Promise<LauncherResult> {
  return startCli(args, variables).ended;
}

/** Resolves when no process of these is alive; a process that only awaits its parent's attention is dead. */
export async function untilDead(pids: readonly number[]): Promise<void> {
  const deadline = Date.now() + 10_000;
  while (pids.some(isAlive)) {
    if (Date.now() > deadline) throw new Error(`Processes ${pids.filter(isAlive).join(", ")} are still alive`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}

/** Process ids that a script printed after a word. */
export function pidsAfter(word: string, text: string): number[] {
  return [...text.matchAll(new RegExp(`${word} (\\d+)`, "g"))].map((match) => Number(match[1]));
}

function isAlive(pid: number): boolean {
  try {
    return !/\) Z /.test(readFileSync(`/proc/${pid}/stat`, "utf8"));
  } catch {
    return false;
  }
}

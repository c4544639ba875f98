/**
 * Starts ranks as processes of the runtime that runs the tests, or of the other one.
 *
 * @module
 */
import { spawn } from "node:child_process";
import type { ChildProcess } from "node:child_process";
import { existsSync } from "node:fs";
import process from "node:process";
import { fileURLToPath } from "node:url";

/** A process that was started, and what it has said. */
export interface RankProcess {
  readonly child: ChildProcess;
  /** Everything written so far. */
  stdout: string;
  stderr: string;
  /** Resolves when it has ended: its exit code, or null after a signal. */
  readonly ended: Promise<number | null>;
}

/** The runtime of this process. */
export const RUNTIME: "bun" | "deno" = Reflect.has(globalThis, "Bun") ? "bun" : "deno";

/** The program of a runtime: this process' own, or the pinned one in `node_modules`. */
export function programOf(runtime: "bun" | "deno"): string | undefined {
  if (runtime === RUNTIME) return process.execPath;
  const path = fileURLToPath(new URL(`../../node_modules/.bin/${runtime}`, import.meta.url));
  return existsSync(path) ? path : undefined;
}

/** Starts a script. With `hasLauncher` it has a stream to its launcher as descriptor 3, whose other end is `child.stdio[3]`. */
export function startRank(
  script: URL,
  args: readonly string[],
  options: {
    readonly runtime?: "bun" | "deno";
    readonly env?: Readonly<Record<string, string>>;
    readonly hasLauncher?: boolean;
  } = {},
): RankProcess {
  const runtime = options.runtime ?? RUNTIME;
  const program = programOf(runtime);
  if (program === undefined) throw new Error(`${runtime} is not installed`);
  const lead = runtime === "deno" ? ["run", "-A"] : ["run"];
  const child = spawn(program, [...lead, fileURLToPath(script), ...args], {
    env: { ...process.env, NO_COLOR: "1", ...options.env },
    stdio: ["pipe", "pipe", "pipe", ...options.hasLauncher === true ? ["pipe" as const] : []],
  });
  const rank: RankProcess = {
    child,
    stdout: "",
    stderr: "",
    ended: new Promise((resolve) => child.on("close", (code) => resolve(code))),
  };
  child.stdout?.on("data", (data) => rank.stdout += String(data));
  child.stderr?.on("data", (data) => rank.stderr += String(data));
  return rank;
}

/**
 * What this process is and runs on: runtime, platform, cores, the command that started it. Decisions that follow from
 * it are taken elsewhere, except one: {@link requirePlatform} refuses what is not supported.
 *
 * Permissions on Deno: none for what is here.
 *
 * @module
 */
import * as os from "node:os";
import process from "node:process";
import { UnsupportedError } from "../errors.ts";

/** Name and version of the JavaScript runtime. */
export interface Runtime {
  readonly name: "bun" | "deno" | "node";
  readonly version: string;
}

/** The runtime that this is. */
export function runtime(): Runtime {
  const { bun, deno, node } = process.versions;
  if (bun !== undefined) return { name: "bun", version: bun };
  if (deno !== undefined) return { name: "deno", version: deno };
  return { name: "node", version: node };
}

/** Operating system and architecture. */
export interface Platform {
  /** `linux`, `darwin`, `win32`, … */
  readonly os: string;
  /** `x64`, `arm64`, … */
  readonly arch: string;
}

/** The platform that this is. */
export function platform(): Platform {
  return { os: process.platform, arch: process.arch };
}

/** How far a platform is supported. */
export interface PlatformVerdict extends Platform {
  readonly support: "full" | "partial" | "none";
  /** What there is, in one sentence. */
  readonly detail: string;
}

/** The platforms that are supported. */
export const PLATFORMS: readonly PlatformVerdict[] = [
  { os: "linux", arch: "x64", support: "full", detail: "shared memory between processes, native CPU libraries, CUDA" },
  { os: "linux", arch: "arm64", support: "partial", detail: "WASM math, ranks as Workers of one process, CUDA" },
  { os: "darwin", arch: "arm64", support: "partial", detail: "WASM math, ranks as Workers of one process, Accelerate" },
];

/** How far a platform is supported; that of this process unless given. */
export function platformVerdict(here: Platform = platform()): PlatformVerdict {
  const known = PLATFORMS.find(({ os, arch }) => os === here.os && arch === here.arch);
  const detail = here.os === "win32" ? "run it inside WSL 2, which is Linux" : "not supported";
  return known ?? { ...here, support: "none", detail };
}

/**
 * Refuses a platform that is not supported.
 *
 * @throws {UnsupportedError} naming the table of platforms
 */
export function requirePlatform(here: Platform = platform()): void {
  const verdict = platformVerdict(here);
  if (verdict.support !== "none") return;
  const table = PLATFORMS.map(({ os, arch, support, detail }) => `  ${os} ${arch}: ${support} (${detail})`).join("\n");
  throw new UnsupportedError(
    `Cannot run on ${here.os} ${here.arch}: ${verdict.detail}. Supported platforms:\n${table}\n  Windows: through WSL 2`,
  );
}

/** Logical cores that this process may use, at least 1. */
export function coreCount(): number {
  return Math.max(1, os.availableParallelism());
}

/** Id of this process. */
export function processId(): number {
  return process.pid;
}

/** The program that runs this process: the `bun` or `deno` binary. */
export function executablePath(): string {
  return process.execPath;
}

/** Arguments after the script's name. */
export function scriptArguments(): readonly string[] {
  return process.argv.slice(2);
}

/** The working directory. */
export function workingDirectory(): string {
  return process.cwd();
}

/** Text and facts of one output stream. */
export interface Terminal {
  write(text: string): void;
  /** Whether a person is watching, so that a line may be redrawn. */
  readonly isTerminal: boolean;
  /** Width in characters; 80 when it is not known. */
  readonly columns: () => number;
}

/** Standard output or standard error. */
export function terminal(stream: "stdout" | "stderr"): Terminal {
  const out = process[stream];
  return {
    write: (text): void => {
      out.write(text);
    },
    isTerminal: out.isTTY === true,
    columns: () => out.columns ?? 80,
  };
}

/**
 * Runs an action once when the process ends by itself, by an error, or by `SIGINT`, `SIGTERM`, `SIGHUP`; a second
 * signal is not caught. It must be synchronous and quick, and it is not run when the process is killed: what must not
 * outlive it needs another owner.
 *
 * @param action what to do
 * @returns a function that takes the hook off again
 */
export function onExit(action: () => void): () => void {
  let pending = true;
  const once = (): void => {
    if (!pending) return;
    pending = false;
    action();
  };
  const signals = ["SIGINT", "SIGTERM", "SIGHUP"] as const;
  const listeners = signals.map((signal) => {
    const listener = (): void => {
      remove();
      once();
      // Die of the same signal, so that the parent sees how.
      process.kill(process.pid, signal);
    };
    process.on(signal, listener);
    return [signal, listener] as const;
  });
  const remove = (): void => {
    process.removeListener("exit", once);
    process.removeListener("uncaughtExceptionMonitor", once);
    for (const [signal, listener] of listeners) process.removeListener(signal, listener);
  };
  process.on("exit", once);
  // Deno does not emit "exit" when an error ends the program; this event it emits then, and it changes nothing else.
  if (runtime().name === "deno") process.on("uncaughtExceptionMonitor", once);
  return remove;
}

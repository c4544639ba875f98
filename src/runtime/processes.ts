/**
 * Facts of this process and its machine: runtime, platform, cores, the command that started it. Decisions by them are made
 * elsewhere, except that {@link requirePlatform} and {@link requireSharedMemory} refuse unsupported platforms.
 *
 * Permissions on Deno: none for what is here.
 *
 * @module
 */
import { fstatSync, writeSync } from "node:fs";
import * as os from "node:os";
import process from "node:process";
import { inspect } from "node:util";
import { UnsupportedError } from "../errors.ts";
import { isPermitted } from "./permissions.ts";

/** Name and version of the JavaScript runtime. */
export interface Runtime {
  readonly name: "bun" | "deno" | "node";
  readonly version: string;
}

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

export function platform(): Platform {
  return { os: process.platform, arch: process.arch };
}

export interface PlatformVerdict extends Platform {
  readonly support: "full" | "partial" | "none";
  /** Its abilities, in one sentence. */
  readonly detail: string;
}

/** The supported platforms. */
export const PLATFORMS: readonly PlatformVerdict[] = [
  { os: "linux", arch: "x64", support: "full", detail: "shared memory between processes, native kernels" },
  { os: "linux", arch: "arm64", support: "partial", detail: "native kernels; seen under emulation only" },
  { os: "darwin", arch: "arm64", support: "partial", detail: "WASM math, ranks as Workers of one process" },
];

/** Support of a platform; default this process's. */
export function platformVerdict(here: Platform = platform()): PlatformVerdict {
  const known = PLATFORMS.find(({ os, arch }) => os === here.os && arch === here.arch);
  const detail = here.os === "win32" ? "run it inside WSL 2, which is Linux" : "not supported";
  return known ?? { ...here, support: "none", detail };
}

/** Refuses an unsupported platform. @throws {UnsupportedError} with the table of platforms */
export function requirePlatform(here: Platform = platform()): void {
  const verdict = platformVerdict(here);
  if (verdict.support !== "none") return;
  const table = PLATFORMS.map(({ os, arch, support, detail }) => `  ${os} ${arch}: ${support} (${detail})`).join("\n");
  throw new UnsupportedError(
    `Cannot run on ${here.os} ${here.arch}: ${verdict.detail}. Supported platforms:\n${table}\n  Windows: through WSL 2`,
  );
}

/**
 * Refuses a platform on which processes cannot share memory, so that several cannot be ranks of one run.
 *
 * @throws {UnsupportedError} naming the alternative
 */
export function requireSharedMemory(here: Platform = platform()): void {
  requirePlatform(here);
  if (here.os === "linux") return;
  throw new UnsupportedError(
    `Cannot share memory between processes on ${here.os} ${here.arch}, only on Linux. Run one rank a process, or ` +
      `several ranks as Workers of one process, by 'runLoopback'`,
  );
}

/** Logical cores that this process may use, at least 1. */
export function coreCount(): number {
  return Math.max(1, os.availableParallelism());
}

/** Threads of a rank without a setting, where `ranksOnHost` ranks share the cores. */
export function threadsOfRank(ranksOnHost: number): number {
  return Math.max(1, Math.floor(coreCount() / ranksOnHost));
}

/**
 * Largest number of threads that a rank may ask for: each is a Worker, which takes memory and time to start, and more than the
 * cores only wait.
 */
export function mostThreads(): number {
  return Math.max(64, 4 * coreCount());
}

/** Calls `listener` with an uncaught error, before the runtime reports it and ends the process. */
export function onUncaughtError(listener: (error: unknown) => void): void {
  process.on("uncaughtExceptionMonitor", (error) => {
    // A program with its own listener may go on.
    if (process.listenerCount("uncaughtException") === 0) listener(error);
  });
}

/**
 * Calls `listener` when this process ends by itself, also after an uncaught error, with its exit code. It must do all it does before it
 * returns: no event is handled any more. Deno calls it before it prints an uncaught error: a listener by which the process may be killed
 * calls `printError` before.
 */
export function onExit(listener: (exitCode: number, printError: () => void) => void): void {
  process.once("exit", (exitCode) => listener(exitCode, () => {}));
  // Deno has no "exit" after an uncaught error.
  if (runtime().name !== "deno") return;
  onUncaughtError((error) => listener(1, () => void writeSync(2, `error: Uncaught ${inspect(error)}\n`)));
}

/** True if the C library's exit handlers (`atexit`), which native libraries register, run at the end. Bun ends by `quick_exit`. */
export function runsExitHandlers(): boolean {
  return runtime().name !== "bun";
}

/** Device and number of the file, pipe or socket behind a descriptor; undefined if the descriptor is closed. */
export function descriptorIdentity(descriptor: number): string | undefined {
  try {
    const { dev, ino } = fstatSync(descriptor);
    return `${dev}:${ino}`;
  } catch {
    return undefined;
  }
}

export function processId(): number {
  return process.pid;
}

/** The host's name; undefined where Deno was not given `--allow-sys=hostname`. */
export function hostName(): string | undefined {
  return isPermitted({ name: "sys", kind: "hostname" }) ? os.hostname() : undefined;
}

/** Path of the `bun` or `deno` binary of this process. */
export function executablePath(): string {
  return process.execPath;
}

/** Arguments after the script's name. */
export function scriptArguments(): readonly string[] {
  return process.argv.slice(2);
}

/** This process's script for a message, from the working directory, with `…` for its arguments: `train.ts …`. */
export function scriptCommand(): string {
  const [, script = "train.ts", ...args] = process.argv;
  const folder = `${process.cwd()}/`;
  const path = script.startsWith(folder) ? script.slice(folder.length) : script;
  return args.length === 0 ? path : `${path} …`;
}

export function workingDirectory(): string {
  return process.cwd();
}

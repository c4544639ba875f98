/**
 * Training runs of real processes: through the launcher as a user starts them, or rank by rank.
 *
 * @module
 */
import { type ChildProcess, spawn } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { programOf, RUNTIME } from "../support/rank_process.ts";
import type { TemporaryDirectory } from "../support/temporary.ts";

const pathOf = (relative: string): string => fileURLToPath(new URL(relative, import.meta.url));
const script = pathOf("scripts/tiny.ts");

/** The outcome of a process. */
export interface Ended {
  /** Exit code; null after a signal. */
  readonly code: number | null;
  readonly stdout: string;
  readonly stderr: string;
  readonly seconds: number;
}

/** A process that runs. */
export interface Running {
  readonly child: ChildProcess;
  /** All output so far. */
  output(): string;
  /** Resolves when its output matches; rejects if it ends before. */
  until(pattern: RegExp): Promise<void>;
  readonly ended: Promise<Ended>;
}

/** The options with which a process is started. */
export interface Start {
  readonly env?: Readonly<Record<string, string>>;
  readonly runtime?: "bun" | "deno";
  /** Ranks. @default 2 */
  readonly ranks?: number;
  /** Gives ranks under Deno all permissions: for scripts that do more than a rank does. */
  readonly allowAll?: boolean;
  /** Permissions of ranks under Deno in place of the launcher's choice. */
  readonly denoArgs?: string;
  /** More flags of the launcher. */
  readonly flags?: readonly string[];
  /** The script. @default a small training run */
  readonly script?: string;
  /** A shell command to run before, e.g. `ulimit -f 8`. */
  readonly shell?: string;
  /** Makes the command line that runs a command elsewhere, such as on a host of its own. @default here */
  readonly elsewhere?: (command: readonly string[]) => readonly string[];
}

/** Variables of a launch that a test's own environment might carry. */
const launchNames = [
  "RANK",
  "WORLD_SIZE",
  "LOCAL_RANK",
  "LOCAL_WORLD_SIZE",
  "GROUP_RANK",
  "MASTER_ADDR",
  "MASTER_PORT",
];

let flightDirectory: string | undefined;

/** Folder of the last calls of runs that fail; removed at the end of this process. */
function flights(): string {
  if (flightDirectory !== undefined) return flightDirectory;
  const made = mkdtempSync(`${tmpdir()}/fullyshard-flights-`);
  process.once("exit", () => rmSync(made, { recursive: true, force: true }));
  return flightDirectory = made;
}

function start(command: readonly string[], { env = {}, shell, elsewhere = (line) => line }: Start): Running {
  const line = shell === undefined ? command : ["/bin/sh", "-c", `${shell}; exec "$0" "$@"`, ...command];
  const [program = "", ...args] = elsewhere(line);
  const inherited = Object.entries(process.env).filter(([name]) => {
    return !launchNames.includes(name) && !name.startsWith("FULLYSHARD_");
  });
  const child = spawn(program, args, {
    env: { ...Object.fromEntries(inherited), NO_COLOR: "1", FULLYSHARD_FLIGHT_DIRECTORY: flights(), ...env },
    stdio: ["ignore", "pipe", "pipe"],
  });
  const texts = { stdout: "", stderr: "" };
  const watchers = new Set<() => void>();
  const began = performance.now();
  for (const stream of ["stdout", "stderr"] as const) {
    child[stream]?.setEncoding("utf8");
    child[stream]?.on("data", (text: string) => {
      texts[stream] += text;
      for (const watcher of watchers) watcher();
    });
  }
  const output = (): string => texts.stdout + texts.stderr;
  let isOver = false;
  const ended = new Promise<Ended>((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (code) => {
      isOver = true;
      resolve({ code, ...texts, seconds: (performance.now() - began) / 1000 });
      for (const watcher of watchers) watcher();
    });
  });
  return {
    child,
    output,
    until: (pattern) =>
      new Promise((resolve, reject) => {
        const watcher = (): void => {
          if (pattern.test(output())) {
            watchers.delete(watcher);
            resolve();
          } else if (isOver) reject(new Error(`It ended before its output matched ${pattern}:\n${output()}`));
        };
        watchers.add(watcher);
        watcher();
      }),
    ended,
  };
}

/** Starts all ranks through the launcher. */
export function startRun(args: readonly string[], options: Start = {}): Running {
  const { runtime = RUNTIME, ranks = 2, allowAll = false } = options;
  const denoArgs = options.denoArgs ?? (allowAll ? "-A --no-check" : undefined);
  const bin = pathOf("../../bin/fullyshard.mjs");
  const { flags: more = [] } = options;
  const flags = [
    "--nproc-per-node",
    String(ranks),
    ...more,
    ...denoArgs === undefined ? [] : [`--deno-args=${denoArgs}`],
  ];
  return start(["node", bin, "--runtime", runtime, "run", ...flags, options.script ?? script, ...args], options);
}

/** Runs all ranks through the launcher, to their end. */
export function run(args: readonly string[], options: Start = {}): Promise<Ended> {
  return startRun(args, options).ended;
}

/** Starts one process of the script with no launcher. */
export function startAlone(args: readonly string[], options: Start = {}): Running {
  const { runtime = RUNTIME } = options;
  const program = programOf(runtime) ?? runtime;
  return start(
    [program, ...runtime === "deno" ? ["run", "-A", "--no-check"] : [], options.script ?? script, ...args],
    options,
  );
}

/** Starts ranks one by one with no launcher; `argsOf` gives each its arguments. */
export function startRanks(world: number, argsOf: (rank: number) => readonly string[], options: Start = {}): Running[] {
  const id = crypto.randomUUID();
  return Array.from({ length: world }, (_, rank) => {
    const env = { RANK: String(rank), WORLD_SIZE: String(world), FULLYSHARD_RUN_ID: id, ...options.env };
    return startAlone(argsOf(rank), { ...options, env });
  });
}

/** Flags of a small run in a folder of its own. */
export function flagsIn(folder: TemporaryDirectory, ...more: string[]): string[] {
  const data = folder.write("data/text.txt", text());
  const places = ["--data", data, "--cache", folder.file("cache"), "--out", folder.file("out")];
  const sizes = ["--sequence-length", "16", "--global-batch", "4", "--log-every", "1", "--sample-tokens", "4"];
  // A learning rate that a test gives itself comes last and wins, and so does its '--report'.
  return [
    ...places,
    ...sizes,
    "--no-report",
    "--cpu-math",
    "wasm",
    "--learning-rate",
    "0.01",
    "--warmup-steps",
    "2",
    ...more,
  ];
}

/** The lines of a run's `metrics.jsonl`, as they are. */
export function metricLines(folder: TemporaryDirectory, out = "out"): string[] {
  return readFileSync(folder.file(`${out}/metrics.jsonl`), "utf8").split("\n").filter((line) => line !== "");
}

/** The parts of a line that must be equal in a resumed run: those that do not depend on the machine, as written. */
export function essence(line: string): string {
  return line.replace(/,"tokens_per_second".*/, "");
}

/** Losses by step. */
export function losses(folder: TemporaryDirectory, out = "out"): Map<number, number> {
  return new Map(
    metricLines(folder, out).map((line): [number, number] => {
      const { step, loss }: { step: number; loss: number } = JSON.parse(line);
      return [step, loss];
    }),
  );
}

/** Some kilobytes of text that a small model can learn from. */
function text(): string {
  const words = ["shard", "gather", "reduce", "scatter", "rank", "tensor", "step", "loss"];
  const lines: string[] = [];
  for (let i = 0, seed = 1; i < 400; i++) {
    seed = (seed * 1103515245 + 12345) % 2147483648;
    lines.push(`the ${words[seed % 8]} of ${words[(seed >> 7) % 8]} number ${i} is ${words[(seed >> 13) % 8]}`);
  }
  return lines.join("\n");
}

/**
 * The items of a run on a card, in order. Each is a program, or several, that tell what they saw.
 *
 * @module
 */
import { spawn } from "node:child_process";
import { existsSync, mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { variablesWithRuntimes } from "../../bin/runtimes.mjs";
import { launch, rank, ROOT, runOfItsOwn } from "../process.ts";
import type { JobResult } from "../../scripts/run_tests.ts";
import { ratios } from "./ratios.ts";
import { reasonIn, type Row, rowsIn } from "./row.ts";

/** The options with which an item is run. */
export interface GpuSetting {
  readonly runtime: "bun" | "deno";
  /** `small` is for a double of the libraries. */
  readonly size: "1b" | "small";
  /** The device on which PyTorch computes. */
  readonly peerDevice: "cuda" | "cpu";
  /** When there is no time left, by `performance.now()`. */
  readonly until: number;
  /** Cases of the item that the file says have passed. */
  readonly passed: ReadonlySet<string>;
}

/** One item: it calls `tell` for each thing that it saw. */
export interface GpuItem {
  readonly name: string;
  readonly run: (setting: GpuSetting, tell: (row: Row) => void) => Promise<void>;
}

const SCRIPT = "bench/gpu/item.ts";
const CONFORMANCE = "tests/device/cuda/card_test.ts";

interface Ended {
  readonly output: string;
  readonly errors: string;
  /** The reason of its end, where it did not succeed. */
  readonly reason?: string;
}

/** Runs a program and what it starts, until the time is over. */
function runUntil(
  [program, ...args]: readonly [string, ...string[]],
  until: number,
  variables: Readonly<Record<string, string>> = {},
): Promise<Ended> {
  return new Promise((resolve) => {
    // Programs that start a runtime by name find it, however this one was started.
    const env = { ...variablesWithRuntimes(), ...runOfItsOwn(), ...variables };
    const child = spawn(program, args, { cwd: ROOT, env, stdio: ["ignore", "pipe", "pipe"], detached: true });
    let [output, errors, isLate] = ["", "", false];
    const timer = setTimeout(() => {
      isLate = true;
      if (child.pid !== undefined) process.kill(-child.pid, "SIGKILL");
    }, Math.max(1, until - performance.now()));
    child.stdout.setEncoding("utf8").on("data", (text: string) => output += text);
    child.stderr.setEncoding("utf8").on("data", (text: string) => errors += text);
    child.once("error", (error) => errors += error.message);
    child.once("close", (code) => {
      clearTimeout(timer);
      if (isLate) resolve({ output, errors, reason: "the time was over" });
      else if (code === 0) resolve({ output, errors });
      else resolve({ output, errors, reason: reasonIn(`${output}\n${errors}`) });
    });
  });
}

/** An item that is a program whose rows are told as they are; if it ends otherwise than well, that is a row too. */
async function tellRows(what: string, ended: Promise<Ended>, tell: (row: Row) => void): Promise<void> {
  const { output, reason } = await ended;
  const rows = rowsIn(output);
  for (const row of rows) tell(row);
  if (reason !== undefined) {
    const outcome = reason === "the time was over" || /Cannot |one card/.test(reason) ? "cannot" : "failed";
    tell({ case: what, outcome, reason });
  } else if (rows.length === 0) tell({ case: what, outcome: "failed", reason: "it said nothing" });
}

const own = (name: string): GpuItem => ({
  name,
  run: ({ runtime, size, until }, tell) => tellRows(name, runUntil(rank(runtime, SCRIPT, name, size), until), tell),
});

/** The suite of devices, as tests of a card that is found. */
async function conformance({ runtime, until }: GpuSetting, tell: (row: Row) => void): Promise<void> {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-gpu-`);
  try {
    const report = `${folder}/report.json`;
    const command = rank(runtime, "scripts/run_tests.ts", "--runtime", runtime, "--report", report, CONFORMANCE);
    const { output, errors, reason } = await runUntil(command, until);
    if (!existsSync(report)) {
      const outcome = reason === "the time was over" ? "cannot" : "failed";
      return tell({ case: "suite of devices", outcome, reason: reason ?? reasonIn(output + errors) });
    }
    const results: readonly JobResult[] = JSON.parse(readFileSync(report, "utf8"));
    const outcomes = results.flatMap(({ outcomes }) => outcomes);
    for (const { name, state } of outcomes) {
      if (state === "failed") tell({ case: name, outcome: "failed", reason: "see the test" });
    }
    const count = (wanted: string): number => outcomes.filter(({ state }) => state === wanted).length;
    const figures = { passed: count("passed"), failed: count("failed"), skipped: count("skipped") };
    const outcome = figures.failed > 0 ? "failed" : figures.passed > 0 ? "passed" : "cannot";
    tell({
      case: "suite of devices",
      outcome,
      figures,
      ...outcome === "cannot" ? { reason: "no card was found" } : {},
    });
  } finally {
    rmSync(folder, { recursive: true });
  }
}

/** The path of compute-sanitizer. */
function sanitizerPath(): string | undefined {
  const folders = [
    ...(process.env["PATH"] ?? "").split(":"),
    "/usr/local/cuda/bin",
    "/usr/local/cuda/compute-sanitizer",
  ];
  return folders.filter((folder) => folder !== "").map((folder) => `${folder}/compute-sanitizer`).find((path) =>
    existsSync(path)
  );
}

async function sanitizer({ runtime, until }: GpuSetting, tell: (row: Row) => void): Promise<void> {
  const program = sanitizerPath();
  for (const tool of ["memcheck", "racecheck"]) {
    if (program === undefined) {
      tell({ case: tool, outcome: "cannot", reason: "compute-sanitizer is not installed" });
      continue;
    }
    const job = rank(runtime, SCRIPT, "train", "small");
    const { output, errors, reason } = await runUntil([program, "--tool", tool, ...job], until);
    const summary = /(?:ERROR|RACECHECK) SUMMARY: (\d+)/.exec(output + errors);
    if (summary === null) tell({ case: tool, outcome: "cannot", reason: reason ?? reasonIn(output + errors) });
    else if (summary[1] === "0" && reason === undefined) tell({ case: tool, outcome: "passed" });
    else tell({ case: tool, outcome: "failed", reason: reason ?? summary[0] });
  }
}

/** Two ranks that see the same card and no other. */
function twoRanks({ runtime, size, until }: GpuSetting, tell: (row: Row) => void): Promise<void> {
  const variables = { CUDA_VISIBLE_DEVICES: "0", TWIN_CARDS: "1" };
  return tellRows("two ranks", runUntil(launch(runtime, 2, SCRIPT, "train", size), until, variables), tell);
}

async function measureRatios(setting: GpuSetting, tell: (row: Row) => void): Promise<void> {
  const python = process.env["PEER_PYTHON"];
  if (python !== undefined && python !== "") return await ratios({ ...setting, python }, tell);
  tell({ case: "ratios", outcome: "cannot", reason: "PEER_PYTHON names no Python that has torch" });
}

/** The items, in order. */
export const GPU_ITEMS: readonly GpuItem[] = [
  own("self-check"),
  own("operations"),
  { name: "conformance", run: conformance },
  { name: "sanitizer", run: sanitizer },
  own("cudnn"),
  own("train"),
  own("train-graph"),
  { name: "two-ranks", run: twoRanks },
  { name: "ratios", run: measureRatios },
  own("memory"),
  own("profile"),
];

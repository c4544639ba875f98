/**
 * The test suite under Bun and under Deno, one process for each file, so that a crash is one failure with a name. Files
 * run side by side, and yield to one that measures time. Files that cannot differ between runtimes run under one of both: `--all` runs
 * them under both. The last line is `N passed, N failed`, counted from the runners' own reports; the line before tells how many
 * were skipped.
 *
 * Usage: npm test -- [--runtime bun|deno] [--jobs n] [--all] [--report file] [part of a file name ...]
 *
 * @module
 */

import { spawn } from "node:child_process";
import { mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { availableParallelism, tmpdir } from "node:os";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { describeFlags, type Flag, readFlags } from "../src/config/flags.ts";
import { numberOf } from "../tests/support/name_number.ts";
import { readReport, type TestOutcome } from "./test_report.ts";

/** Longest time for one file; a file that hangs is killed and counts as failed. */
const fileTimeoutMs = 600_000;
/**
 * Tests of ranks that are ended, never come or never answer, which must be told within seconds. They mostly wait, and run one at a time
 * beside the other files, which yield to them: these are started by `nice`.
 */
const timed = [
  ...["checkpoint", "memory", "ranks"].map((subject) => `tests/faults/${subject}_test.ts`),
  ...["hosts", "liveness", "store"].map((subject) => `tests/comm/${subject}_test.ts`),
];
/** Files that take longest, begun first: a core would have nothing to do beside one of them that is begun last. */
const longest = [
  ...["adapters/peft", "axes/context", "axes/example", "axes/ring", "cli/chat", "comm/nccl", "comm/shm"],
  ...["device/cuda/cudnn", "device/cuda/families", "fsdp/memory", "parity/parity", "plans/shard_model"],
  ...["scripts/adapt", "train/evaluate", "train/report", "train/script"],
].map((subject) => `tests/${subject}_test.ts`);

/** Lines in which Deno and Bun tell of a test that passed: they would hide what failed. */
const saysPassed = / \.\.\. ok \(|^\(pass\) /;

type RuntimeName = "bun" | "deno";

/**
 * Folders whose subject depends on the runtime: FFI, sockets, processes, locks, Workers. Without `--all` only these files run under
 * both runtimes; every other file runs under one of both:
 * 1. files in these folders,
 * 2. files that import what calls a runtime ({@link callsRuntime}),
 * 3. files that name `RUNTIME`.
 */
const ofRuntimes = ["cli", "comm", "faults", "ffi", "launch", "locks", "public", "runtime"];
/** An import of a room whose code differs between runtimes, or of a file that calls the runtime's own files and processes. */
const callsRuntime = /from "[./]*src\/(?:(?:ffi|launch|locks)\/|runtime\/(?:env|files|processes|signals)\.ts)/;

/** A file under a runtime. */
interface Place {
  readonly runtime: RuntimeName;
  readonly file: string;
}

interface Job extends Place {
  /** True if the other runtime runs the file too, and half of its shared tests. */
  readonly isShared: boolean;
}

/** The outcomes of a file's tests; a report is a list of these. */
export interface JobResult extends Place {
  readonly outcomes: readonly TestOutcome[];
}

const flags: readonly Flag[] = [
  { name: "runtime", takes: "one", placeholder: "<bun|deno>", description: "Run under this runtime only" },
  {
    name: "jobs",
    takes: "one",
    placeholder: "<n>",
    description: "Files at a time (default: two more than cores, as ranks wait for each other)",
  },
  {
    name: "all",
    takes: "switch",
    description: "All tests under both runtimes, and the cases that take long",
  },
  {
    name: "file",
    takes: "many",
    placeholder: "<part>",
    description: "Run files with this in their names; --file itself may be left out",
  },
  { name: "report", takes: "one", placeholder: "<file>", description: "Write every test's outcome there, as JSON" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

/** Runs of files that have ended, of how many. */
const progress = { ended: 0, all: 0 };

const root = fileURLToPath(new URL("..", import.meta.url));
process.chdir(root);
process.exitCode = await main(process.argv.slice(2));

async function main(argv: readonly string[]): Promise<number> {
  const { uses, problems } = readFlags(flags, argv, { positional: "file" });
  const runtime = uses.get("runtime")?.texts.at(-1);
  const jobs = Number(uses.get("jobs")?.texts.at(-1) ?? availableParallelism() + 2);
  const isWrong = !(jobs >= 1) || (runtime !== undefined && runtime !== "bun" && runtime !== "deno");
  if (problems.length > 0 || isWrong || uses.has("help")) {
    for (const { path, expected, got } of problems) print(`${path}: expected ${expected}, got ${got}`);
    print(`Usage: npm test -- [flags] [part of a file name ...]\n\n${describeFlags(flags)}`);
    return uses.has("help") ? 0 : 2;
  }
  const runtimes: readonly RuntimeName[] = runtime === undefined ? ["bun", "deno"] : [runtime];
  if (uses.has("all")) process.env["FULLYSHARD_TEST_ALL"] = "1";
  const there = readdirSync("tests", { recursive: true, encoding: "utf8" })
    .map((file) => `tests/${file}`)
    .filter((file) => file.endsWith("_test.ts"))
    .sort();
  const parts = uses.get("file")?.texts ?? [""];
  const absent = parts.filter((part) => !there.some((file) => file.includes(part)));
  if (absent.length > 0) {
    print(`expected a part of a test file's name, got ${absent.join(" ")}, which is in none`);
    return 2;
  }
  const files = there.filter((file) => parts.some((part) => file.includes(part)));
  const takesTurns = runtimes.length > 1 && !uses.has("all");
  const all = runtimes.flatMap((name, place) => {
    const own = takesTurns ? files.filter((file) => isOfRuntimes(file) || numberOf(file) % 2 === place) : files;
    return own.map((file) => ({ runtime: name, file, isShared: takesTurns && isOfRuntimes(file) }));
  });
  progress.all = all.length;
  const where = runtimes.length === 1 ? `under ${runtime}` : "under Bun and Deno";
  print(`${all.length} runs of files ${where}, ${jobs} at a time; a line follows when one has ended`);
  const reports = mkdtempSync(`${tmpdir()}/fullyshard-tests-`);
  try {
    const isTimed = ({ file }: Job): boolean => timed.includes(file);
    const others = all.filter((job) => !isTimed(job));
    const isLong = ({ file }: Job): boolean => longest.includes(file);
    const results = (await Promise.all([
      runJobs(all.filter(isTimed), 1, reports),
      runJobs([...others.filter(isLong), ...others.filter((job) => !isLong(job))], jobs, reports),
    ])).flat();
    const report = uses.get("report")?.texts.at(-1);
    if (report !== undefined) writeFileSync(report, JSON.stringify(results));
    return summarize(runtimes, results);
  } finally {
    rmSync(reports, { recursive: true });
  }
}

/** True if a file's tests may end otherwise under the other runtime. */
function isOfRuntimes(file: string): boolean {
  const text = readFileSync(file, "utf8");
  return ofRuntimes.some((folder) => file.startsWith(`tests/${folder}/`)) || callsRuntime.test(text) ||
    /\bRUNTIME\b/.test(text);
}

async function runJobs(jobs: readonly Job[], atOnce: number, reports: string): Promise<JobResult[]> {
  const queue = [...jobs];
  const results: JobResult[] = [];
  const worker = async (): Promise<void> => {
    for (let job = queue.shift(); job !== undefined; job = queue.shift()) results.push(await runJob(job, reports));
  };
  await Promise.all(Array.from({ length: atOnce }, worker));
  return results;
}

async function runJob({ runtime, file, isShared }: Job, reports: string): Promise<JobResult> {
  const report = `${reports}/${runtime}-${file.replaceAll("/", "-")}.xml`;
  const args = runtime === "bun"
    ? ["test", "--timeout", String(fileTimeoutMs), "--reporter=junit", `--reporter-outfile=${report}`, `./${file}`]
    : ["test", "-A", "--no-check", `--junit-path=${report}`, file];
  const program = process.env[`FULLYSHARD_${runtime.toUpperCase()}`] ?? runtime;
  const startedAt = performance.now();
  const lead = timed.includes(file) ? [] : ["nice", "-n", "5"];
  const variables = isShared ? { FULLYSHARD_TEST_SHARED: "1" } : {};
  const { code, output } = await execute([...lead, program, ...args], variables);
  const seconds = ((performance.now() - startedAt) / 1000).toFixed(1);

  const outcomes = [...readReport(readIfThere(report))];
  if (outcomes.length === 0) {
    outcomes.push({ name: `${file} ended with ${code} and no test`, state: "failed", seconds: 0 });
  }
  if (code !== 0 && count(outcomes, "failed") === 0) {
    outcomes.push({ name: `${file} ended with ${code} although no test failed`, state: "failed", seconds: 0 });
  }
  const failed = count(outcomes, "failed");
  const numbers = `${count(outcomes, "passed")} passed${failed > 0 ? `, ${failed} failed` : ""}`;
  const place = `${++progress.ended} of ${progress.all}`;
  print(`${failed > 0 ? "FAILED" : "ok    "} ${runtime.padEnd(4)} ${file}: ${numbers} (${seconds} s) [${place}]`);
  if (failed > 0) {
    const lines = output.split("\n").filter((line) => !saysPassed.test(line));
    print(lines.map((line) => `    ${line}`).join("\n"));
  }
  return { runtime, file, outcomes };
}

/** Runs a program and gives its exit code, or the signal that ended it, with all that it printed. */
function execute(
  [program = "", ...args]: readonly string[],
  variables: Readonly<Record<string, string>>,
): Promise<{ code: number | string; output: string }> {
  return new Promise((resolve) => {
    const child = spawn(program, args, {
      stdio: ["ignore", "pipe", "pipe"],
      env: { ...process.env, ...variables, NO_COLOR: "1" },
      timeout: fileTimeoutMs,
      killSignal: "SIGKILL",
    });
    let output = "";
    const take = (text: string): void => void (output += text);
    child.stdout.setEncoding("utf8").on("data", take);
    child.stderr.setEncoding("utf8").on("data", take);
    child.once("error", (error) => resolve({ code: error.message, output }));
    child.once("close", (code, signal) => resolve({ code: code ?? signal ?? "no exit code", output }));
  });
}

function summarize(runtimes: readonly RuntimeName[], results: readonly JobResult[]): number {
  const of = (runtime: RuntimeName): readonly (TestOutcome & Place)[] =>
    results.filter((result) => result.runtime === runtime)
      .flatMap(({ file, outcomes }) => outcomes.map((outcome) => ({ ...outcome, file, runtime })));
  const all = runtimes.flatMap(of);
  const keyOf = ({ file, name }: TestOutcome & Place): string => `${file}: ${name}`;
  const ran = new Set(all.filter(({ state }) => state !== "skipped").map(keyOf));
  const skipped = all.filter(({ state }) => state === "skipped");
  const nowhere = skipped.filter((one) => !ran.has(keyOf(one)));
  print("");
  for (const outcome of [...nowhere, ...all.filter((one) => one.state === "failed")]) {
    print(`${outcome.state}: ${outcome.runtime} ${outcome.file}: ${outcome.name}`);
  }
  print("\nthe slowest tests:");
  for (const { seconds, file, name } of all.toSorted((a, b) => b.seconds - a.seconds).slice(0, 20)) {
    print(`${seconds.toFixed(1).padStart(6)} s  ${file}: ${name}`);
  }
  print("");
  for (const runtime of runtimes) print(`${runtime}: ${totals(of(runtime))}, ${count(of(runtime), "skipped")} skipped`);
  print(`${skipped.length - nowhere.length} of those skipped ran under the other runtime; with --all both run them`);
  print(`${nowhere.length} skipped`);
  print(totals(all));
  return all.length === 0 || count(all, "failed") > 0 ? 1 : 0;
}

function totals(outcomes: readonly TestOutcome[]): string {
  return `${count(outcomes, "passed")} passed, ${count(outcomes, "failed")} failed`;
}

function count(outcomes: readonly TestOutcome[], state: TestOutcome["state"]): number {
  return outcomes.filter((outcome) => outcome.state === state).length;
}

function readIfThere(file: string): string {
  try {
    return readFileSync(file, "utf8");
  } catch {
    // A runner that crashed leaves none: the caller counts that as a failure.
    return "";
  }
}

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

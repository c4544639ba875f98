/**
 * Checks of CUDA that need no card: `npm run test:cuda [-- --all | --only kernel | --record | --document]`.
 *
 * 1. Every kernel is compiled by NVIDIA's compiler for the oldest kind of card, or with `--all` for every kind, with a table of
 *    what it takes. A text that `compiled.txt` names was compiled without a fault before it was committed; it is compiled again with
 *    `--all` alone.
 * 2. The tables of bindings are compared with what NVIDIA's headers say, and the real libraries are loaded and asked, in both
 *    runtimes: `tests/ffi`.
 *
 * The libraries come from PyPI (`scripts/cuda_libraries.sh`), or from the user's Python environment. Where there are none, what
 * needs them is counted as skipped. The last line is `N passed, N failed`.
 *
 * @module
 */
import { spawn, spawnSync } from "node:child_process";
import { existsSync, writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import process from "node:process";
import { fileURLToPath } from "node:url";
import type { Flag } from "../../src/config/flags.ts";
import { readScriptFlags } from "../flags.ts";
import { nvrtcVersion } from "../../src/device/cuda/compiler.ts";
import { readKernelTexts } from "../../src/device/cuda/texts.ts";
import {
  COMPILED,
  FETCHED,
  findCompiler,
  JOBS,
  jobsOf,
  jobsToDo,
  lineOf,
  type Outcome,
  type Selection,
} from "./compile.ts";
import { documentOf, faultsOf, tableOf } from "./report.ts";

/** The counts of the report. */
interface Counts {
  readonly passed: number;
  readonly failed: number;
  readonly skipped: number;
}

const flags: readonly Flag[] = [
  {
    name: "all",
    takes: "switch",
    description: "Compile for every kind of card, not for the oldest alone",
  },
  {
    name: "only",
    takes: "one",
    placeholder: "<kernel>",
    description: "Compile one kernel for every kind of card, and do nothing else",
  },
  { name: "record", takes: "switch", description: "Compile for the oldest kind of card, and write compiled.txt" },
  {
    name: "document",
    takes: "switch",
    description: "Compile for every kind of card, and write docs/cuda-kernels.md and compiled.txt",
  },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

process.chdir(fileURLToPath(new URL("../..", import.meta.url)));
process.exitCode = await main(process.argv.slice(2));

async function main(argv: readonly string[]): Promise<number> {
  const uses = readScriptFlags(flags, argv);
  if (typeof uses === "number") return uses;
  const only = uses.get("only")?.texts.at(-1);
  if (only !== undefined && JOBS.every(({ kernel }) => kernel !== only)) {
    print(`--only: expected a kernel, got ${only}`);
    return 2;
  }
  fetchLibraries();
  const writes = uses.has("document");
  const recompiles = uses.has("record");
  const selection = { all: uses.has("all") || writes || only !== undefined, recompiles, only };
  const counts = [await compileAll(selection, writes && only === undefined), ...only === undefined ? [runTests()] : []];
  const sum = (of: keyof Counts): number => counts.reduce((total, count) => total + count[of], 0);
  print(`\n${sum("skipped")} skipped\n${sum("passed")} passed, ${sum("failed")} failed`);
  return sum("failed") === 0 ? 0 : 1;
}

/** Fetches NVIDIA's libraries, unless that was done. */
function fetchLibraries(): void {
  if (existsSync(FETCHED)) return;
  print("Fetching NVIDIA's libraries from PyPI (about 250 MB)");
  const { status, stderr } = spawnSync("bash", ["scripts/cuda_libraries.sh"], { encoding: "utf8" });
  if (status !== 0) print(`They cannot be fetched: ${stderr.trim().split("\n").at(-1)}`);
}

/** Compiles kernels side by side, and prints what they take and what is wrong. */
async function compileAll(selection: Selection, writes: boolean): Promise<Counts> {
  const selected = jobsOf(selection);
  const nvrtc = await findCompiler();
  if (nvrtc === undefined) {
    print(`skipped: ${selected.length} compilations of kernels, which need NVRTC (scripts/cuda_libraries.sh)`);
    return { passed: 0, failed: 0, skipped: selected.length };
  }
  const texts = await readKernelTexts();
  const jobs = jobsToDo(nvrtc, texts, selection).length;
  const kept = selected.length - jobs;
  if (kept > 0) {
    print(`${kept} of ${selected.length} texts were compiled before, as scripts/cuda_kernels/compiled.txt says`);
  }
  const shares = Math.min(availableParallelism(), jobs);
  const { all, only, recompiles } = selection;
  const options = [all ? "all" : recompiles ? "few" : "new", ...only === undefined ? [] : [only]];
  const outcomes = (await Promise.all(
    Array.from({ length: shares }, (_, i) => work([`${i}`, `${shares}`, ...options])),
  )).flat();
  if (jobs > 0) { for (const line of tableOf(outcomes)) print(line); }
  const faults = outcomes.map(faultsOf).filter((list) => list.length > 0);
  for (const fault of faults.flat()) print(fault);
  if (writes && outcomes.length === jobs) {
    const date = new Date().toISOString().slice(0, 10);
    writeFileSync("docs/cuda-kernels.md", documentOf(outcomes, `NVRTC ${nvrtcVersion(nvrtc)}`, date));
  }
  const isWhole = only === undefined && outcomes.length === jobs && faults.length === 0;
  if (isWhole && (writes || recompiles)) {
    const lines = jobsOf({ all: false, only }).map((job) => lineOf(nvrtc, texts, job));
    writeFileSync(COMPILED, `${lines.sort().join("\n")}\n`);
  }
  const missing = jobs - outcomes.length;
  if (missing > 0) print(`${missing} compilations ended the compiler's process`);
  return { passed: outcomes.length - faults.length, failed: faults.length + missing, skipped: 0 };
}

/** Runs one share of the jobs in a process of its own; gives those that it finished. */
function work(args: readonly string[]): Promise<Outcome[]> {
  return new Promise((resolve, reject) => {
    const worker = fileURLToPath(new URL("worker.ts", import.meta.url));
    const child = spawn(process.execPath, [worker, ...args], { stdio: ["ignore", "pipe", "inherit"] });
    let text = "";
    child.stdout.setEncoding("utf8").on("data", (part: string) => void (text += part));
    child.once("error", reject);
    child.once("close", () => resolve(text.split("\n").slice(0, -1).map((line) => JSON.parse(line))));
  });
}

/** The tests of bindings and of the real libraries, in both runtimes, which count themselves. */
function runTests(): Counts {
  const files = ["tests/ffi/cuda_facts_test.ts", "tests/ffi/cuda_libraries_test.ts"];
  const { stdout, stderr } = spawnSync(process.execPath, ["scripts/run_tests.ts", ...files], { encoding: "utf8" });
  print(`\n${stdout}${stderr}`.trimEnd());
  const counted = /^(\d+) skipped\n(\d+) passed, (\d+) failed$/m.exec(stdout);
  if (counted === null) return { passed: 0, failed: 1, skipped: 0 };
  const [skipped = NaN, passed = NaN, failed = NaN] = counted.slice(1).map(Number);
  return { passed, failed, skipped };
}

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

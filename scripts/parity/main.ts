/**
 * `npm run parity -- --axes [--json] [--family name] [--mesh part]`: every family over meshes with further axes, see `scripts/axes`; with
 * `--peer transformers` beside its own trainings on the same meshes, by the Python that PEER_PYTHON names.
 *
 * `npm run parity -- [--json] [--all] [--steps n] [--runtime name] [--math name]`: trains a small Llama as DDP, as FSDP in both modes, and on one rank that
 * accumulates the same micro-batches, on 1 to 4 ranks and once on 8, tied and untied, under Bun and under Deno, as Workers
 * and as processes, also with activation checkpointing and offload in combinations that pairs of axes need, or in all; also of both runtimes in one group, and compares every bit of losses, gradient norms and final weights: with
 * WASM math, and with native kernels where they run.
 *
 * @module
 */
import { spawnSync } from "node:child_process";
import { mkdtempSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { describeFlags, type Flag, readFlags } from "../../src/config/flags.ts";
import { type CpuMath, openDevice } from "../../doors/device.ts";
import { LibraryNotFoundError, UnsupportedError } from "../../doors/errors.ts";
import { type AxesItem, axesParity } from "../axes/parity.ts";
import { type PeerItem, transformersParity } from "../axes/transformers_peer.ts";
import { programOf, runProcesses, type RuntimeName } from "./processes.ts";
import { ZOO } from "../zoo/families.ts";
import { combinations, pairwise } from "./axes.ts";
import { TraceFolder } from "./store.ts";
import { caseGroups, compare, type Pair, type WholeTrace } from "./traces.ts";

const flags: readonly Flag[] = [
  { name: "json", takes: "switch", description: "Print nothing but one JSON object" },
  {
    name: "all",
    takes: "switch",
    description:
      "Every combination of plan, reshard mode, checkpointing, offload, precision, accumulation, mesh, resume and dropout, as Workers",
  },
  {
    name: "steps",
    takes: "one",
    placeholder: "<n>",
    description: "Clipped optimizer steps of each case (default: 20)",
  },
  {
    name: "runtime",
    takes: "one",
    placeholder: "bun|deno",
    description: "Only under this one (default: both, and both in one group)",
  },
  {
    name: "math",
    takes: "one",
    placeholder: "wasm|native",
    description: "Only with this one (default: each that runs here)",
  },
  {
    name: "axes",
    takes: "switch",
    description: "Families over meshes with a tensor axis, against one rank, in place of all else",
  },
  { name: "family", takes: "many", placeholder: "<name>", description: "With axes: only this one (default: all)" },
  {
    name: "mesh",
    takes: "one",
    placeholder: "<part of a name>",
    description: "With axes: only these, such as ring, and those whose bits they must have (default: all)",
  },
  {
    name: "peer",
    takes: "one",
    placeholder: "transformers",
    description: "With axes: its own trainings on the same meshes over gloo, and both against float64",
  },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

const root = fileURLToPath(new URL("../..", import.meta.url));

const RUNTIMES: readonly RuntimeName[] = ["bun", "deno"];
const MATHS = ["wasm", "native"] as const satisfies readonly CpuMath[];

/** The extent of the comparison. */
interface Extent {
  readonly steps: number;
  /** True if all combinations of axes are compared, and not only pairs. */
  readonly all: boolean;
  readonly runtimes: readonly RuntimeName[];
}

/** Traces of all cases as Workers of one runtime, in groups that must agree. */
function tracesOf(
  runtime: RuntimeName,
  math: CpuMath,
  { steps, all }: Extent,
  folder: string,
): readonly WholeTrace[][] {
  const name = `${runtime}-${math}`;
  const lead = runtime === "deno" ? ["run", "--allow-all"] : ["run"];
  const args = [...lead, "scripts/parity/run.ts", math, String(steps), folder, name, all ? "all" : "pairs"];
  const { status } = spawnSync(programOf(runtime), args, { cwd: root, stdio: ["ignore", "inherit", "inherit"] });
  if (status !== 0) throw new Error(`${runtime} with ${math} math ended with status ${status}`);
  return new TraceFolder(folder).read(name).map((traces) =>
    traces.map((trace) => ({ ...trace, name: `${runtime} ${math} ${trace.name}` }))
  );
}

/** In each group every case against the first. */
function withinGroups(groups: readonly WholeTrace[][]): Pair[] {
  return groups.flatMap(([reference, ...others]) =>
    reference === undefined ? [] : others.map((other) => compare(reference, other))
  );
}

/** Cases of several ranks as processes, under `runtimes` in turn, against those that Workers made. */
async function acrossProcesses(
  runtimes: readonly RuntimeName[],
  math: CpuMath,
  steps: number,
  workers: readonly WholeTrace[],
): Promise<Pair[]> {
  const pairs: Pair[] = [];
  for (const group of caseGroups(steps, pairwise(combinations()))) {
    const world = Math.max(...group.map(({ ranks }) => ranks));
    const cases = group.filter(({ ranks }) => ranks === world);
    // One rank of each runtime, at least; eight are enough once.
    if (world < runtimes.length || (world > 4 && runtimes.length === 1)) continue;
    for (const trace of await runProcesses(cases, world, runtimes, math)) {
      const twin = workers.find(({ name }) => name.endsWith(` ${math} ${trace.name}`));
      if (twin === undefined) throw new Error(`Workers have no case '${trace.name}'`);
      pairs.push(compare(twin, { ...trace, name: `${runtimes.join(" and ")} ${math} processes ${trace.name}` }));
    }
  }
  return pairs;
}

/** All cases with a math whose bits are the same in both runtimes. */
async function acrossRuntimes(math: CpuMath, extent: Extent, folder: string): Promise<Pair[]> {
  const { runtimes } = extent;
  const [first = [], ...others] = runtimes.map((runtime) => tracesOf(runtime, math, extent, folder));
  const pairs = [first, ...others].flatMap(withinGroups);
  for (const twins of others.map((other) => other.flat())) {
    for (const [i, trace] of first.flat().entries()) {
      const twin = twins[i];
      if (twin === undefined) throw new Error(`the other runtime has no case ${i}`);
      pairs.push(compare(trace, twin));
    }
  }
  for (const together of [...runtimes.map((runtime) => [runtime]), ...others.length === 0 ? [] : [runtimes]]) {
    pairs.push(...await acrossProcesses(together, math, extent.steps, first.flat()));
  }
  return pairs;
}

/** True if a math is available here. */
async function has(cpuMath: CpuMath): Promise<boolean> {
  try {
    (await openDevice("cpu", { cpuMath, memoryBytes: 2 ** 28 })).dispose();
    return true;
  } catch (error) {
    if (error instanceof LibraryNotFoundError || error instanceof UnsupportedError) return false;
    throw error;
  }
}

/** Families over meshes; the last line is one object. */
async function overAxes(families: readonly string[], mesh: string, isJson: boolean): Promise<number> {
  const items: AxesItem[] = [];
  await axesParity(families, mesh, (item) => {
    items.push(item);
    const { mesh, family, tied, status, reason } = item;
    const of = `${status} ${family} ${tied ? "tied" : "untied"} ${mesh}`;
    if (!isJson) process.stdout.write(`${of}${reason === undefined ? "" : `: ${reason}`}\n`);
  });
  const failed = items.filter(({ status }) => status === "fail").length;
  process.stdout.write(`${JSON.stringify({ passed: items.length - failed, failed, items })}\n`);
  return failed === 0 ? 0 : 1;
}

/** The same beside transformers; the last line is one object. */
async function besideTransformers(families: readonly string[], mesh: string, isJson: boolean): Promise<number> {
  const python = process.env["PEER_PYTHON"];
  if (python === undefined) {
    process.stderr.write("PEER_PYTHON: expected a Python that has torch and transformers, got nothing\n");
    return 2;
  }
  const items: PeerItem[] = [];
  await transformersParity(python, families, mesh, (item) => {
    items.push(item);
    const { mesh, family, tied, status, reason, ours, theirs } = item;
    const short = (distance: PeerItem["ours"]): string =>
      Object.values(distance ?? {}).map((value) => value.toExponential(1)).join(" ");
    const of = `${status} ${family} ${tied ? "tied" : "untied"} ${mesh}`;
    const distances = ours === undefined ? "" : `; ours ${short(ours)}, theirs ${short(theirs)}`;
    if (!isJson) process.stdout.write(`${of}${distances}${reason === undefined ? "" : `: ${reason}`}\n`);
  });
  const count = (wanted: PeerItem["status"]): number => items.filter(({ status }) => status === wanted).length;
  const [passed, failed, skipped] = [count("pass"), count("fail"), count("skipped")];
  process.stdout.write(`${JSON.stringify({ passed, failed, skipped, items })}\n`);
  return failed === 0 && passed > 0 ? 0 : 1;
}

async function main(argv: readonly string[]): Promise<number> {
  const { uses, rest, problems } = readFlags(flags, argv, { stopAtPositional: false });
  const steps = Number(uses.get("steps")?.texts.at(-1) ?? 20);
  const asked = (flag: string) => (name: string): boolean => (uses.get(flag)?.texts.at(-1) ?? name) === name;
  const [runtimes, maths] = [RUNTIMES.filter(asked("runtime")), MATHS.filter(asked("math"))];
  const peer = uses.get("peer")?.texts.at(-1);
  const isPeerWrong = peer !== undefined && (peer !== "transformers" || !uses.has("axes"));
  const nothing = runtimes.length === 0 || maths.length === 0 || !(steps >= 1) || isPeerWrong;
  const families = uses.get("family")?.texts ?? [];
  const unknown = families.filter((name) => !ZOO.includes(name));
  for (const name of unknown) process.stderr.write(`--family: expected one of ${ZOO.join(", ")}, got ${name}\n`);
  if (problems.length > 0 || rest.length > 0 || unknown.length > 0 || nothing || uses.has("help")) {
    for (const { path, expected, got } of problems) process.stderr.write(`${path}: expected ${expected}, got ${got}\n`);
    process.stderr.write(`Usage: npm run parity -- [flags]\n\n${describeFlags(flags)}\n`);
    return uses.has("help") ? 0 : 2;
  }
  if (uses.has("axes")) {
    const run = peer === undefined ? overAxes : besideTransformers;
    return await run(families, uses.get("mesh")?.texts.at(-1) ?? "", uses.has("json"));
  }
  const extent = { steps, all: uses.has("all"), runtimes };
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-parity-`);
  try {
    const native = await has("native");
    const pairs: Pair[] = [];
    if (maths.includes("wasm")) pairs.push(...await acrossRuntimes("wasm", extent, folder));
    if (native && maths.includes("native")) pairs.push(...await acrossRuntimes("native", extent, folder));
    const worst = (pair: Pair): number => Math.max(pair.max_ulp_loss, pair.max_ulp_grad_norm, pair.max_ulp_weights);
    const bitIdentical = pairs.length > 0 && pairs.every((pair) => worst(pair) === 0);
    if (!uses.has("json")) {
      for (const pair of pairs) process.stdout.write(`${worst(pair) === 0 ? "same" : "DIFF"} ${pair.a} = ${pair.b}\n`);
      process.stdout.write(native ? "" : "Native kernels do not run here, so their cases were not run\n");
    }
    process.stdout.write(
      `${JSON.stringify({ bit_identical: bitIdentical, native, runtimes, maths, steps, pairs })}\n`,
    );
    return bitIdentical ? 0 : 1;
  } finally {
    rmSync(folder, { recursive: true });
  }
}

process.exitCode = await main(process.argv.slice(2));

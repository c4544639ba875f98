/**
 * `npm run scale -- [--ranks n] [--json]`: the real control plane, store, plans and dry steps of worlds of 64 ranks, four times as
 * many, and so on up to `--ranks` (4,096), in one process. What is counted may grow as N log N at most; times are told. From the
 * largest world it tells what 16,384 ranks would take, and which limit is met first.
 *
 * @module
 */
import { spawnSync } from "node:child_process";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { describeFlags, type Flag, readFlags } from "../../src/config/flags.ts";
import type { ControlFigures } from "./control.ts";
import { limitsOf } from "./limits.ts";
import { measurePlans, type PlanFigures } from "./plans.ts";

/** Ranks of a host. */
const PER_HOST = 8;
const FIRST = 64;
const TARGET = 16_384;

/** Figures that are counted: these alone are judged, as times differ from run to run. */
const COUNTED = [
  "agreement_sent",
  "agreement_received",
  "store_bytes",
  "step_sent",
  "step_received",
  "manifest_bytes",
] as const;

const flags: readonly Flag[] = [
  { name: "ranks", takes: "one", placeholder: "<n>", description: "Ranks of the largest world (default: 4096)" },
  { name: "json", takes: "switch", description: "Print nothing but one JSON object" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

/** Figures of a world. */
type ScaleFigures = { readonly ranks: number } & PlanFigures & ControlFigures;

/** The growth of a figure from a world to a larger one, as a part of that of N log N. */
interface Growth {
  readonly figure: string;
  readonly from: number;
  readonly to: number;
  /** 1 grows as N log N; less grows slower. */
  readonly ratio: number;
}

async function main(argv: readonly string[]): Promise<number> {
  const { uses, problems } = readFlags(flags, argv);
  const most = Number(uses.get("ranks")?.texts.at(-1) ?? 4096);
  const isWrong = !Number.isInteger(most) || most < FIRST;
  if (problems.length > 0 || isWrong || uses.has("help")) {
    for (const { path, expected, got } of problems) print(`${path}: expected ${expected}, got ${got}`);
    if (isWrong) print(`--ranks: expected a whole number from ${FIRST}`);
    print(`Usage: npm run scale -- [flags]\n\n${describeFlags(flags)}`);
    return uses.has("help") ? 0 : 2;
  }
  const isJson = uses.has("json");
  const descriptors = Number(spawnSync("sh", ["-c", "ulimit -n"], { encoding: "utf8" }).stdout);
  const sizes: number[] = [];
  for (let size = FIRST; size < most; size *= 4) sizes.push(size);
  sizes.push(most);
  const worlds: ScaleFigures[] = [];
  const skipped: string[] = [];
  for (const size of sizes) {
    if (2 * size + 64 > descriptors) {
      skipped.push(`${size} ranks in one process need ${2 * size + 64} descriptors, 'ulimit -n' is ${descriptors}`);
      continue;
    }
    const plans = await measurePlans(size, PER_HOST);
    const control = controlOf(size, plans.step_calls);
    const world = rounded({ ranks: size, ...control, ...plans });
    worlds.push(world);
    if (!isJson) print(Object.entries(world).map(([name, value]) => `${name} ${value}`).join(", "));
  }
  const growth = worlds.flatMap((world, index) => growthOf(worlds[index - 1], world));
  const failed = growth.filter(({ ratio }) => ratio > 1);
  const last = worlds.at(-1);
  const extrapolated = last === undefined ? undefined : extrapolate(last);
  const limits = limitsOf(TARGET, descriptors);
  const report = {
    passed: growth.length - failed.length,
    failed: failed.length,
    skipped,
    worlds,
    growth,
    extrapolated,
    limits,
  };
  if (isJson) print(JSON.stringify(report));
  else {
    for (const { figure, from, to, ratio } of failed) {
      print(`${figure} grows faster than N log N: ${ratio} from ${from} to ${to}`);
    }
    for (const reason of skipped) print(`skipped: ${reason}`);
    print(`${TARGET} ranks: ${JSON.stringify(extrapolated)}`);
    for (const { what, ranks, remedy } of limits) print(`${what} allows ${ranks} ranks: ${remedy}`);
    print(`${report.passed} passed, ${failed.length} failed, ${skipped.length} skipped`);
  }
  return failed.length === 0 ? 0 : 1;
}

/** Figures of the control plane, from a process of its own. */
function controlOf(size: number, calls: number): ControlFigures {
  const script = fileURLToPath(new URL("./control_process.ts", import.meta.url));
  const args = [script, size, PER_HOST, calls].map(String);
  const { status, stdout, stderr } = spawnSync(process.execPath, args, { encoding: "utf8" });
  if (status !== 0) throw new Error(`${size} ranks in one process ended with ${status}: ${stderr.slice(-900)}`);
  return JSON.parse(stdout);
}

function rounded(world: ScaleFigures): ScaleFigures {
  const times = Object.entries(world).map(([name, value]) => [name, Math.round(value * 10) / 10]);
  return { ...world, ...Object.fromEntries(times) };
}

const nLogN = (n: number): number => n * Math.log2(n);

function growthOf(small: ScaleFigures | undefined, large: ScaleFigures): readonly Growth[] {
  if (small === undefined) return [];
  return COUNTED.map((figure) => ({
    figure,
    from: small.ranks,
    to: large.ranks,
    ratio: Number(((large[figure] / small[figure]) / (nLogN(large.ranks) / nLogN(small.ranks))).toFixed(3)),
  }));
}

/** Figures of the largest world, grown as N log N. */
function extrapolate(world: ScaleFigures): Readonly<Record<string, number>> {
  const factor = nLogN(TARGET) / nLogN(world.ranks);
  const grown = [...COUNTED, "start_ms", "agreement_ms", "plan_ms", "manifest_ms"] as const;
  return { ranks: TARGET, ...Object.fromEntries(grown.map((name) => [name, Math.round(world[name] * factor)])) };
}

function print(text: string): void {
  process.stdout.write(`${text}\n`);
}

process.exitCode = await main(process.argv.slice(2));

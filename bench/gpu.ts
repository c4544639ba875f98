/**
 * All that is to be seen on a card, by one command: `bun bench/gpu.ts --budget 540 [--resume] [--only item,…]`. Items run in the
 * order in which one relies on another; what each saw is a line of JSON, written to the file before the next begins. An item
 * that cannot run says why in its line, and the others go on. PyTorch is run by the Python that PEER_PYTHON names.
 *
 * @module
 */
import { closeSync, existsSync, fsyncSync, openSync, readFileSync, writeSync } from "node:fs";
import process from "node:process";
import { describeFlags, type Flag, readFlags } from "../src/config/flags.ts";
import { GPU_ITEMS, type GpuSetting } from "./gpu/items.ts";
import type { Row } from "./gpu/row.ts";

const NAMES = GPU_ITEMS.map(({ name }) => name);

const flags: readonly Flag[] = [
  { name: "budget", takes: "one", placeholder: "<seconds>", description: "Longest time of all items (default: 540)" },
  {
    name: "resume",
    takes: "switch",
    description:
      "Leave out items, and ratios, of which the file says that they passed; without it the file must not be there",
  },
  { name: "only", takes: "one", placeholder: "<items>", description: `Some of ${NAMES.join(", ")}, by commas` },
  {
    name: "peer-device",
    takes: "one",
    placeholder: "<cuda|cpu>",
    description: "Where PyTorch computes; by cpu the ratios are tried without a card, and say nothing (default: cuda)",
  },
  { name: "runtime", takes: "one", placeholder: "<bun|deno>", description: "What runs our side (default: bun)" },
  { name: "size", takes: "one", placeholder: "<1b|small>", description: "Sizes of models and kernels (default: 1b)" },
  {
    name: "out",
    takes: "one",
    placeholder: "<file>",
    description: "Where the lines go (default: bench/results/gpu-<date>.jsonl)",
  },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

/** A line of the file. The last one of an item has the item's name as its case. */
interface Line extends Row {
  readonly item: string;
  readonly runtime: string;
  readonly size: string;
  readonly seconds: number;
  readonly date: string;
}

/** For each item the cases that a file says have passed, its own name among them where it has as a whole. */
function passedIn(file: string): ReadonlyMap<string, ReadonlySet<string>> {
  // A run may have ended in the middle of a line.
  const lines = readFileSync(file, "utf8").split("\n").filter((line) => line.endsWith("}"));
  const rows = lines.map((line): Line => JSON.parse(line)).filter(({ outcome }) => outcome === "passed");
  return new Map(
    rows.map(({ item }) => [item, new Set(rows.filter((row) => row.item === item).map((row) => row.case))]),
  );
}

/** The words of the command line that are one of a few; undefined where one is none of them. */
function settingOf(
  runtime: string,
  size: string,
  peerDevice: string,
): Pick<GpuSetting, "runtime" | "size" | "peerDevice"> | undefined {
  if (runtime !== "bun" && runtime !== "deno") return undefined;
  if (size !== "1b" && size !== "small") return undefined;
  if (peerDevice !== "cuda" && peerDevice !== "cpu") return undefined;
  return { runtime, size, peerDevice };
}

async function main(argv: readonly string[]): Promise<number> {
  const { uses, problems } = readFlags(flags, argv);
  const text = (name: string): string | undefined => uses.get(name)?.texts.at(-1);
  const [runtime, size, peerDevice] = [text("runtime") ?? "bun", text("size") ?? "1b", text("peer-device") ?? "cuda"];
  const budget = Number(text("budget") ?? 540);
  const date = new Date().toISOString();
  const file = text("out") ?? `bench/results/gpu-${date.slice(0, 10)}.jsonl`;
  const only = text("only")?.split(",") ?? NAMES;
  const isThere = existsSync(file);
  const wrong = [
    ...problems.map(({ path, expected, got }) => `${path}: expected ${expected}, got ${got}`),
    ...only.filter((name) => !NAMES.includes(name)).map((name) => `--only: expected ${NAMES.join(", ")}, got ${name}`),
    ...runtime !== "bun" && runtime !== "deno" ? [`--runtime: expected bun or deno, got ${runtime}`] : [],
    ...size !== "1b" && size !== "small" ? [`--size: expected 1b or small, got ${size}`] : [],
    ...peerDevice !== "cuda" && peerDevice !== "cpu" ? [`--peer-device: expected cuda or cpu, got ${peerDevice}`] : [],
    ...!(budget > 0) ? [`--budget: expected a positive number of seconds, got ${text("budget")}`] : [],
    ...isThere && !uses.has("resume") ? [`--out: expected a new file, got ${file}; go on with it by --resume`] : [],
  ];
  const setting = settingOf(runtime, size, peerDevice);
  if (wrong.length > 0 || uses.has("help") || setting === undefined) {
    const usage = `Usage: bun bench/gpu.ts [flags]\n\n${describeFlags(flags)}\n`;
    process.stderr.write(uses.has("help") ? usage : `${wrong.join("\n")}\n${usage}`);
    return uses.has("help") ? 0 : 2;
  }
  const until = performance.now() + budget * 1000;
  const passed = isThere ? passedIn(file) : new Map<string, ReadonlySet<string>>();
  const place = openSync(file, "a");
  // The rest of a line that was cut off ends here.
  if (isThere) writeSync(place, "\n");
  let code = 0;
  for (const { name, run } of GPU_ITEMS) {
    const ofItem = passed.get(name) ?? new Set();
    if (!only.includes(name) || ofItem.has(name)) continue;
    const began = performance.now();
    const outcomes: Row["outcome"][] = [];
    const write = (row: Row): void => {
      const seconds = Math.round((performance.now() - began) / 100) / 10;
      const line: Line = { item: name, ...row, runtime, size, seconds, date };
      writeSync(place, `${JSON.stringify(line)}\n`);
      fsyncSync(place);
      const told = row.reason ?? (row.figures === undefined ? "" : JSON.stringify(row.figures));
      process.stdout.write(`${name}: ${row.case} ${row.outcome} ${told}\n`);
    };
    const tell = (row: Row): void => {
      outcomes.push(row.outcome);
      write(row);
    };
    if (until - began < 1000) tell({ case: "start", outcome: "cannot", reason: "the budget is spent" });
    else {
      try {
        await run({ ...setting, until, passed: ofItem }, tell);
      } catch (error) {
        tell({ case: "run", outcome: "failed", reason: error instanceof Error ? error.message : String(error) });
      }
    }
    const outcome = outcomes.includes("failed") ? "failed" : outcomes.includes("cannot") ? "cannot" : "passed";
    write({ case: name, outcome });
    if (outcome === "failed") code = 1;
  }
  closeSync(place);
  return code;
}

process.exitCode = await main(process.argv.slice(2));

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
import { GPU_ITEMS } from "./gpu/items.ts";
import type { Row } from "./gpu/row.ts";

const NAMES = GPU_ITEMS.map(({ name }) => name);

const flags: readonly Flag[] = [
  { name: "budget", takes: "one", placeholder: "<seconds>", description: "Longest time of all items (default: 540)" },
  {
    name: "resume",
    takes: "switch",
    description: "Leave out items of which the file says that they passed; without it the file must not be there",
  },
  { name: "only", takes: "one", placeholder: "<items>", description: `Some of ${NAMES.join(", ")}, by commas` },
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

/** Items that a file says have passed. */
function passedIn(file: string): ReadonlySet<string> {
  // A run may have ended in the middle of a line.
  const lines = readFileSync(file, "utf8").split("\n").filter((line) => line.endsWith("}"));
  const rows = lines.map((line): Line => JSON.parse(line)).filter((line) => line.case === line.item);
  return new Set(rows.filter(({ outcome }) => outcome === "passed").map(({ item }) => item));
}

async function main(argv: readonly string[]): Promise<number> {
  const { uses, problems } = readFlags(flags, argv);
  const text = (name: string): string | undefined => uses.get(name)?.texts.at(-1);
  const [runtime, size, budget] = [text("runtime") ?? "bun", text("size") ?? "1b", Number(text("budget") ?? 540)];
  const date = new Date().toISOString();
  const file = text("out") ?? `bench/results/gpu-${date.slice(0, 10)}.jsonl`;
  const only = text("only")?.split(",") ?? NAMES;
  const isThere = existsSync(file);
  const wrong = [
    ...problems.map(({ path, expected, got }) => `${path}: expected ${expected}, got ${got}`),
    ...only.filter((name) => !NAMES.includes(name)).map((name) => `--only: expected ${NAMES.join(", ")}, got ${name}`),
    ...runtime !== "bun" && runtime !== "deno" ? [`--runtime: expected bun or deno, got ${runtime}`] : [],
    ...size !== "1b" && size !== "small" ? [`--size: expected 1b or small, got ${size}`] : [],
    ...!(budget > 0) ? [`--budget: expected a positive number of seconds, got ${text("budget")}`] : [],
    ...isThere && !uses.has("resume") ? [`--out: expected a new file, got ${file}; go on with it by --resume`] : [],
  ];
  if (wrong.length > 0 || uses.has("help") || (runtime !== "bun" && runtime !== "deno")) {
    const usage = `Usage: bun bench/gpu.ts [flags]\n\n${describeFlags(flags)}\n`;
    process.stderr.write(uses.has("help") ? usage : `${wrong.join("\n")}\n${usage}`);
    return uses.has("help") ? 0 : 2;
  }
  const until = performance.now() + budget * 1000;
  const passed = isThere ? passedIn(file) : new Set<string>();
  const place = openSync(file, "a");
  // What was cut off in a line that is no line ends here.
  if (isThere) writeSync(place, "\n");
  let code = 0;
  for (const { name, run } of GPU_ITEMS) {
    if (!only.includes(name) || passed.has(name)) continue;
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
        await run({ runtime, size, until }, tell);
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

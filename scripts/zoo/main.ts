/**
 * `npm run zoo -- [--json] [--steps n] [--math name] [--runtime bun|deno] [FAMILY ...]`: for each family of models, untied and tied,
 * the units of the automatic plan, training by plans on two ranks against DDP, to the bit, and saving, loading and resuming.
 *
 * @module
 */
import { spawn } from "node:child_process";
import process from "node:process";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { describeFlags, type Flag, readFlags } from "../../src/config/flags.ts";
import { CPU_MATH } from "../../src/device/cpu.ts";
import { programOf, type RuntimeName } from "../parity/processes.ts";
import { ZOO } from "./families.ts";
import type { ZooItem } from "./items.ts";

const flags: readonly Flag[] = [
  { name: "json", takes: "switch", description: "Print nothing but one JSON object" },
  { name: "steps", takes: "one", placeholder: "<n>", description: "Steps of each training", default: "10" },
  {
    name: "math",
    takes: "one",
    placeholder: `<${CPU_MATH.join("|")}>`,
    description: "What calculates",
    default: "wasm",
  },
  { name: "runtime", takes: "one", placeholder: "<bun|deno>", description: "Run under this runtime", default: "bun" },
  { name: "family", takes: "many", placeholder: "<name>", description: "A family; the flag's name may be left out" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

/** Runs families, and calls `tell` with each item. */
async function run(
  runtime: RuntimeName,
  args: readonly string[],
  tell: (item: ZooItem) => void,
): Promise<void> {
  const lead = runtime === "deno" ? ["run", "--allow-all", "--no-check"] : ["run"];
  const root = fileURLToPath(new URL("../..", import.meta.url));
  const child = spawn(programOf(runtime), [...lead, "scripts/zoo/run.ts", ...args], {
    cwd: root,
    stdio: ["ignore", "pipe", "inherit"],
  });
  const ended = new Promise<number | null>((resolve) => child.once("close", resolve));
  for await (const line of createInterface({ input: child.stdout })) tell(JSON.parse(line));
  const code = await ended;
  if (code !== 0) throw new Error(`${runtime} ended with ${code}`);
}

async function main(argv: readonly string[]): Promise<number> {
  const { uses, problems } = readFlags(flags, argv, { positional: "family" });
  const textOf = (name: string): string | undefined => {
    return uses.get(name)?.texts.at(-1) ?? flags.find((flag) => flag.name === name)?.default;
  };
  const [math = "", runtime, steps] = [textOf("math"), textOf("runtime"), Number(textOf("steps"))];
  const families = uses.get("family")?.texts ?? ZOO;
  const wrong = problems.map(({ path, expected, got }) => `${path}: expected ${expected}, got ${got}`);
  for (const name of families) if (!ZOO.includes(name)) wrong.push(`family: expected ${ZOO.join(", ")}, got '${name}'`);
  if (!CPU_MATH.some((name) => name === math)) wrong.push(`--math: expected ${CPU_MATH.join(", ")}, got '${math}'`);
  if (!(Number.isInteger(steps) && steps > 1)) wrong.push(`--steps: expected 2 or more, got ${textOf("steps")}`);
  const isRuntime = runtime === "bun" || runtime === "deno";
  if (!isRuntime) wrong.push(`--runtime: expected bun or deno, got '${runtime}'`);
  if (uses.has("help") || wrong.length > 0 || !isRuntime) {
    if (!uses.has("help")) process.stderr.write(`${wrong.join("\n")}\n`);
    process.stderr.write(`Usage: npm run zoo -- [flags] [family ...]\n\n${describeFlags(flags)}\n`);
    return uses.has("help") ? 0 : 2;
  }
  const items: ZooItem[] = [];
  await run(runtime, [math, String(steps), ...families], (item) => {
    items.push(item);
    if (uses.has("json")) return;
    const { family, tied, test, status, reason } = item;
    const of = tied === null ? "" : tied ? " tied" : " untied";
    process.stdout.write(`${status} ${family}${of} ${test}${reason === undefined ? "" : `: ${reason}`}\n`);
  });
  const failed = items.filter(({ status }) => status === "fail").length;
  process.stdout.write(`${JSON.stringify({ passed: items.length - failed, failed, items })}\n`);
  return failed === 0 ? 0 : 1;
}

process.exitCode = await main(process.argv.slice(2));

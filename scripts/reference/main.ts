/**
 * `npm run reference -- DIRECTORY... [--json] [--math name] [--runtime bun|deno]`: compares what this library computes with
 * directories of what PyTorch does, as `tests/parity/make_reference.py` makes them of any model of transformers, and prints
 * for each quantity the worst deviation, what is allowed, and whether it passes.
 *
 * A number may be off by 2e-5 of the largest of its quantity, or by twice what rounding alone moves it. Scores of padding
 * are left out, as no token sees them. In JSON a deviation that is not finite is null.
 *
 * @module
 */
import { spawnSync } from "node:child_process";
import { resolve } from "node:path";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { describeFlags, type Flag, readFlags } from "../../src/config/flags.ts";
import { CPU_MATH } from "../../src/device/cpu.ts";
import { programOf } from "../parity/processes.ts";

const flags: readonly Flag[] = [
  { name: "json", takes: "switch", description: "Print one JSON object a directory" },
  {
    name: "math",
    takes: "one",
    placeholder: `<${CPU_MATH.join("|")}>`,
    description: "What calculates",
    default: "wasm",
  },
  { name: "runtime", takes: "one", placeholder: "<bun|deno>", description: "Run under this runtime", default: "bun" },
  {
    name: "directory",
    takes: "many",
    placeholder: "<path>",
    description: "A directory; the flag's name may be left out",
  },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

function main(argv: readonly string[]): number {
  const { uses, problems } = readFlags(flags, argv, { positional: "directory" });
  const textOf = (name: string): string | undefined => {
    return uses.get(name)?.texts.at(-1) ?? flags.find((flag) => flag.name === name)?.default;
  };
  const [math = "", runtime] = [textOf("math"), textOf("runtime")];
  const directories = uses.get("directory")?.texts ?? [];
  const found = problems.map(({ path, expected, got }) => `${path}: expected ${expected}, got ${got}`);
  if (directories.length === 0) found.push("expected a directory, got nothing");
  if (!CPU_MATH.some((name) => name === math)) found.push(`--math: expected ${CPU_MATH.join(", ")}, got '${math}'`);
  const isRuntime = runtime === "bun" || runtime === "deno";
  if (!isRuntime) found.push(`--runtime: expected bun or deno, got '${runtime}'`);
  if (uses.has("help") || found.length > 0 || !isRuntime) {
    if (!uses.has("help")) process.stderr.write(`${found.join("\n")}\n`);
    process.stderr.write(`Usage: npm run reference -- [flags] <directory> ...\n\n${describeFlags(flags)}\n`);
    return uses.has("help") ? 0 : 2;
  }
  const lead = runtime === "deno" ? ["run", "--allow-all", "--no-check"] : ["run"];
  const form = uses.has("json") ? "json" : "text";
  const args = [...lead, "scripts/reference/run.ts", math, form];
  // Paths are relative to where npm was called, which may be a folder of the project.
  const from = process.env["INIT_CWD"] ?? process.cwd();
  const paths = directories.map((directory) => resolve(from, directory));
  const cwd = fileURLToPath(new URL("../..", import.meta.url));
  return spawnSync(programOf(runtime), [...args, ...paths], { cwd, stdio: "inherit" }).status ?? 1;
}

process.exitCode = main(process.argv.slice(2));

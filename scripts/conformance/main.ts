/**
 * `npm run conformance -- [--json] [--runtime bun|deno]`: runs the tests that show each item of PyTorch's own tests, under both
 * runtimes, and says which items pass, fail, or have no meaning here. The last line is one JSON object.
 *
 * @module
 */
import { spawnSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import process from "node:process";
import { fileURLToPath } from "node:url";
import { describeFlags, type Flag, readFlags } from "../../src/config/flags.ts";
import type { JobResult } from "../run_tests.ts";
import { ITEMS } from "./items.ts";
import { judge, type Verdict } from "./judge.ts";

const flags: readonly Flag[] = [
  { name: "json", takes: "switch", description: "Print nothing but one JSON object" },
  { name: "runtime", takes: "one", placeholder: "<bun|deno>", description: "Run under this runtime only" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

/** Runs all tests that some item names. */
function runTests(runtimes: readonly string[], json: boolean): readonly JobResult[] {
  const files = new Set(ITEMS.flatMap((item) => "shownBy" in item ? item.shownBy.map(([file]) => file) : []));
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-conformance-`);
  try {
    return runtimes.flatMap((runtime): readonly JobResult[] => {
      const report = `${folder}/${runtime}.json`;
      const args = [
        "scripts/runtime.mjs",
        "bun",
        "scripts/run_tests.ts",
        "--all",
        "--runtime",
        runtime,
        "--report",
        report,
      ];
      const root = fileURLToPath(new URL("../..", import.meta.url));
      spawnSync("node", [...args, ...files], { cwd: root, stdio: ["ignore", json ? "ignore" : "inherit", "inherit"] });
      return JSON.parse(readFileSync(report, "utf8"));
    });
  } finally {
    rmSync(folder, { recursive: true });
  }
}

function main(argv: readonly string[]): number {
  const { uses, rest, problems } = readFlags(flags, argv, { stopAtPositional: false });
  const runtime = uses.get("runtime")?.texts.at(-1);
  const isWrong = runtime !== undefined && runtime !== "bun" && runtime !== "deno";
  if (problems.length > 0 || rest.length > 0 || isWrong || uses.has("help")) {
    for (const { path, expected, got } of problems) process.stderr.write(`${path}: expected ${expected}, got ${got}\n`);
    process.stderr.write(`Usage: npm run conformance -- [flags]\n\n${describeFlags(flags)}\n`);
    return uses.has("help") ? 0 : 2;
  }
  const runtimes = runtime === undefined ? ["bun", "deno"] : [runtime];
  const results = runTests(runtimes, uses.has("json"));
  const items = ITEMS.map((item) => judge(item, runtimes, results));
  const count = (status: Verdict["status"]): number => items.filter((item) => item.status === status).length;
  if (!uses.has("json")) {
    for (const { name, status, reason } of items) process.stdout.write(`${status.padEnd(14)} ${name}: ${reason}\n`);
  }
  const [passed, failed] = [count("pass"), count("fail")];
  process.stdout.write(`${JSON.stringify({ passed, failed, not_applicable: count("not applicable"), items })}\n`);
  return failed === 0 ? 0 : 1;
}

process.exitCode = main(process.argv.slice(2));

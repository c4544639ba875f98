/**
 * `npm run faults -- [--json] [--kills <n>] [--only <text>]`: does each fault to a training run, and says what named it, how long
 * the run took to end, and what was lost. The last line is one JSON object; the exit code is 1 if anything is wrong.
 *
 * @module
 */
import process from "node:process";
import { describeFlags, type Flag, readFlags } from "../../src/config/flags.ts";
import { faults } from "./faults.ts";
import type { FaultReport } from "./report.ts";

/** Kills of a whole table: some minutes. */
const KILLS = 200;

const FLAGS: readonly Flag[] = [
  { name: "json", takes: "switch", description: "Print nothing but one JSON object" },
  { name: "kills", takes: "one", placeholder: "<n>", description: `Kills at random moments (default: ${KILLS})` },
  { name: "only", takes: "one", placeholder: "<text>", description: "Do faults whose names hold this text" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

async function main(argv: readonly string[]): Promise<number> {
  const { uses, rest, problems } = readFlags(FLAGS, argv, { stopAtPositional: false });
  const kills = Number(uses.get("kills")?.texts.at(-1) ?? KILLS);
  if (problems.length > 0 || rest.length > 0 || !(Number.isInteger(kills) && kills > 0) || uses.has("help")) {
    for (const { path, expected, got } of problems) process.stderr.write(`${path}: expected ${expected}, got ${got}\n`);
    process.stderr.write(`Usage: npm run faults -- [flags]\n\n${describeFlags(FLAGS)}\n`);
    return uses.has("help") ? 0 : 2;
  }
  const only = uses.get("only")?.texts.at(-1) ?? "";
  const reports: FaultReport[] = [];
  for (const fault of faults(kills).filter(({ name }) => name.includes(only))) {
    const report = await fault.run();
    reports.push(report);
    if (uses.has("json")) continue;
    const { name, named, ended_in_seconds: seconds, lost, wrong } = report;
    const verdict = wrong.length === 0 ? "ok   " : "wrong";
    process.stdout.write(`${verdict} ${name}: ended in ${seconds} s, lost ${lost.length}: ${named}\n`);
    for (const line of wrong) process.stdout.write(`      ${line}\n`);
  }
  process.stdout.write(`${JSON.stringify({ faults: reports })}\n`);
  return reports.every(({ wrong }) => wrong.length === 0) ? 0 : 1;
}

process.exitCode = await main(process.argv.slice(2));

/**
 * `npm run elastic -- [--json] [--kills <n>] [--seed <n>] [--runtime <name>] [--saves] [--hosts]`: kills ranks of a run that goes on, with
 * `--hosts` whole hosts too, and compares it with the same numbers of ranks resumed by hand. The last line is one JSON object; the exit
 * code is 1 if anything is wrong.
 *
 * @module
 */
import process from "node:process";
import { describeFlags, type Flag, readFlags } from "../../src/config/flags.ts";
import { hostKillsObstacle, killHosts } from "./host_kills.ts";
import { killRanks } from "./kills.ts";

/** Kills: about two minutes, and with `--all` some hours. */
const [KILLS, ALL_KILLS] = [30, 1000] as const;

/** Kills of a run over hosts. */
const HOST_KILLS = 10;

/** Longest median times from a kill to the next step, on one host and over hosts. */
const [LIMIT_SECONDS, HOSTS_LIMIT_SECONDS] = [2, 3] as const;

const FLAGS: readonly Flag[] = [
  { name: "json", takes: "switch", description: "Print nothing but one JSON object" },
  { name: "kills", takes: "one", placeholder: "<n>", description: `Kills (default: ${KILLS}, of hosts ${HOST_KILLS})` },
  { name: "all", takes: "switch", description: `${ALL_KILLS} kills` },
  {
    name: "seed",
    takes: "one",
    placeholder: "<n>",
    description: "Decides which ranks are killed, and when (default: 0)",
  },
  { name: "runtime", takes: "one", placeholder: "<bun|deno>", description: "Runtime of the ranks (default: bun)" },
  { name: "saves", takes: "switch", description: "Workers write a checkpoint after each step too" },
  { name: "hosts", takes: "switch", description: "Three hosts out of network namespaces, killed too; needs root" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

async function main(argv: readonly string[]): Promise<number> {
  const { uses, rest, problems } = readFlags(FLAGS, argv, { stopAtPositional: false });
  const text = (name: string): string | undefined => uses.get(name)?.texts.at(-1);
  const onHosts = uses.has("hosts");
  const kills = Number(text("kills") ?? (uses.has("all") ? ALL_KILLS : onHosts ? HOST_KILLS : KILLS));
  const seed = Number(text("seed") ?? 0);
  const runtime = text("runtime") ?? "bun";
  const isWrong = ![kills - 1, seed].every((number) => Number.isInteger(number) && number >= 0);
  if (
    problems.length > 0 || rest.length > 0 || isWrong || (runtime !== "bun" && runtime !== "deno") || uses.has("help")
  ) {
    for (const { path, expected, got } of problems) process.stderr.write(`${path}: expected ${expected}, got ${got}\n`);
    process.stderr.write(`Usage: npm run elastic -- [flags]\n\n${describeFlags(FLAGS)}\n`);
    return uses.has("help") ? 0 : 2;
  }
  const obstacle = onHosts ? hostKillsObstacle() : undefined;
  if (obstacle !== undefined) {
    process.stderr.write(`--hosts ${obstacle}\n`);
    return 2;
  }
  const report = onHosts
    ? await killHosts(kills, seed, runtime)
    : await killRanks(kills, seed, runtime, uses.has("saves"));
  const { steps, starts, restart_seconds: { median } } = report;
  const limit = onHosts ? HOSTS_LIMIT_SECONDS : LIMIT_SECONDS;
  const wrong = [...report.wrong, ...median < limit ? [] : [`the median restart took ${median} s`]];
  if (!uses.has("json")) {
    const outcome = wrong.length === 0 ? "as resumed by hand, bit for bit" : wrong.join("\n");
    process.stdout.write(`${steps} steps, ${starts} starts, restarts of ${median} s in the middle: ${outcome}\n`);
  }
  process.stdout.write(`${JSON.stringify({ ...report, wrong })}\n`);
  return wrong.length === 0 ? 0 : 1;
}

process.exitCode = await main(process.argv.slice(2));

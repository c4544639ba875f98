/**
 * `npm run bench -- <subject> [--peer torch|one-thread] [--threads n] [--runtime bun|deno] [--rounds n] [--json]`: times us and,
 * when asked, the peer, alternately in one run, and prints medians and their ratio (above 1: we are faster). PyTorch is run by
 * the Python that PEER_PYTHON names; `one-thread` is our side with one.
 *
 * @module
 */
import process from "node:process";
import { describeFlags, type Flag, readFlags } from "../src/config/flags.ts";
import { ATTENTION } from "./attention.ts";
import { CHECKPOINT } from "./checkpoint.ts";
import { COLLECTIVES } from "./collectives.ts";
import { DISPATCH } from "./dispatch.ts";
import { GEMM } from "./gemm.ts";
import { KERNELS } from "./kernels.ts";
import { LAUNCHES } from "./launches.ts";
import { MEMORY } from "./memory.ts";
import { measure } from "./runner.ts";
import { ROUTING } from "./routing.ts";
import type { BenchSetting, Side, Subject } from "./subject.ts";
import { STARTUP } from "./startup.ts";
import { STEP } from "./step.ts";

const SUBJECTS: readonly Subject[] = [
  ATTENTION,
  CHECKPOINT,
  COLLECTIVES,
  DISPATCH,
  GEMM,
  KERNELS,
  LAUNCHES,
  MEMORY,
  ROUTING,
  STARTUP,
  STEP,
];

const flags: readonly Flag[] = [
  {
    name: "peer",
    takes: "one",
    placeholder: "<torch|one-thread>",
    description: "Run alternately PyTorch, by the Python in PEER_PYTHON, or ours with one thread",
  },
  {
    name: "threads",
    takes: "one",
    placeholder: "<n>",
    description:
      "Threads of a rank, of either side, for gemm, attention and step, which is then one rank's (default: 1)",
  },
  { name: "case", takes: "one", placeholder: "<name>", description: "Only cases whose name contains this" },
  { name: "runtime", takes: "one", placeholder: "<bun|deno>", description: "What runs our side (default: bun)" },
  { name: "rounds", takes: "one", placeholder: "<n>", description: "Timed rounds of each side (default: 5)" },
  { name: "json", takes: "switch", description: "One JSON object a line" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

async function main(argv: readonly string[]): Promise<number> {
  const named = argv.length > 0 && !argv[0]?.startsWith("-");
  const { uses, problems } = readFlags(flags, named ? argv.slice(1) : argv);
  const text = (name: string): string | undefined => uses.get(name)?.texts.at(-1);
  const [runtime, rounds, peer] = [text("runtime") ?? "bun", Number(text("rounds") ?? 5), text("peer")];
  const threads = Number(text("threads") ?? 1);
  const python = process.env["PEER_PYTHON"];
  const subject = SUBJECTS.find(({ name }) => named && name === argv[0]);
  const wrong = [
    ...problems.map(({ path, expected, got }) => `${path}: expected ${expected}, got ${got}`),
    ...subject === undefined
      ? [`subject: expected ${SUBJECTS.map(({ name }) => name).join(", ")}, got ${argv[0] ?? "nothing"}`]
      : [],
    ...runtime !== "bun" && runtime !== "deno" ? [`--runtime: expected bun or deno, got ${runtime}`] : [],
    ...!(rounds >= 1) ? [`--rounds: expected a positive integer, got ${text("rounds")}`] : [],
    ...!(threads >= 1) ? [`--threads: expected a positive integer, got ${text("threads")}`] : [],
    ...peer !== undefined && peer !== "torch" && peer !== "one-thread"
      ? [`--peer: expected torch or one-thread, got ${peer}`]
      : [],
    ...peer === "torch" && python === undefined ? ["PEER_PYTHON: expected a Python that has torch, got nothing"] : [],
  ];
  if (subject === undefined || wrong.length > 0 || uses.has("help") || (runtime !== "bun" && runtime !== "deno")) {
    process.stderr.write(
      `${wrong.map((line) => `${line}\n`).join("")}Usage: npm run bench -- <subject> [flags]\n\n${
        describeFlags(flags)
      }\n`,
    );
    return uses.has("help") ? 0 : 2;
  }
  const wanted = text("case") ?? "";
  const cases = subject.cases.filter(({ name }) => name.includes(wanted));
  const ranks = uses.has("threads") ? { ranks: 1 } : {};
  const setting: BenchSetting = { runtime, python: python ?? "python3", threads, ...ranks };
  const alone: Side = (given, names) => subject.ours({ ...given, threads: 1 }, names);
  const side = peer === "torch" ? subject.torch : alone;
  const theirs = peer === undefined || side === undefined ? undefined : { name: peer, side };
  await measure(subject, cases, theirs, rounds, setting, (row) => {
    const short = (value: number | undefined): string => value === undefined ? "-" : value.toPrecision(4);
    const said =
      `${row.subject} ${row.case} (${runtime}): ${short(row.ours)} ${row.unit}, peer ${short(row.theirs)}, ` +
      `ratio ${short(row.ratio)}, target ${short(row.target)}, spread ${short(row.spread)}`;
    const why = row.cannot === undefined ? "" : `; cannot: ${row.cannot}`;
    process.stdout.write(uses.has("json") ? `${JSON.stringify(row)}\n` : `${said}${why}\n`);
  });
  return 0;
}

process.exitCode = await main(process.argv.slice(2));

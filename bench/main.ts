/**
 * `npm run bench -- <subject> [--peer torch] [--runtime bun|deno] [--rounds n] [--json]`: times us and, when asked, the peer,
 * alternately in one run, and prints medians and their ratio (above 1: we are faster). PyTorch is run by the Python that
 * PEER_PYTHON names.
 *
 * @module
 */
import { cpus } from "node:os";
import process from "node:process";
import { describeFlags, type Flag, readFlags } from "../src/config/flags.ts";
import { COLLECTIVES } from "./collectives.ts";
import { GEMM } from "./gemm.ts";
import type { BenchCase, Subject } from "./subject.ts";
import { STARTUP } from "./startup.ts";
import { STEP } from "./step.ts";

const SUBJECTS: readonly Subject[] = [COLLECTIVES, GEMM, STARTUP, STEP];

const flags: readonly Flag[] = [
  {
    name: "peer",
    takes: "one",
    placeholder: "<torch>",
    description: "Run PyTorch alternately, by the Python in PEER_PYTHON",
  },
  { name: "case", takes: "one", placeholder: "<name>", description: "Only cases whose name contains this" },
  { name: "runtime", takes: "one", placeholder: "<bun|deno>", description: "What runs our side (default: bun)" },
  { name: "rounds", takes: "one", placeholder: "<n>", description: "Timed rounds of each side (default: 5)" },
  { name: "json", takes: "switch", description: "One JSON object a line" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

function median(values: readonly number[]): number {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  const [low = NaN, high = NaN] = [sorted[sorted.length % 2 === 0 ? middle - 1 : middle], sorted[middle]];
  return (low + high) / 2;
}

async function measure(
  subject: Subject,
  one: BenchCase,
  peer: boolean,
  rounds: number,
): Promise<Record<string, unknown>> {
  const ours: number[] = [];
  const theirs: number[] = [];
  for (let round = 0; round < rounds; round++) {
    ours.push(await one.ours());
    if (peer && one.peer !== undefined) theirs.push(await one.peer());
  }
  const [a, b] = [median(ours), theirs.length === 0 ? undefined : median(theirs)];
  const ratio = b === undefined ? undefined : one.higherIsBetter ? a / b : b / a;
  const spread = (Math.max(...ours) - Math.min(...ours)) / a;
  const row = { subject: subject.name, case: one.name, ours: a, theirs: b, unit: one.unit, ratio, spread, rounds };
  return { ...row, cpu: cpus()[0]?.model.trim(), date: new Date().toISOString().slice(0, 10) };
}

async function main(argv: readonly string[]): Promise<number> {
  const named = argv.length > 0 && !argv[0]?.startsWith("-");
  const { uses, problems } = readFlags(flags, named ? argv.slice(1) : argv);
  const text = (name: string): string | undefined => uses.get(name)?.texts.at(-1);
  const [runtime, rounds, peer] = [text("runtime") ?? "bun", Number(text("rounds") ?? 5), text("peer")];
  const python = process.env["PEER_PYTHON"];
  const subject = SUBJECTS.find(({ name }) => named && name === argv[0]);
  const wrong = [
    ...problems.map(({ path, expected, got }) => `${path}: expected ${expected}, got ${got}`),
    ...subject === undefined
      ? [`subject: expected ${SUBJECTS.map(({ name }) => name).join(", ")}, got ${argv[0] ?? "nothing"}`]
      : [],
    ...runtime !== "bun" && runtime !== "deno" ? [`--runtime: expected bun or deno, got ${runtime}`] : [],
    ...!(rounds >= 1) ? [`--rounds: expected a positive integer, got ${text("rounds")}`] : [],
    ...peer !== undefined && peer !== "torch" ? [`--peer: expected torch, got ${peer}`] : [],
    ...peer !== undefined && python === undefined ? ["PEER_PYTHON: expected a Python that has torch, got nothing"] : [],
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
  for (const one of await subject.cases({ runtime, python: python ?? "python3" })) {
    if (!one.name.includes(wanted)) continue;
    const row = await measure(subject, one, peer !== undefined, rounds);
    const { ours, theirs, unit, ratio, spread } = row;
    const short = (value: unknown): string => typeof value === "number" ? value.toPrecision(4) : "-";
    process.stdout.write(
      uses.has("json")
        ? `${JSON.stringify({ ...row, runtime, peer })}\n`
        : `${subject.name} ${one.name} (${runtime}): ${short(ours)} ${unit}, peer ${short(theirs)}, ratio ${
          short(ratio)
        }, spread ${short(spread)}\n`,
    );
  }
  return 0;
}

process.exitCode = await main(process.argv.slice(2));

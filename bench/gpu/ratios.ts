/**
 * Ratios of our times to PyTorch's on the same card: both are processes that stay, so that compilation is over before the first
 * round, and take turns. PyTorch's stays for all cases; ours is a new one for each way to take steps, as no two models would
 * leave the card room for PyTorch's.
 *
 * @module
 */
import { median } from "../figures.ts";
import { rank } from "../process.ts";
import { Answering, type Seen } from "./answering.ts";
import { modelFigures, modelWords } from "./mfu.ts";
import type { Row } from "./row.ts";

/** A comparison: a case of ours with one of PyTorch's, and the least ratio that is wanted. */
interface RatioCase {
  readonly name: string;
  /** @default the name */
  readonly ours?: string;
  /** @default the name */
  readonly theirs?: string;
  readonly goal?: number;
}

/** Cases by our process that takes them. */
const CASES: readonly (readonly RatioCase[])[] = [
  [
    ...["gemm", "gemm:input-gradient", "gemm:weight-gradient"].map((name) => ({ name, goal: 0.98 })),
    { name: "attention:flash", goal: 0.8 },
    { name: "attention:cudnn" },
    { name: "attention-backward:flash", goal: 0.8 },
    { name: "attention-backward:cudnn" },
    ...["rms-norm", "rms-norm-backward", "cross-entropy", "adamw"].map((name) => ({ name })),
  ],
  ...["step", "graph"].map((ours) => [
    { name: `${ours}:eager-flash`, ours, theirs: "step:eager-flash", goal: 1.25 },
    { name: `${ours}:eager`, ours, theirs: "step:eager" },
    { name: `${ours}:compiled`, ours, theirs: "step:compiled", goal: 1 },
  ]),
];
const ROUNDS = 5;

/** The options with which the ratios are measured. */
export interface RatioSetting {
  readonly runtime: "bun" | "deno";
  readonly size: "1b" | "small";
  /** The Python that has PyTorch. */
  readonly python: string;
  /** The device on which PyTorch computes: the card, or the CPU where only the flow is tested. */
  readonly peerDevice: "cuda" | "cpu";
  /** When there is no time left, by `performance.now()`. */
  readonly until: number;
  /** Cases that an earlier run has told of. */
  readonly passed: ReadonlySet<string>;
}

/** Measures, and tells a line for each case. */
export async function ratios(setting: RatioSetting, tell: (row: Row) => void): Promise<void> {
  const { runtime, size, python, peerDevice, until, passed } = setting;
  const theirs = new Answering([python, "bench/peers/gpu.py", "--device", peerDevice, "--size", size], until);
  try {
    for (const cases of CASES) {
      const left = cases.filter(({ name }) => !passed.has(name));
      if (left.length === 0) continue;
      const ours = new Answering(rank(runtime, "bench/gpu/timed.ts", size), until);
      try {
        for (const one of left) tell(await ratioOf(one, ours, theirs, size));
      } finally {
        await ours.end();
      }
    }
  } finally {
    await theirs.end();
  }
}

async function ratioOf(
  { name, ours: own = name, theirs: other = name, goal }: RatioCase,
  ours: Answering,
  theirs: Answering,
  size: "1b" | "small",
): Promise<Row> {
  const rounds: (readonly [Seen, Seen])[] = [];
  for (let round = 0; round < ROUNDS; round++) {
    const [a, b] = [await ours.ask(own), await theirs.ask(other)];
    const reason = typeof a === "string" ? `ours: ${a}` : typeof b === "string" ? `PyTorch: ${b}` : undefined;
    if (reason !== undefined) return { case: name, outcome: "cannot", reason };
    if (typeof a === "object" && typeof b === "object") rounds.push([a, b]);
  }
  const [last] = rounds.slice(-1);
  const [oursMs, theirsMs] = [0, 1].map((side) => median(rounds.map((round) => Number(round[side]?.["ms"]))));
  if (last === undefined || oursMs === undefined || theirsMs === undefined) throw new Error(`no round of ${name}`);
  const figures: Record<string, number | string> = { oursMs, theirsMs, ratio: theirsMs / oursMs };
  if (goal !== undefined) figures["goal"] = goal;
  for (const [side, ms, { ms: _, ...seen }] of [["ours", oursMs, last[0]], ["theirs", theirsMs, last[1]]] as const) {
    const parameters = seen["parameters"];
    const all: Seen = typeof parameters === "number" ? { ...seen, ...modelFigures(size, parameters, ms) } : seen;
    for (const [key, value] of Object.entries(all)) figures[`${side}.${key}`] = value;
    if (typeof parameters === "number") Object.assign(figures, modelWords(size));
  }
  const hostMs = last[0]["hostMs"];
  if (typeof hostMs === "number") figures["ours.hostShare"] = hostMs / oursMs;
  const [ownPeak, otherPeak] = last.map((seen) => seen["peakBytes"]);
  if (typeof ownPeak === "number" && typeof otherPeak === "number") figures["peakRatio"] = ownPeak / otherPeak;
  return { case: name, outcome: "passed", figures };
}

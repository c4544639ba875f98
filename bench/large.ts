/**
 * Models that fill memory: three steps of AdamW in float32 under FSDP, each rank in a memory of no more bytes than a dry run predicts,
 * or of a limit that is told. A run that needs more, whose peak is another, or whose loss does not fall has no figure. Large models
 * take minutes and the host's memory: `npm run bench -- large --case llama-0.6b-w2 --rounds 1`.
 *
 * @module
 */
import { launch, runProgram } from "./process.ts";
import { type BenchSetting, type Facts, linesOf, type Subject } from "./subject.ts";

/** The report of rank 0: bytes, seconds and losses. */
export interface LargeRun {
  /** Most bytes in use at once in a step that finds its states: predicted, and seen. */
  readonly predictedPeak: number;
  readonly seenPeak: number;
  /** Bytes that the memory must have, gaps between blocks included; and what it was given. */
  readonly predictedMemory: number;
  readonly seenMemory: number;
  readonly limit: number;
  /** The most that the process had in memory, shared segments, runtime and program included. */
  readonly resident: number;
  /** Elements of all parameters, with what fills up their blocks. */
  readonly parameters: number;
  readonly secondsPerStep: readonly number[];
  readonly losses: readonly number[];
}

const GIB = 2 ** 30;

/** The output of a rank. */
export function readLargeRun(output: string, name: string): LargeRun {
  const text = linesOf(output).find(([word]) => word === name)?.[1];
  if (text === undefined) throw new Error(`nothing was printed of ${name}`);
  return JSON.parse(text);
}

/** A run in words and GiB. */
export function factsOf(run: LargeRun): Facts {
  const { predictedPeak, seenPeak, predictedMemory, seenMemory, limit, resident, parameters } = run;
  const gib = Object.entries({ predictedPeak, seenPeak, predictedMemory, seenMemory, limit, resident });
  return {
    ...Object.fromEntries(gib.map(([name, bytes]) => [name, bytes / GIB])),
    millionParameters: parameters / 1e6,
    secondsPerStep: run.secondsPerStep.map((seconds) => seconds.toFixed(2)).join(" "),
    losses: run.losses.map((loss) => loss.toFixed(4)).join(" "),
  };
}

async function runOf({ runtime }: BenchSetting, name: string): Promise<LargeRun> {
  const ranks = Number(/-w(\d+)$/.exec(name)?.[1]);
  // Deno asks for all permissions before it reads what a process has in memory.
  const [path, ...args] = launch(runtime, ranks, "--deno-args=-A", "bench/ranks/large.ts", name);
  return readLargeRun((await runProgram(path, args)).output, name);
}

/** The last result of each case. */
const runs = new Map<string, LargeRun>();

/** GiB of rank 0 that were in use at once. */
export const LARGE: Subject = {
  name: "large",
  unit: "GiB",
  higherIsBetter: false,
  isApart: true,
  cases: ["llama-8m-w1", "llama-8m-w2", "llama-0.6b-w2", "llama-1.1b-w1"].map((name) => ({ name })),
  ours: async (setting, names) => {
    for (const name of names) runs.set(name, await runOf(setting, name));
    return new Map(names.map((name) => [name, (runs.get(name)?.seenPeak ?? NaN) / GIB]));
  },
  more: (_setting, name) => {
    const run = runs.get(name);
    return Promise.resolve(run === undefined ? {} : factsOf(run));
  },
};

/**
 * What a benchmark is.
 *
 * @module
 */
import { runProgram } from "./process.ts";

/** Instruction sets by which targets differ. */
export type Isa = "avx2" | "avx512" | "other";

/** How to run. */
export interface BenchSetting {
  readonly runtime: "bun" | "deno";
  /** The Python that runs the peer. */
  readonly python: string;
  /** Ranks of a step, where that is told. */
  readonly ranks?: number;
  /** Threads of a rank, on either side. */
  readonly threads: number;
}

/** One measured thing. */
export interface BenchCase {
  readonly name: string;
  /** The ratio that is aimed at; by instruction set where that differs. */
  readonly target?: number | Readonly<Partial<Record<Isa, number>>>;
}

/** What one round gave of each case: a number, or why there is none. */
export type Outcomes = ReadonlyMap<string, number | string>;

/** One side of a comparison: one round of some cases. */
export type Side = (setting: BenchSetting, names: readonly string[]) => Promise<Outcomes>;

/** A group of cases. */
export interface Subject {
  readonly name: string;
  readonly unit: string;
  readonly higherIsBetter: boolean;
  readonly cases: readonly BenchCase[];
  /** The ratio aimed at beside one thread. */
  readonly threadsTarget?: number;
  /** Whether each case is a run of its own; else all cases are one run of either side. */
  readonly isApart: boolean;
  readonly ours: Side;
  /** PyTorch's side. */
  readonly torch?: Side;
  /** What is to be told beside the figures of a case, of one round. */
  more?(setting: BenchSetting, name: string, ours: number, theirs: number | undefined): Promise<Record<string, number>>;
}

/** A side that is one program, which prints `<case> <number>` a line, or `<case> cannot: <reason>`. */
export function program(
  commandOf: (setting: BenchSetting, names: readonly string[]) => readonly [program: string, ...args: string[]],
): Side {
  return async (setting, names) => {
    const [path, ...args] = commandOf(setting, names);
    // PyTorch and oneDNN read it; so do our ranks.
    const { output } = await runProgram(path, args, { OMP_NUM_THREADS: String(setting.threads) });
    return new Map(names.map((name) => [name, outcomeOf(output, name)]));
  };
}

function outcomeOf(output: string, name: string): number | string {
  const line = output.split("\n").find((one) => one.includes(`${name} `));
  const text = line?.slice(line.indexOf(`${name} `) + name.length + 1).trim() ?? "nothing was printed of it";
  const value = Number(text);
  return Number.isFinite(value) ? value : text.replace(/^cannot: /, "");
}

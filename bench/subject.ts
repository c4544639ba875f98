/**
 * The description of a benchmark.
 *
 * @module
 */
import type { Outcome } from "./figures.ts";
import type { JaxJs } from "./jax_js.ts";
import { runProgram } from "./process.ts";

/** Instruction sets by which targets differ. */
export type Isa = "avx2" | "avx512" | "avx512-bf16" | "other";

/** Whom our side may be compared with, besides itself with one thread; the last four are our own: DDP, ranks that share nothing, hosts whose ranks share no memory, gathered keys and values. */
export const PEERS = ["torch", "trl", "transformers", "mpi", "jax-js", "ddp", "apart", "flat", "allgather"] as const;
/** One of these. */
export type PeerName = typeof PEERS[number];

/** The options of a run. */
export interface BenchSetting {
  readonly runtime: "bun" | "deno";
  /** The Python that runs the peer. */
  readonly python: string;
  /** The folder of jax-js, if it is the peer. */
  readonly jaxJs?: JaxJs;
  /** Ranks of a step, where that is told. */
  readonly ranks?: number;
  /** Threads of a rank, on either side. */
  readonly threads: number;
}

/** A ratio that is aimed at; by instruction set where that differs, AVX512_BF16 being AVX-512 too. */
export type Target = number | Readonly<Partial<Record<Isa, number>>>;

/** One measured thing. */
export interface BenchCase {
  readonly name: string;
  /** The ratio aimed at beside PyTorch. */
  readonly target?: Target;
  /** Those aimed at beside other peers. */
  readonly targets?: Readonly<Partial<Record<PeerName, Target>>>;
  /** Peers that have such a case. @default PyTorch alone */
  readonly peers?: readonly PeerName[];
}

/** The result of one round of each case. */
export type Outcomes = ReadonlyMap<string, Outcome>;

/** One side of a comparison: one round of some cases. */
export type Side = (setting: BenchSetting, names: readonly string[]) => Promise<Outcomes>;

/** A group of cases. */
export interface Subject {
  readonly name: string;
  readonly unit: string;
  readonly higherIsBetter: boolean;
  readonly cases: readonly BenchCase[];
  /** True if our side computes with the number of threads that is asked for. */
  readonly takesThreads?: true;
  /** That number unless it is asked for. @default 1 */
  readonly usualThreads?: number;
  /** The ratio aimed at beside one thread. */
  readonly threadsTarget?: number;
  /** True if each case is a run of its own; else all cases are one run of either side. */
  readonly isApart: boolean;
  readonly ours: Side;
  /** The other sides that there are. */
  readonly peers?: Readonly<Partial<Record<PeerName, Side>>>;
  /** Computes further figures of a case from one round. */
  more?(setting: BenchSetting, name: string, ours: number, theirs: number | undefined): Promise<Facts>;
}

/** Further figures of a case by name; a missing one is left out, or explained in words. */
export type Facts = Readonly<Record<string, number | string>>;

/** The cases of a subject that a peer has; all, where there is none. */
export function casesOf({ cases }: Subject, peer: PeerName | undefined): readonly BenchCase[] {
  return cases.filter(({ peers = ["torch"] }) => peer === undefined || peers.includes(peer));
}

/** The target of a case beside a peer. */
export function targetOf({ target, targets }: BenchCase, peer: PeerName | undefined, isa: Isa): number | undefined {
  const aim = peer === undefined || peer === "torch" ? target : targets?.[peer];
  if (typeof aim !== "object") return aim;
  return aim[isa] ?? (isa === "avx512-bf16" ? aim.avx512 : undefined);
}

/** A side that is one program, which prints `<case> <number>` a line, or `<case> cannot: <reason>`. */
export function program(
  commandOf: (setting: BenchSetting, names: readonly string[]) => readonly [program: string, ...args: string[]],
): Side {
  return async (setting, names) => {
    const [path, ...args] = commandOf(setting, names);
    // PyTorch reads it; so do our ranks.
    const { output } = await runProgram(path, args, { OMP_NUM_THREADS: String(setting.threads) });
    return new Map(names.map((name) => [name, outcomeOf(output, name)]));
  };
}

/** The line of a program's output for a case: after the case's name, at the begin of a line or after the launcher's prefix. */
export function outcomeOf(output: string, name: string): number | string {
  const [, text = "nothing was printed of it"] = linesOf(output).find(([one]) => one === name) ?? [];
  const value = Number(text);
  return Number.isFinite(value) ? value : text.replace(/^cannot: /, "");
}

/** Lines of a program's output as their first word and the rest, without the rank that a launcher writes before them. */
export function linesOf(output: string): readonly (readonly [name: string, text: string])[] {
  return output.split("\n").flatMap((line) => {
    const [, name, text] = /^(?:\[[^\]]*\]:?\s*)?(\S+)\s+(.*?)\s*$/.exec(line) ?? [];
    return name === undefined || text === undefined ? [] : [[name, text] as const];
  });
}

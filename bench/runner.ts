/**
 * Rounds of ours and the peer's, alternately in one run, and what they amount to.
 *
 * @module
 */
import { readFileSync } from "node:fs";
import { cpus } from "node:os";
import { runProgram, runtimePath } from "./process.ts";
import type { BenchCase, BenchSetting, Isa, Outcomes, Side, Subject } from "./subject.ts";

/** What was measured of one case; a line of `--json`. */
export interface Row {
  readonly subject: string;
  readonly case: string;
  readonly peer: string | undefined;
  readonly runtime: string;
  /** Medians of the rounds. */
  readonly ours?: number | undefined;
  readonly theirs?: number | undefined;
  readonly unit: string;
  /** Above 1: we are faster. */
  readonly ratio?: number | undefined;
  readonly target?: number | undefined;
  /** The largest of our rounds less the smallest, by the median. */
  readonly spread?: number | undefined;
  readonly cpu: string | undefined;
  readonly isa: Isa;
  readonly rounds: number;
  readonly date: string;
  readonly threads: number;
  /** Of the runtime and, where there is one, the peer. */
  readonly versions: readonly string[];
  /** Why there is no figure of one side. */
  readonly cannot?: string | undefined;
}

/** The middle one, or the mean of both. */
export function median(values: readonly number[]): number | undefined {
  const sorted = values.toSorted((a, b) => a - b);
  const [low, high] = [sorted[(sorted.length - 1) >> 1], sorted[sorted.length >> 1]];
  return low === undefined || high === undefined ? undefined : (low + high) / 2;
}

/** The widest vectors of this processor. */
function isaOf(): Isa {
  let flags = "";
  try {
    flags = readFileSync("/proc/cpuinfo", "utf8");
  } catch {
    return "other";
  }
  return /\bavx512vl\b/.test(flags) ? "avx512" : /\bavx2\b/.test(flags) ? "avx2" : "other";
}

/** What one side says of some cases; its failure is told of each of them. */
async function outcomes(side: Side, setting: BenchSetting, names: readonly string[]): Promise<Outcomes> {
  try {
    return await side(setting, names);
  } catch (error) {
    const reason = error instanceof Error ? error.message : String(error);
    const lines = reason.trim().split("\n");
    // The line that tells most: what a program calls an error, or its last one.
    const told = lines.find((line) => /\w*Error\b/.test(line)) ?? lines.at(-1) ?? reason;
    return new Map(names.map((name) => [name, told]));
  }
}

async function versionsOf({ runtime, python }: BenchSetting, hasPeer: boolean): Promise<readonly string[]> {
  const script = 'import torch; print("torch", torch.__version__)';
  const [own, peer] = await Promise.all([
    runProgram(runtimePath(runtime), ["--version"]),
    hasPeer ? runProgram(python, ["-c", script]) : undefined,
  ]);
  const first = own.output.trim().split("\n")[0]?.replace(/^deno /, "") ?? "";
  return [`${runtime} ${first}`, ...peer === undefined ? [] : [peer.output.trim()]];
}

/** Measures cases and calls `tell` with each row. */
export async function measure(
  subject: Subject,
  cases: readonly BenchCase[],
  peer: { readonly name: string; readonly side: Side } | undefined,
  rounds: number,
  setting: BenchSetting,
  tell: (row: Row) => void,
): Promise<void> {
  const versions = await versionsOf(setting, peer?.name === "torch");
  const groups = subject.isApart ? cases.map((one) => [one]) : [cases];
  for (const group of groups) {
    const names = group.map(({ name }) => name);
    const [ours, theirs]: [Outcomes[], Outcomes[]] = [[], []];
    for (let round = 0; round < rounds; round++) {
      ours.push(await outcomes(subject.ours, setting, names));
      if (peer !== undefined) theirs.push(await outcomes(peer.side, setting, names));
    }
    for (const one of group) {
      const row = await rowOf(subject, one, ours, theirs, setting);
      const target = peer?.name === "one-thread" ? subject.threadsTarget : row.target;
      tell({ ...row, target, peer: peer?.name, versions });
    }
  }
}

async function rowOf(
  subject: Subject,
  { name, target }: BenchCase,
  ours: readonly Outcomes[],
  theirs: readonly Outcomes[],
  setting: BenchSetting,
): Promise<Omit<Row, "versions" | "peer">> {
  const ofCase = (side: readonly Outcomes[]): (number | string | undefined)[] => side.map((round) => round.get(name));
  const numbers = (side: readonly Outcomes[]): number[] => ofCase(side).filter((one) => typeof one === "number");
  const own = numbers(ours);
  const [a, b, isa] = [median(own), median(numbers(theirs)), isaOf()];
  const isBoth = a !== undefined && b !== undefined;
  const cannot = [...ofCase(ours), ...ofCase(theirs)].find((one) => typeof one === "string");
  return {
    subject: subject.name,
    case: name,
    runtime: setting.runtime,
    ours: a,
    theirs: b,
    unit: subject.unit,
    ratio: isBoth ? (subject.higherIsBetter ? a / b : b / a) : undefined,
    target: typeof target === "object" ? target[isa] : target,
    spread: a === undefined ? undefined : (Math.max(...own) - Math.min(...own)) / a,
    cpu: cpus()[0]?.model.trim(),
    isa,
    rounds: ours.length,
    threads: setting.threads,
    date: new Date().toISOString().slice(0, 10),
    ...cannot === undefined ? {} : { cannot },
    ...a === undefined ? {} : await subject.more?.(setting, name, a, b),
  };
}

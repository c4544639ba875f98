/**
 * Rounds of ours and the peer's, alternately in one run, and what they amount to.
 *
 * @module
 */
import { readFileSync } from "node:fs";
import { cpus } from "node:os";
import { runProgram, runtimePath } from "./process.ts";
import { figureOf } from "./figures.ts";
import {
  type BenchCase,
  type BenchSetting,
  type Facts,
  type Isa,
  type Outcomes,
  type PeerName,
  type Side,
  type Subject,
  targetOf,
} from "./subject.ts";

/** The result of one case; a line of `--json`. */
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
  /** The program that computed the peer's figure, where several can, and the medians of all of them. */
  readonly by?: string | undefined;
  readonly medians?: Readonly<Record<string, number>> | undefined;
  /** Of the runtime and, where there is one, the peer. */
  readonly versions: readonly string[];
  /** Further figures of the subject; on a line of `--json` each stands beside the main figures. */
  readonly more?: Facts;
  /** The reason why one side has no figure. */
  readonly cannot?: string | undefined;
}

/** The widest vectors of this processor. */
function isaOf(): Isa {
  let flags = "";
  try {
    flags = readFileSync("/proc/cpuinfo", "utf8");
  } catch {
    return "other";
  }
  if (/\bavx512_bf16\b/.test(flags)) return "avx512-bf16";
  return /\bavx512vl\b/.test(flags) ? "avx512" : /\bavx2\b/.test(flags) ? "avx2" : "other";
}

/** The line of an error that tells most: what a program calls an error, or its last one. */
export function reasonOf(error: unknown): string {
  const reason = error instanceof Error ? error.message : String(error);
  const lines = reason.trim().split("\n");
  return lines.find((line) => /\w*Error\b/.test(line)) ?? lines.at(-1) ?? reason;
}

/** The results of one side for some cases; a failure is reported for each of them. */
async function outcomes(side: Side, setting: BenchSetting, names: readonly string[]): Promise<Outcomes> {
  try {
    return await side(setting, names);
  } catch (error) {
    const told = reasonOf(error);
    return new Map(names.map((name) => [name, told]));
  }
}

/** Versions of our runtime and of a peer that does not tell its own with a figure. A peer that is not there has none. */
async function versionsOf(
  { runtime, python, jaxJs }: BenchSetting,
  peer: string | undefined,
): Promise<readonly string[]> {
  const { output } = await runProgram(runtimePath(runtime), ["--version"]);
  const own = `${runtime} ${output.trim().split("\n")[0]?.replace(/^deno /, "")}`;
  if (peer === "jax-js" && jaxJs !== undefined && "version" in jaxJs) return [own, `jax-js ${jaxJs.version}`];
  const packages = peer === "torch"
    ? ["torch"]
    : peer === "trl"
    ? ["torch", "transformers", "peft", "trl"]
    : peer === "transformers"
    ? ["torch", "transformers"]
    : [];
  if (packages.length === 0) return [own];
  const script = "import sys, importlib.metadata as m\nfor name in sys.argv[1:]: print(name, m.version(name))";
  const told = await runProgram(python, ["-c", script, ...packages]).catch(() => undefined);
  return [own, ...told === undefined ? [] : told.output.trim().split("\n")];
}

/** A side that a figure is compared with. */
export interface Peer {
  readonly name: PeerName | "one-thread";
  readonly side: Side;
}

/** Measures cases and calls `tell` with each row, until `isEnded` says that the rest is not wanted any more. */
export async function measure(
  subject: Subject,
  cases: readonly BenchCase[],
  peer: Peer | undefined,
  rounds: number,
  setting: BenchSetting,
  tell: (row: Row) => void,
  isEnded: () => boolean = () => false,
): Promise<void> {
  const versions = await versionsOf(setting, peer?.name);
  const groups = subject.isApart ? cases.map((one) => [one]) : [cases];
  for (const group of groups) {
    const names = group.map(({ name }) => name);
    const [ours, theirs]: [Outcomes[], Outcomes[]] = [[], []];
    for (let round = 0; round < rounds && !isEnded(); round++) {
      ours.push(await outcomes(subject.ours, setting, names));
      if (peer !== undefined) theirs.push(await outcomes(peer.side, setting, names));
    }
    for (const one of group) {
      const row = { ...await rowOf(subject, one, peer, ours, theirs, setting), versions };
      // A run that was ended has no figures.
      if (isEnded()) return;
      tell(row);
    }
  }
}

async function rowOf(
  subject: Subject,
  one: BenchCase,
  peer: Peer | undefined,
  ours: readonly Outcomes[],
  theirs: readonly Outcomes[],
  setting: BenchSetting,
): Promise<Omit<Row, "versions">> {
  const { name } = one;
  const sum = (side: readonly Outcomes[]) => figureOf(side.map((round) => round.get(name)), subject.higherIsBetter);
  const [own, other, isa] = [sum(ours), sum(theirs), isaOf()];
  const { value: a, rounds } = own;
  const { value: b, by, medians } = other;
  const isBoth = a !== undefined && b !== undefined;
  let cannot = [own.cannot, other.cannot].filter((why) => why !== undefined).join("; ");
  let more: Facts = {};
  try {
    // The peer's figure is for as many threads as ours.
    const alike = peer?.name === "one-thread" ? undefined : b;
    if (a !== undefined) more = await subject.more?.(setting, name, a, alike) ?? {};
  } catch (error) {
    cannot ||= reasonOf(error);
  }
  return {
    subject: subject.name,
    case: name,
    peer: peer?.name,
    runtime: setting.runtime,
    ours: a,
    theirs: b,
    unit: subject.unit,
    ratio: isBoth ? (subject.higherIsBetter ? a / b : b / a) : undefined,
    target: peer?.name === "one-thread" ? subject.threadsTarget : targetOf(one, peer?.name, isa),
    spread: a === undefined ? undefined : (Math.max(...rounds) - Math.min(...rounds)) / a,
    ...by === undefined ? {} : { by, medians },
    cpu: cpus()[0]?.model.trim(),
    isa,
    rounds: ours.length,
    threads: setting.threads,
    date: new Date().toISOString().slice(0, 10),
    ...cannot === "" ? {} : { cannot },
    ...Object.keys(more).length === 0 ? {} : { more },
  };
}

/** A row for people. */
export function lineOf(row: Row): string {
  const short = (value: number | undefined): string => value === undefined ? "-" : value.toPrecision(4);
  const { subject, case: name, runtime, ours, unit, theirs, by, ratio, target, spread, cannot } = row;
  const peer = by === undefined ? short(theirs) : `${short(theirs)} (${by})`;
  const said = `${subject} ${name} (${runtime}): ${short(ours)} ${unit}, peer ${peer}, ratio ${short(ratio)}, ` +
    `target ${short(target)}, spread ${short(spread)}`;
  const told = Object.entries(row.more ?? {}).map(([fact, value]) =>
    `, ${fact} ${typeof value === "number" ? short(value) : value}`
  );
  return `${said}${told.join("")}${cannot === undefined ? "" : `; cannot: ${cannot}`}`;
}

/** A row as one line of JSON. */
export function jsonOf({ more, ...row }: Row): string {
  return JSON.stringify({ ...row, ...more });
}

/**
 * The flags of runs whose ranks may change, read into a plan. `--max-restarts` and a range of `--nnodes` are torchrun's by name and
 * meaning; torchrun has no range of `--nproc-per-node`, and keeps no state in memory.
 *
 * @module
 */
import type { Flag } from "../config/flags.ts";
import { needs } from "../config/needs.ts";
import type { ConfigProblem } from "../errors.ts";

/** A run whose ranks are started again after a failure. */
export interface ElasticPlan {
  /** The fewest hosts that go on. */
  readonly fewestHosts: number;
  /** The fewest ranks of a host that go on. */
  readonly fewestRanks: number;
  /** Failures after which ranks are started again. A host that comes or goes costs none. */
  readonly maxRestarts: number;
  /** Steps between two copies of the state in memory; undefined: none, so ranks go on from the last checkpoint. */
  readonly redundancyEvery: number | undefined;
  /** Time after which a rank that was lost is started again, at a step's border; undefined: never. */
  readonly rejoinSeconds: number | undefined;
}

/** The flags of runs whose ranks may change. */
export const elasticFlags: readonly Flag[] = [
  {
    name: "max-restarts",
    takes: "one",
    placeholder: "<n>",
    description: "How often ranks are started again after a failure, from memory or from the last checkpoint",
    default: "0",
  },
  {
    name: "redundancy",
    takes: "one",
    placeholder: "<0|1>",
    description:
      "With --max-restarts: 1 keeps a copy of weights and optimizer states in memory, for other ranks to go on",
    default: "0",
  },
  {
    name: "redundancy-every",
    takes: "one",
    placeholder: "<steps>",
    description: "With --redundancy 1: steps between two copies",
    default: "1",
  },
  {
    name: "rejoin-seconds",
    takes: "one",
    placeholder: "<seconds>",
    description:
      "With a range of --nproc-per-node: when a lost rank is started again, at a step's border; by default never",
  },
];

/** A range as `2:4`, or one number, as the fewest and the most; undefined if it is neither. */
export function readRange(text: string): { readonly fewest: number; readonly most: number } | undefined {
  if (!/^\d{1,6}(:\d{1,6})?$/.test(text)) return undefined;
  const [fewest = NaN, most = fewest] = text.split(":").map(Number);
  return fewest >= 1 && fewest <= most ? { fewest, most } : undefined;
}

/**
 * Reads the plan, and adds what is wrong to `problems`.
 *
 * @param text the value of a flag, if it was given
 * @param fewest the fewest hosts, and the fewest ranks of each; undefined where no range was given
 * @returns undefined if the first failure ends the run
 */
export function readElastic(
  text: (name: string) => string | undefined,
  fewest: { readonly hosts: number; readonly ranks: number; readonly isRange: boolean },
  problems: ConfigProblem[],
): ElasticPlan | undefined {
  const read = (name: string, expected: string, holds: (value: string) => boolean): string | undefined => {
    const value = text(name);
    if (value === undefined || holds(value)) return value;
    problems.push({ path: `--${name}`, expected, got: `'${value}'` });
    return undefined;
  };
  const restarts = read("max-restarts", "a number", (value) => /^\d{1,6}$/.test(value)) ?? "0";
  const copies = read("redundancy", "0 or 1", (value) => value === "0" || value === "1") ?? "0";
  const every = read("redundancy-every", "a number from 1", (value) => /^[1-9]\d{0,5}$/.test(value));
  const rejoin = read("rejoin-seconds", "a positive number of seconds", (value) => Number(value) > 0);
  const lacks = (name: string, other: string): void => {
    problems.push(needs(`--${name}`, other, text(name)));
  };
  if (restarts === "0") {
    if (fewest.isRange) {
      problems.push({
        path: "--max-restarts",
        expected: "a number from 1, as a range of ranks or hosts says that some may be lost",
        got: "'0'",
      });
    }
    for (const name of ["redundancy", "redundancy-every", "rejoin-seconds"]) {
      if (text(name) !== undefined && text(name) !== "0") lacks(name, "--max-restarts of at least 1");
    }
    return undefined;
  }
  if (copies === "0" && text("redundancy-every") !== undefined) lacks("redundancy-every", "--redundancy 1");
  return {
    fewestHosts: fewest.hosts,
    fewestRanks: fewest.ranks,
    maxRestarts: Number(restarts),
    redundancyEvery: copies === "1" ? Number(every ?? "1") : undefined,
    rejoinSeconds: rejoin === undefined ? undefined : Number(rejoin),
  };
}

/**
 * A training step of one layer whose rows two ranks share, by a ring of keys and values and by their gathering, by turns: the whole step,
 * and the time of it that communication holds the rank, which computation does not hide.
 *
 * @module
 */
import { launch } from "./process.ts";
import { program, type Side, type Subject } from "./subject.ts";

/** Positions of a row, of all ranks. */
const LENGTHS = [1024, 4096] as const;

function by(strategy: "ring" | "allgather"): Side {
  return program(({ runtime }, names) => launch(runtime, 2, "bench/ranks/context.ts", strategy, ...names));
}

/** Milliseconds of a step, and of it in calls of the context axis. */
export const CONTEXT: Subject = {
  name: "context",
  unit: "ms",
  higherIsBetter: false,
  takesThreads: true,
  isApart: false,
  cases: LENGTHS.flatMap((length) =>
    ["step", "exposed"].map((what) => ({ name: `${what}-${length}`, peers: ["allgather"] as const }))
  ),
  ours: by("ring"),
  peers: { allgather: by("allgather") },
};

/**
 * How long a step takes at a stated speed of compute and of communication: the calls of a dry run laid beside the operations
 * between them.
 *
 * Note [What is taken to overlap]
 * Compute is one line, communication another, and each does one thing at a time, as on a device with streams:
 * - a unit is gathered while the one before computes, not earlier, for its memory is not there yet;
 * - gradients are reduced when the backward has left their unit, while others compute;
 * - sums that the step reads (loss, gradient norm) and messages stop compute until they are done.
 *
 * @module
 */
import type { CollectiveUse, DryRun } from "./dry_run.ts";

/** Stated speeds of one rank. */
export interface Speeds {
  /** Floating-point operations a second. */
  readonly flops: number;
  /** Bytes a second that it receives from other hosts. */
  readonly bandwidth: number;
  /** Bytes a second that it receives from ranks of its host. */
  readonly hostBandwidth: number;
}

/** How long a step takes, in seconds. */
export interface StepTime {
  /** Time from the step's first call to its end. */
  readonly step: number;
  /** The part of the step in which something is computed. */
  readonly compute: number;
  /** All calls, one after another. */
  readonly communication: number;
  /** What of communication no compute hides: `step` is `compute` and this. */
  readonly exposed: number;
}

/** Predicts the time of a step; see Note [What is taken to overlap]. */
export function predictTime({ collectives, flops }: Pick<DryRun, "collectives" | "flops">, speeds: Speeds): StepTime {
  const secondsOf = ({ received, hosts }: CollectiveUse): number =>
    received / (hosts > 1 ? speeds.bandwidth : speeds.hostBandwidth);
  const gathers = collectives.filter(isGather);
  /** When each gather is done, of those that have begun. */
  const ends: number[] = [];
  const now = { compute: 0, communication: 0 };
  const communicate = (call: CollectiveUse, from: number): number =>
    now.communication = Math.max(now.communication, from) + secondsOf(call);
  let computed = 0;
  const computeUpTo = (operations: number): void => {
    now.compute += (operations - computed) / speeds.flops;
    computed = operations;
  };
  for (const call of collectives) {
    computeUpTo(call.flopsBefore);
    if (isGather(call)) {
      const place = gathers.indexOf(call);
      const end = ends[place] ??= communicate(call, now.compute);
      now.compute = Math.max(now.compute, end);
      // The next one begins when this one's unit begins to compute.
      const next = gathers[place + 1];
      if (next !== undefined) ends[place + 1] = communicate(next, now.compute);
    } else if (isReduction(call)) communicate(call, now.compute);
    else now.compute = communicate(call, now.compute);
  }
  computeUpTo(flops);
  const step = Math.max(now.compute, now.communication);
  const compute = flops / speeds.flops;
  const communication = collectives.reduce((sum, call) => sum + secondsOf(call), 0);
  return { step, compute, communication, exposed: step - compute };
}

/** Whether a unit computes with what the call brings. */
function isGather({ kind, phase }: CollectiveUse): boolean {
  return (kind === "gather" || kind === "all-gather") && phase !== undefined;
}

/** Whether only the optimizer needs what the call brings. */
function isReduction({ kind, phase }: CollectiveUse): boolean {
  return (kind === "reduce-scatter" || kind === "all-reduce") && phase === "backward";
}

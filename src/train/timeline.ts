/**
 * Prediction of a step's time from stated speeds of computation and communication, and from the calls and operations of a dry
 * run.
 *
 * Note [Overlap] There are two queues, of computation and of communication. Each does one thing at a time, as a device's streams do:
 * - a unit is gathered while the unit before it computes, and not earlier, as no memory is free for it;
 * - a unit's gradients are reduced after its backward, while other units compute;
 * - messages stop computation where it waits for them: at once, or, as a ring's, after what is computed beside them;
 * - sums that the step reads (loss, gradient norm) stop computation until they are done.
 *
 * @module
 */
import type { CollectiveUse, DryRun } from "./dry_run.ts";

/** Speeds of one rank. */
export interface Speeds {
  /** Floating-point operations per second. */
  readonly flops: number;
  /** Bytes per second that it receives from other hosts. */
  readonly bandwidth: number;
  /** Bytes per second that it receives from ranks of its host. */
  readonly hostBandwidth: number;
}

/** Times of a step, in seconds. */
export interface StepTime {
  /** Time from the beginning of the step to its end. */
  readonly step: number;
  /** Time of all computation. */
  readonly compute: number;
  /** Time of all calls. */
  readonly communication: number;
  /** Time of communication that no computation hides: `step` is `compute` plus this. */
  readonly exposed: number;
}

/** Predicts the time of a step; see Note [Overlap]. */
export function predictTime({ collectives, flops }: Pick<DryRun, "collectives" | "flops">, speeds: Speeds): StepTime {
  const secondsOf = ({ received, hosts }: CollectiveUse): number =>
    received / (hosts > 1 ? speeds.bandwidth : speeds.hostBandwidth);
  const gathers = collectives.filter(isGather);
  /** The end of each gather that has begun. */
  const ends: number[] = [];
  const now = { compute: 0, communication: 0 };
  const communicate = (call: CollectiveUse, from: number): number =>
    now.communication = Math.max(now.communication, from) + secondsOf(call);
  let computed = 0;
  const compute = (operations: number): void => {
    now.compute += (operations - computed) / speeds.flops;
    computed = operations;
  };
  /** Ends of messages under way, in the order in which they are waited for. */
  const underWay: { readonly flopsAwaited: number; readonly end: number }[] = [];
  const computeUpTo = (operations: number): void => {
    while (underWay[0] !== undefined && underWay[0].flopsAwaited <= operations) {
      const { flopsAwaited, end } = underWay[0];
      underWay.shift();
      compute(flopsAwaited);
      now.compute = Math.max(now.compute, end);
    }
    compute(operations);
  };
  for (const call of collectives) {
    computeUpTo(call.flopsBefore);
    if (isGather(call)) {
      const place = gathers.indexOf(call);
      const end = ends[place] ??= communicate(call, now.compute);
      now.compute = Math.max(now.compute, end);
      // The next gather begins when this one's unit begins to compute.
      const next = gathers[place + 1];
      if (next !== undefined) ends[place + 1] = communicate(next, now.compute);
    } else if (isReduction(call)) communicate(call, now.compute);
    else if (call.flopsAwaited !== undefined) {
      underWay.push({ flopsAwaited: call.flopsAwaited, end: communicate(call, now.compute) });
    } else now.compute = communicate(call, now.compute);
  }
  computeUpTo(flops);
  const step = Math.max(now.compute, now.communication);
  const alone = flops / speeds.flops;
  const communication = collectives.reduce((sum, call) => sum + secondsOf(call), 0);
  return { step, compute: alone, communication, exposed: step - alone };
}

/**
 * The time of a step of a model in stages. Each slot of the schedule is taken to last as long as the slowest stage needs for a forward
 * and a backward on average, so that ranks which have nothing to compute in a slot wait that long.
 *
 * @param times of one rank of each stage, each as {@link predictTime} gives it
 * @param own the stage that is told
 * @param slots of the schedule, of which a rank computes in `busy`
 */
export function predictStages(
  times: readonly StepTime[],
  own: StepTime,
  { slots, busy }: { readonly slots: number; readonly busy: number },
): StepTime {
  const step = Math.max(...times.map((time) => time.step)) * slots / busy;
  return { ...own, step, exposed: step - own.compute };
}

/** True if a unit computes with the call's result. */
function isGather({ kind, phase }: CollectiveUse): boolean {
  return (kind === "gather" || kind === "all-gather") && phase !== undefined;
}

/** True if only the optimizer needs the call's result. */
function isReduction({ kind, phase }: CollectiveUse): boolean {
  return (kind === "reduce-scatter" || kind === "all-reduce") && phase === "backward";
}

/**
 * Schedules of a pipeline: in which order each rank computes forwards and backwards of its stages, and when results travel. Orders are
 * those of PyTorch's `Schedule1F1B` and `ScheduleInterleaved1F1B` (`torch/distributed/pipelining/schedules.py`; Narayanan et al. 2021,
 * section 2.2). Stage s is computed by rank s modulo the number of ranks.
 *
 * Note [Slots]: time is divided into slots. A rank computes at most one forward or backward per slot, as soon as earlier slots have
 * computed its inputs. When a slot ends, ranks exchange its results, one call per rank. So no rank waits for a message that its peer
 * sends in a later slot; this works on transports without buffering.
 *
 * @module
 */
import { at } from "../at.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import { countOf } from "../words.ts";

/**
 * Order of forwards and backwards. `1f1b`: a rank has one stage, and after some forwards one backward follows each forward.
 * `interleaved`: the same with several stages a rank, which are waited for less and cost more messages.
 */
export type PipelineSchedule = "1f1b" | "interleaved";
/** Names of schedules. */
export const PIPELINE_SCHEDULES: readonly ["1f1b", "interleaved"] = ["1f1b", "interleaved"];

/** Sizes of a pipeline. */
export interface PipelineSizes {
  /** Ranks. */
  readonly ranks: number;
  /** Stages of each rank. */
  readonly stagesPerRank: number;
  /** Micro-batches of a step. */
  readonly microBatches: number;
}

/** A forward or a backward of one micro-batch through one stage. */
export interface StageAction {
  /** Direction. */
  readonly kind: "forward" | "backward";
  /** The stage, from 0. */
  readonly stage: number;
  /** The micro-batch, from 0. */
  readonly microBatch: number;
}

/** The actions of a slot, by rank; undefined where a rank waits. */
export type PipelineSlot = readonly (StageAction | undefined)[];

/** The number of micro-batches that the schedule needs, in words; undefined if the given number fits. As in PyTorch. */
export function microBatchProblem(
  schedule: PipelineSchedule,
  { ranks, microBatches }: Pick<PipelineSizes, "ranks" | "microBatches">,
): string | undefined {
  if (schedule === "1f1b") return microBatches < ranks ? `at least ${ranks}, as many as stages` : undefined;
  const rounds = Math.max(1, Math.floor(microBatches / ranks));
  return microBatches === 0 || microBatches % rounds !== 0 ? `a multiple of ${ranks}` : undefined;
}

/**
 * Refuses numbers of micro-batches that a schedule has no order for.
 *
 * @throws {ArgumentError} naming the numbers
 */
function requireMicroBatches(schedule: PipelineSchedule, sizes: PipelineSizes): void {
  const expected = microBatchProblem(schedule, sizes);
  if (expected === undefined) return;
  throw new ArgumentError(
    `Cannot run ${countOf(sizes.microBatches, "micro-batch", "micro-batches")} through stages on ${
      countOf(sizes.ranks, "rank")
    } by ` +
      `'${schedule}': give each rank ${expected}, in a step`,
  );
}

/**
 * The order of one rank's forwards and backwards.
 *
 * @throws {ArgumentError} for numbers of micro-batches that the schedule has no order for
 */
export function orderOf(schedule: PipelineSchedule, rank: number, sizes: PipelineSizes): readonly StageAction[] {
  requireMicroBatches(schedule, sizes);
  const { ranks, stagesPerRank, microBatches } = sizes;
  const total = stagesPerRank * microBatches;
  const perRound = schedule === "1f1b" ? 1 : microBatches / Math.max(1, Math.floor(microBatches / ranks));
  // Forwards before the first backward. With one forward and one backward in turn, the first of a pair is the forward.
  const warmUp = schedule === "1f1b"
    ? ranks - rank - 1
    : Math.min((stagesPerRank - 1) * perRound + 2 * (ranks - 1 - rank), total);
  const next = { forward: new Map<number, number>(), backward: new Map<number, number>() };
  const take = (kind: StageAction["kind"], step: number): StageAction => {
    const turn = Math.floor(step / perRound) % stagesPerRank;
    const stage = (kind === "forward" ? turn : stagesPerRank - 1 - turn) * ranks + rank;
    const microBatch = next[kind].get(stage) ?? 0;
    next[kind].set(stage, microBatch + 1);
    return { kind, stage, microBatch };
  };
  const order = Array.from({ length: warmUp }, (_, step) => take("forward", step));
  for (let step = 0; step < total; step++) {
    if (step + warmUp < total) order.push(take("forward", step + warmUp));
    order.push(take("backward", step));
  }
  return order;
}

/**
 * The slots of a step: see Note [Slots].
 *
 * @throws {ArgumentError} for numbers of micro-batches that the schedule has no order for
 */
export function slotsOf(schedule: PipelineSchedule, sizes: PipelineSizes): readonly PipelineSlot[] {
  const { ranks, stagesPerRank } = sizes;
  const orders = Array.from({ length: ranks }, (_, rank) => [...orderOf(schedule, rank, sizes)]);
  const last = ranks * stagesPerRank - 1;
  const done = new Set<string>();
  const keyOf = ({ kind, stage, microBatch }: StageAction): string => `${kind} ${stage} ${microBatch}`;
  const needed = ({ kind, stage, microBatch }: StageAction): StageAction | undefined => {
    if (kind === "forward") return stage === 0 ? undefined : { kind, stage: stage - 1, microBatch };
    return stage === last ? { kind: "forward", stage, microBatch } : { kind, stage: stage + 1, microBatch };
  };
  const slots: PipelineSlot[] = [];
  while (orders.some(({ length }) => length > 0)) {
    const slot = orders.map(([action]) => {
      const before = action && needed(action);
      return action !== undefined && (before === undefined || done.has(keyOf(before))) ? action : undefined;
    });
    if (slot.every((action) => action === undefined)) {
      throw new InternalError(`a pipeline by '${schedule}' stands still`);
    }
    for (const [rank, action] of slot.entries()) {
      if (action === undefined) continue;
      at(orders, rank, "order of rank").shift();
      done.add(keyOf(action));
    }
    slots.push(slot);
  }
  return slots;
}

/**
 * Learning-rate schedules: a factor of the peak rate for each step, with a linear warm-up (transformers' definitions).
 *
 * @module
 */
import type { ExactMath } from "../device/device.ts";
import { ArgumentError } from "../errors.ts";

/** Shapes of a schedule after the warm-up. */
export const SCHEDULES = ["cosine", "linear", "constant"] as const;
/** Name of a schedule. */
export type ScheduleName = typeof SCHEDULES[number];

/** A schedule. */
export interface ScheduleOptions {
  readonly schedule: ScheduleName;
  readonly peakLearningRate: number;
  /** Steps in which the rate grows from 0 to the peak. */
  readonly warmupSteps: number;
  /** Steps in all; cosine and linear end there. */
  readonly totalSteps: number;
  /** What cosine and linear end at, as a share of the peak: 0 unless said otherwise. */
  readonly minRatio?: number;
}

/**
 * The learning rate of one step.
 *
 * @param math the device's functions: `Math.cos` differs between runtimes
 * @param step from 0
 * @throws {ArgumentError} if the steps make no sense
 * @example
 * ```ts
 * import { learningRateAt, openDevice } from "fullyshard";
 * const { math } = await openDevice("cpu");
 * const rate = learningRateAt(math, 50, { schedule: "linear", peakLearningRate: 1, warmupSteps: 100, totalSteps: 200 });
 * if (rate !== 0.5) throw new Error("wrong");
 * ```
 */
export function learningRateAt(math: ExactMath, step: number, options: ScheduleOptions): number {
  const { schedule, peakLearningRate, warmupSteps, totalSteps, minRatio = 0 } = options;
  if (!(warmupSteps >= 0 && totalSteps > 0 && warmupSteps <= totalSteps)) {
    throw new ArgumentError(`Cannot warm up for ${warmupSteps} of ${totalSteps} steps`);
  }
  if (step < warmupSteps) return peakLearningRate * (step / warmupSteps);
  if (schedule === "constant") return peakLearningRate;
  const progress = Math.min(1, (step - warmupSteps) / Math.max(1, totalSteps - warmupSteps));
  const share = schedule === "linear" ? 1 - progress : 0.5 * (1 + math.cos(Math.PI * progress));
  return peakLearningRate * (minRatio + (1 - minRatio) * share);
}

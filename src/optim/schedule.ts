/**
 * Learning-rate schedules: a factor on each group's own rate for each step, with a linear warm-up (transformers'
 * definitions).
 *
 * @module
 */
import type { PortableMath } from "../device/device.ts";
import { ArgumentError } from "../errors.ts";

/** A factor on the learning rate, by step. */
export interface Schedule {
  /** The schedule's name and options, by which checkpoints tell it from others. */
  readonly text: string;
  /**
   * The factor on the learning rate.
   *
   * @param math the device's functions: `Math.cos` differs between runtimes
   * @param step from 1
   */
  factorAt(math: PortableMath, step: number): number;
}

/** How a schedule begins and ends. */
export interface ScheduleOptions {
  /** Steps in which the factor grows to 1. @default 0 */
  readonly warmupSteps?: number;
  /** Steps in all: the factor reaches its end right after the last one, so that no step is for nothing. */
  readonly steps: number;
  /** What cosine and linear end at. @default 0 */
  readonly minRatio?: number;
}

/** Makes a schedule of the share that is left when `progress` of the way after the warm-up is done. */
function schedule(
  name: string,
  options: ScheduleOptions,
  shareAt: (math: PortableMath, progress: number) => number,
): Schedule {
  const { warmupSteps = 0, steps, minRatio = 0 } = options;
  if (!(Number.isInteger(steps) && steps > 0)) {
    throw new ArgumentError(`Cannot make a schedule of ${steps} steps: give a positive integer`);
  }
  if (!(warmupSteps >= 0 && warmupSteps <= steps)) {
    throw new ArgumentError(`Cannot warm up for ${warmupSteps} of ${steps} steps`);
  }
  return {
    text: `${name} over ${steps} steps, ${warmupSteps} of them to warm up, to ${minRatio}`,
    factorAt(math, step) {
      if (step < warmupSteps) return step / warmupSteps;
      const progress = Math.min(1, (step - warmupSteps) / (steps + 1 - warmupSteps));
      return minRatio + (1 - minRatio) * shareAt(math, progress);
    },
  };
}

/**
 * Falls along half a cosine.
 *
 * @throws {ArgumentError} if the steps make no sense
 * @example
 * ```ts
 * import { AdamW, cosine } from "fullyshard";
 * import { Linear } from "fullyshard/nn";
 * import { openDevice } from "fullyshard/device";
 * const layer = new Linear(await openDevice("cpu"), 4, 4);
 * new AdamW(layer.parameters(), { learningRate: 2e-3, schedule: cosine({ warmupSteps: 20, steps: 200 }) });
 * ```
 */
export function cosine(options: ScheduleOptions): Schedule {
  return schedule("cosine", options, (math, progress) => 0.5 * (1 + math.cos(Math.PI * progress)));
}

/**
 * Falls along a line.
 *
 * @throws {ArgumentError} if the steps make no sense
 */
export function linear(options: ScheduleOptions): Schedule {
  return schedule("linear", options, (_math, progress) => 1 - progress);
}

/**
 * Stays at 1 after the warm-up.
 *
 * @throws {ArgumentError} if the steps make no sense
 */
export function constant(options: ScheduleOptions): Schedule {
  return schedule("constant", options, () => 1);
}

/** Names of schedules. */
export const SCHEDULE_NAMES = ["cosine", "linear", "constant"] as const;
/** Name of a schedule. */
export type ScheduleName = typeof SCHEDULE_NAMES[number];
/** All schedules, by name. */
export const SCHEDULES: Readonly<Record<ScheduleName, typeof cosine>> = { cosine, linear, constant };

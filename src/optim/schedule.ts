/**
 * Learning-rate schedules: a factor on each group's own rate for each step, with a linear warm-up (transformers'
 * definitions). transformers counts steps from 0, where a warm-up has the factor 0; the step of that factor is left out, as it
 * would change nothing. Without a warm-up the first step has the factor 1, as there.
 *
 * @module
 */
import { requireKnownKeys } from "../config/known_keys.ts";
import type { PortableMath } from "../device/device.ts";
import { ArgumentError } from "../errors.ts";
import { isWithin } from "../held.ts";
import { valueText } from "../words.ts";

/** A factor on the learning rate, by step. */
export interface Schedule {
  /** The schedule's name and options. A checkpoint keeps it, so that a resumed run is compared with it. */
  readonly text: string;
  /**
   * The factor on the learning rate.
   *
   * @param math the device's functions: `Math.cos` differs between runtimes
   * @param step from 1
   */
  factorAt(math: PortableMath, step: number): number;
}

/**
 * A schedule of one's own as a function (PyTorch's `LambdaLR`): the factor on the learning rate in a step, from 1. Functions of
 * `Math` such as `cos` differ between runtimes in their last bits.
 */
export type ScheduleFunction = (step: number) => number;

/**
 * The factor on the learning rate in a step.
 *
 * @throws {ArgumentError} if it is no finite number, or there is no such schedule
 */
export function scheduleFactor(schedule: Schedule | ScheduleFunction, math: PortableMath, step: number): number {
  if (typeof schedule !== "function" && typeof schedule?.factorAt !== "function") {
    throw new ArgumentError(
      `Cannot use '${
        String(schedule)
      }' as a schedule: expected cosine({ steps }), linear, constant, or a function of the step`,
    );
  }
  const factor: unknown = typeof schedule === "function" ? schedule(step) : schedule.factorAt(math, step);
  if (typeof factor === "number" && Number.isFinite(factor)) return factor;
  const isMaker = typeof factor === "object";
  throw new ArgumentError(
    `Cannot scale the learning rate of step ${step}: the schedule gives ${isMaker ? "no number" : String(factor)}. ` +
      "Expected a finite factor; a schedule by name is made with its steps, as in cosine({ steps: 200 })",
  );
}

/** Options of a schedule's beginning and end. */
export interface ScheduleOptions {
  /** Steps in which the factor grows to 1; the last of them has the factor 1. With 0, the first step has it. @default 0 */
  readonly warmupSteps?: number;
  /** Steps in all. The factor reaches its end right after the last one, so every step has an effect. */
  readonly steps: number;
  /** The factor, from 0 to 1, that cosine and linear end at. @default 0 */
  readonly minRatio?: number;
}

/**
 * Makes a schedule.
 *
 * @param shareAt falls from 1 to 0, by the progress from 0 to 1 between the step with factor 1 and the end
 */
function schedule(
  name: string,
  options: ScheduleOptions,
  shareAt: (math: PortableMath, progress: number) => number,
): Schedule {
  requireKnownKeys(`make a schedule '${name}'`, options, { warmupSteps: true, steps: true, minRatio: true });
  const { warmupSteps = 0, steps, minRatio = 0 } = options;
  if (!(Number.isInteger(steps) && steps > 0)) {
    throw new ArgumentError(`Cannot make a schedule of ${valueText(steps)} steps: give a positive integer`);
  }
  if (!(Number.isInteger(warmupSteps) && warmupSteps >= 0 && warmupSteps <= steps)) {
    throw new ArgumentError(
      `Cannot warm up for ${valueText(warmupSteps)} of ${steps} steps: give an integer from 0 to ${steps}`,
    );
  }
  if (!isWithin(minRatio, 0, 1)) {
    throw new ArgumentError(
      `Cannot end a schedule at ${valueText(minRatio)} of the learning rate: minRatio must be a number from 0 to 1`,
    );
  }
  const peak = Math.max(1, warmupSteps);
  return {
    text: `${name} over ${steps} steps, ${warmupSteps} of them to warm up, to ${minRatio}`,
    factorAt(math, step) {
      if (step < warmupSteps) return step / warmupSteps;
      const progress = Math.min(1, (step - peak) / (steps + 1 - peak));
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

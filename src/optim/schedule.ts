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
 * @param shareAt the part of the factor above `minRatio`, from 1 to 0. `progress` goes from 0, at the step with factor 1, to 1 at the
 * end. `since` is the number of steps since the step with factor 1, and `length` their number until the end
 */
function schedule(
  name: string,
  options: ScheduleOptions,
  shareAt: (math: PortableMath, progress: number, since: number, length: number) => number,
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
      const [since, length] = [step - peak, steps + 1 - peak];
      return minRatio + (1 - minRatio) * shareAt(math, progress, since, length);
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

/** Options of {@link cosineWithRestarts}. */
export interface RestartOptions extends ScheduleOptions {
  /** The number of times that the factor falls from 1. @default 1 */
  readonly cycles?: number;
}

/**
 * Falls along half a cosine several times, each time from 1 (transformers' `cosine_with_restarts`).
 *
 * @throws {ArgumentError} if the steps or cycles make no sense
 * @example
 * ```ts
 * import { cosineWithRestarts } from "fullyshard";
 * const twice = cosineWithRestarts({ steps: 200, warmupSteps: 20, cycles: 2 });
 * if (twice.text !== "cosine_with_restarts (cycles 2) over 200 steps, 20 of them to warm up, to 0") throw new Error(twice.text);
 * ```
 */
export function cosineWithRestarts({ cycles = 1, ...options }: RestartOptions): Schedule {
  if (!(isWithin(cycles, 0) && cycles > 0 && cycles < Infinity)) {
    throw new ArgumentError(`Cannot restart a cosine for ${valueText(cycles)} cycles: give a positive number`);
  }
  return schedule(`cosine_with_restarts (cycles ${cycles})`, options, (math, progress) => {
    return progress >= 1 ? 0 : 0.5 * (1 + math.cos(Math.PI * ((cycles * progress) % 1)));
  });
}

/** Options of {@link polynomial}. */
export interface PolynomialOptions extends ScheduleOptions {
  /** The power of the part of the steps that is left. @default 1 */
  readonly power?: number;
}

/**
 * Falls as a power of the part of the steps that is left (transformers' `polynomial`, whose `lr_end` is `minRatio` times the rate).
 *
 * @throws {ArgumentError} if the steps or the power make no sense
 */
export function polynomial({ power = 1, ...options }: PolynomialOptions): Schedule {
  if (!(isWithin(power, 0) && power < Infinity)) {
    throw new ArgumentError(`Cannot fall with the power ${valueText(power)}: give a number from 0`);
  }
  return schedule(`polynomial (power ${power})`, options, (math, progress) => {
    return power === 1 ? 1 - progress : math.pow(1 - progress, power);
  });
}

/** Options of {@link inverseSqrt}. */
export interface InverseSqrtOptions extends ScheduleOptions {
  /** Steps after which the factor is 1/√2 of that at the end of the warm-up. @default the warm-up's steps, or 10,000 without one */
  readonly timescale?: number;
}

/**
 * Falls as one over the root of the steps (transformers' `inverse_sqrt`), and never reaches an end.
 *
 * @throws {ArgumentError} if the steps or the time scale make no sense, or `minRatio` is given
 */
export function inverseSqrt({ timescale, ...options }: InverseSqrtOptions): Schedule {
  const { warmupSteps = 0, minRatio = 0 } = options;
  const scale = timescale ?? (warmupSteps > 0 ? warmupSteps : 10_000);
  if (!(isWithin(scale, 0) && scale > 0 && scale < Infinity) || minRatio !== 0) {
    throw new ArgumentError(
      `Cannot fall by the root of steps with timescale ${valueText(scale)} and minRatio ${valueText(minRatio)}: ` +
        "give a positive number, and no minRatio",
    );
  }
  return schedule(
    `inverse_sqrt (timescale ${scale})`,
    options,
    (_math, _progress, since) => 1 / Math.sqrt((since + scale) / scale),
  );
}

/** Options of {@link warmupStableDecay}. */
export interface WarmupStableDecayOptions extends ScheduleOptions {
  /** Steps at the end in which the factor falls. */
  readonly decaySteps: number;
  /** The shape of the fall. @default cosine */
  readonly decayType?: "cosine" | "linear" | "1-sqrt";
}

/**
 * Stays at 1 and falls at the end (transformers' `warmup_stable_decay`, whose warm-up is linear from 0 here).
 *
 * @throws {ArgumentError} if the steps make no sense
 */
export function warmupStableDecay(
  { decaySteps, decayType = "cosine", ...options }: WarmupStableDecayOptions,
): Schedule {
  const { warmupSteps = 0, steps } = options;
  if (!(Number.isInteger(decaySteps) && decaySteps >= 0 && decaySteps <= steps - warmupSteps)) {
    throw new ArgumentError(
      `Cannot decay in ${
        valueText(decaySteps)
      } of ${steps} steps, ${warmupSteps} of them to warm up: give an integer from 0 to ${steps - warmupSteps}`,
    );
  }
  if (!["cosine", "linear", "1-sqrt"].includes(decayType)) {
    throw new ArgumentError(`Cannot decay along ${valueText(decayType)}: expected cosine, linear or 1-sqrt`);
  }
  return schedule(
    `warmup_stable_decay (${decaySteps} steps to decay, ${decayType})`,
    options,
    (math, _progress, since, length) => {
      const progress = Math.max(0, since - (length - decaySteps)) / Math.max(1, decaySteps);
      if (progress >= 1) return decaySteps === 0 && since < length ? 1 : 0;
      if (decayType === "cosine") return 0.5 * (1 + math.cos(Math.PI * progress));
      return decayType === "linear" ? 1 - progress : 1 - Math.sqrt(progress);
    },
  );
}

/** Names of schedules: transformers' names where it has them. */
export const SCHEDULE_NAMES = [
  "cosine",
  "linear",
  "constant",
  "cosine_with_restarts",
  "polynomial",
  "inverse_sqrt",
  "warmup_stable_decay",
] as const;
/** Name of a schedule. */
export type ScheduleName = typeof SCHEDULE_NAMES[number];

/** Options of any schedule; each reads its own. */
export interface AnyScheduleOptions extends ScheduleOptions {
  /** See {@link RestartOptions}. */
  readonly cycles?: number | undefined;
  /** See {@link PolynomialOptions}. */
  readonly power?: number | undefined;
  /** See {@link WarmupStableDecayOptions}. @default a tenth of the steps */
  readonly decaySteps?: number | undefined;
}

/** All schedules, by name. */
export const SCHEDULES: Readonly<Record<ScheduleName, (options: AnyScheduleOptions) => Schedule>> = {
  cosine: (options) => cosine(common(options)),
  linear: (options) => linear(common(options)),
  constant: (options) => constant(common(options)),
  cosine_with_restarts: ({ cycles = 1, ...options }) => cosineWithRestarts({ ...common(options), cycles }),
  polynomial: ({ power = 1, ...options }) => polynomial({ ...common(options), power }),
  inverse_sqrt: (options) => inverseSqrt(common(options)),
  warmup_stable_decay: ({ decaySteps, ...options }) => {
    const { steps, warmupSteps = 0 } = options;
    const usual = Math.min(Math.ceil(steps / 10), steps - warmupSteps);
    return warmupStableDecay({ ...common(options), decaySteps: decaySteps ?? usual });
  },
};

/** The options that all schedules have. */
function common({ steps, warmupSteps, minRatio }: ScheduleOptions): ScheduleOptions {
  return {
    steps,
    ...warmupSteps === undefined ? {} : { warmupSteps },
    ...minRatio === undefined ? {} : { minRatio },
  };
}

/**
 * The training of parity in float32 and in narrower dtypes, and how far those lead from it.
 *
 * @module
 */
import type { CpuMath } from "../../doors/device.ts";
import { type Course, type Distance, distanceOf } from "./distance.ts";
import { type ParityCase, runCases } from "./traces.ts";
import type { PrecisionNames, TrainingCase } from "./training.ts";

/** Ranks of each training. */
export const RANKS = 2;
/** Steps of each training. */
export const STEPS = 20;
/** The dtypes of each training. */
export const NARROW: readonly PrecisionNames[] = [
  { paramDtype: "bfloat16", reduceDtype: "float32" },
  { paramDtype: "bfloat16", reduceDtype: "bfloat16" },
  { paramDtype: "float16", reduceDtype: "float32" },
  { paramDtype: "float16", reduceDtype: "float16" },
];

/** The training that the others are compared with, from the weights that a seed names. */
export function wideTraining(seed: number): TrainingCase {
  return { mode: "fsdp-reshard", tied: true, microBatches: RANKS, steps: STEPS, seed };
}

/** A precision's name in files. */
export function nameOf({ paramDtype, reduceDtype }: PrecisionNames): string {
  return `${paramDtype}-${reduceDtype}`;
}

/** The results of this library's trainings. */
export interface Courses {
  /** The weights that all began with, in order of FQN. */
  readonly initial: Float32Array;
  readonly wide: Course;
  /** In the order of {@link NARROW}. */
  readonly narrow: readonly Course[];
}

/** Trains in float32 and in each narrower dtype, from the weights that a seed names. */
export async function trainOurs(seed: number, cpuMath: CpuMath): Promise<Courses> {
  const wide = wideTraining(seed);
  const trainings = [{ ...wide, steps: 0 }, wide, ...NARROW.map((precision) => ({ ...wide, precision }))];
  const cases = trainings.map((training, i): ParityCase => ({ name: `precision ${i}`, ranks: RANKS, training }));
  const [begin, reference, ...narrow] = await runCases(cases, cpuMath);
  if (begin === undefined || reference === undefined) throw new Error("a training left no trace");
  return { initial: begin.weights, wide: reference, narrow };
}

/** The distance of each narrower dtype from float32, by name. */
export function distancesOf({ initial, wide, narrow }: Courses): Readonly<Record<string, Distance>> {
  return Object.fromEntries(narrow.map((course, i) => {
    const precision = NARROW[i];
    if (precision === undefined) throw new Error(`training ${i} of ${NARROW.length}`);
    return [nameOf(precision), distanceOf(course, wide, initial)];
  }));
}

/**
 * The distance between two trainings with the same weights and data.
 *
 * @module
 */
import type { WholeTrace } from "./traces.ts";

/** The losses of a training, and its final weights. */
export type Course = Pick<WholeTrace, "losses" | "gradNorms" | "weights">;

/** Distances of a training from another. */
export interface Distance {
  /** Of the losses: the root of the mean square over steps, each as a share of the other's loss. */
  readonly loss: number;
  /** The same of the gradients' total norms. */
  readonly gradNorm: number;
  /** Of the final weights: the norm of their differences, as a share of that of how far the other moved. */
  readonly weights: number;
}

/** @throws {Error} if the two are of unequal lengths */
export function distanceOf(course: Course, other: Course, initial: Float32Array): Distance {
  return {
    loss: meanShare(course.losses, other.losses),
    gradNorm: meanShare(course.gradNorms, other.gradNorms),
    weights: normOfDifference(course.weights, other.weights) / normOfDifference(other.weights, initial),
  };
}

/** The largest of each. */
export function furthest(distances: readonly Distance[]): Distance {
  return ofEach(distances, (values) => Math.max(...values));
}

/** The mean of each. */
export function meanOf(distances: readonly Distance[]): Distance {
  return ofEach(distances, (values) => values.reduce((sum, value) => sum + value, 0) / values.length);
}

function ofEach(distances: readonly Distance[], f: (values: readonly number[]) => number): Distance {
  const of = (key: keyof Distance): number => f(distances.map((one) => one[key]));
  return { loss: of("loss"), gradNorm: of("gradNorm"), weights: of("weights") };
}

function meanShare(values: readonly number[], others: readonly number[]): number {
  const squares = pairs(values, others).map(([a, b]) => ((a - b) / b) ** 2);
  return Math.sqrt(squares.reduce((sum, square) => sum + square, 0) / squares.length);
}

function normOfDifference(values: Float32Array, others: Float32Array): number {
  let sum = 0;
  for (const [a, b] of pairs(values, others)) sum += (a - b) ** 2;
  return Math.sqrt(sum);
}

function pairs(values: ArrayLike<number>, others: ArrayLike<number>): readonly (readonly [number, number])[] {
  if (values.length !== others.length) throw new Error(`${values.length} values beside ${others.length}`);
  return Array.from(values, (value, i) => [value, others[i] ?? NaN]);
}

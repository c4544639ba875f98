/**
 * How far a training over axes is from one rank's, and what of it must be the same to the bit on all ranks.
 *
 * @module
 */
import type { FamilyReport } from "./training.ts";

/** Most that a loss is off, of itself: float32's rounding of the last sums. */
const LOSS = 2e-6;
/** Most that a norm is off, of itself: sums over parts are in another order. */
const NORM = 2e-5;
/** Most that a gradient is off, of the largest one of its parameter: some hundred roundings of float32. */
const GRADIENT = 3e-5;
/** And of the largest one of the model: some roundings of the terms of a sum that cancel each other. */
const CANCELLED = 2e-7;

/** Distances to one rank, each as a part of what rounding explains: below 1 is within. */
export interface AxesDistance {
  readonly loss: number;
  readonly norm: number;
  readonly gradient: number;
  /** The parameter whose gradient is farthest off. */
  readonly worst: string;
}

function largest(values: readonly number[]): number {
  return values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
}

/** The largest distance of numbers, each as a part of what it was to be. */
function relative(found: readonly number[], expected: readonly number[]): number {
  if (found.length !== expected.length) return Infinity;
  return found.reduce((most, value, i) => {
    const wanted = expected[i] ?? NaN;
    const off = Math.abs(value - wanted) / Math.abs(wanted);
    return Number.isNaN(off) ? Infinity : Math.max(most, off);
  }, 0);
}

/** How far the ranks' training is from one rank's. */
export function distanceOf([main]: readonly FamilyReport[], alone: FamilyReport): AxesDistance {
  if (main === undefined) return { loss: Infinity, norm: Infinity, gradient: Infinity, worst: "" };
  const most = Math.max(...Object.values(alone.gradients).map(largest));
  let [gradient, worst] = [0, ""];
  for (const [name, expected] of Object.entries(alone.gradients)) {
    const found = main.gradients[name] ?? [];
    const off = found.length === expected.length
      ? largest(found.map((value, i) => value - (expected[i] ?? NaN)))
      : Infinity;
    const part = off / (GRADIENT * largest(expected) + CANCELLED * most);
    if (part <= gradient) continue;
    [gradient, worst] = [part, name];
  }
  return {
    loss: relative(main.losses, alone.losses) / LOSS,
    norm: relative(main.norms, alone.norms) / NORM,
    gradient,
    worst,
  };
}

/**
 * What is wrong of what must be the same to the bit: first values, generated ids, what ranks report alike, what is not cut on the ranks
 * of a tensor axis, the memory after each step. Empty where nothing is.
 *
 * @param tensor ranks of the tensor axis
 */
export function bitFaults(all: readonly FamilyReport[], alone: FamilyReport, tensor: number): readonly string[] {
  const faults: string[] = [];
  const alike = ({ losses, norms, last }: FamilyReport): string => JSON.stringify([losses, norms, last]);
  for (const [rank, found] of all.entries()) {
    const [main = found, first = found] = [all[0], all[rank - rank % tensor]];
    if (found.first !== alone.first) faults.push(`rank ${rank} began with other values`);
    if (found.generated.join() !== alone.generated.join()) faults.push(`rank ${rank} generated other ids`);
    if (alike(found) !== alike(main)) faults.push(`rank ${rank} reports other losses, norms or weights than rank 0`);
    if (found.uncut !== first.uncut) faults.push(`rank ${rank} keeps other copies of what is not cut`);
    if (new Set(found.inUse.slice(1)).size !== 1) {
      faults.push(`memory of rank ${rank} grows: ${found.inUse.join(", ")}`);
    }
    if (tensor > 1 && found.cut.length === 0) faults.push("nothing is cut");
  }
  return faults;
}

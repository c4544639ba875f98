/** Moments of chance at which processes are killed, and the times that follow. @module */
import { philox4x32 } from "../../src/random.ts";

/** Times of restarts. */
export interface Seconds {
  readonly median: number;
  readonly most: number;
  readonly count: number;
}

/** The middle and the longest of some times, in seconds; NaN where there are none. */
export function secondsOf(times: readonly number[]): Seconds {
  const sorted = times.toSorted((a, b) => a - b);
  return { median: round(sorted[Math.floor(sorted.length / 2)]), most: round(sorted.at(-1)), count: sorted.length };
}

/** Numbers from 0 to 1 that a seed decides, by Philox. */
export function randomNumbers(seed: number): () => number {
  const out = new Uint32Array(4);
  let counter = 0;
  return () => {
    philox4x32(out, counter++, 0, 0, 0, seed, 0);
    return (out[0] ?? NaN) / 2 ** 32;
  };
}

export function sleep(ms: number): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, ms));
}

/** Rounds to hundredths. */
export function round(seconds: number = NaN): number {
  return Math.round(seconds * 100) / 100;
}

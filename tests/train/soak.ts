/**
 * Memory and handles of a process while it trains, and how they grow.
 *
 * @module
 */
import { readFileSync } from "node:fs";

/** Memory and handles of a rank's process at a step. */
export interface Held {
  readonly step: number;
  /** Bytes of the device's allocator. */
  readonly allocated: number;
  /** Bytes of JavaScript's objects, with those not freed yet. */
  readonly heap: number;
  /** Bytes of memory of the process outside of JavaScript's heap: V8 lets its heap grow by garbage, for minutes on a busy machine. */
  readonly outside: number;
  /** Open files, pipes and sockets. */
  readonly handles: number;
  readonly threads: number;
}

/** The lines that `scripts/soak.ts` has written for a rank. */
export function heldBy(folder: string, rank: number): readonly Held[] {
  const lines = readFileSync(`${folder}/held-rank${rank}.jsonl`, "utf8").trim().split("\n");
  return lines.map((line): Held => JSON.parse(line));
}

/** The lines with the least memory of each stretch of steps: those just after garbage of JavaScript was freed. */
export function lowestOf(list: readonly Held[], key: "heap" | "outside", stretch: number): readonly Held[] {
  const lowest = new Map<number, Held>();
  for (const held of list) {
    const at = Math.ceil(held.step / stretch); // so the last step is one of a whole stretch
    const before = lowest.get(at);
    if (before === undefined || held[key] < before[key]) lowest.set(at, held);
  }
  return [...lowest.values()];
}

/** Growth by step, by least squares. */
export function slopeOf(list: readonly Held[], key: Exclude<keyof Held, "step">): number {
  const mean = (values: readonly number[]): number => values.reduce((sum, value) => sum + value, 0) / values.length;
  const [steps, values] = [list.map(({ step }) => step), list.map((held) => held[key])];
  const [step, value] = [mean(steps), mean(values)];
  const both = steps.reduce((sum, one, i) => sum + (one - step) * ((values[i] ?? NaN) - value), 0);
  return both / steps.reduce((sum, one) => sum + (one - step) ** 2, 0);
}

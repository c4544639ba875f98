/**
 * The numbers of a run by step, from the lines of `metrics.jsonl`.
 *
 * @module
 */
import { at, placeAfter } from "../at.ts";

/** Names and units of the numbers that a report draws, in its order. */
export const MEASURES = [
  { key: "loss", title: "Loss", unit: "nats" },
  { key: "grad_norm", title: "Gradient norm", unit: "before clipping" },
  { key: "learning_rate", title: "Learning rate", unit: "" },
  { key: "tokens_per_second", title: "Tokens a second", unit: "over all ranks" },
  { key: "peak_bytes", title: "Peak memory", unit: "bytes on rank 0" },
] as const;

/** Key of a number that a report draws. */
export type MeasureKey = (typeof MEASURES)[number]["key"];

/** Numbers of a run; lists of one length, with null where a step has no such number. */
export interface RunSeries {
  /** Steps, ascending. */
  readonly steps: readonly number[];
  /** Lists by the names of `metrics.jsonl`. */
  readonly values: Readonly<Record<string, readonly (number | null)[]>>;
  /** Number of lines that are no steps: cut off, or not of this format. */
  readonly badLines: number;
}

/** Longest list that a report holds: longer ones have the mean of several steps as a point. */
const MOST_POINTS = 2000;

/**
 * Lines of `metrics.jsonl`, which may still come. Each line is added to lists that are kept, so a step takes some bytes a number and
 * another look at a long run reads no older step.
 */
export class SeriesLines {
  readonly #steps: number[] = [];
  readonly #values: Record<string, (number | null)[]> = {};
  #badLines = 0;

  /** Takes a line without its end. A step that is there twice counts as it was last. */
  add(line: string): void {
    if (line === "") return;
    const row = numbersOf(line);
    const step = row?.["step"];
    if (row === undefined || step === undefined) this.#badLines++;
    else this.#put(step, row);
  }

  /** The numbers so far, in lists to which later lines are added. */
  series(): RunSeries {
    return { steps: this.#steps, values: this.#values, badLines: this.#badLines };
  }

  #put(step: number, row: Readonly<Record<string, number>>): void {
    const place = placeAfter(this.#steps, (one) => one < step);
    const isNew = this.#steps[place] !== step;
    if (isNew) this.#steps.splice(place, 0, step);
    for (const name of Object.keys(row)) {
      if (name !== "step") this.#values[name] ??= this.#steps.slice(isNew ? 1 : 0).map(() => null);
    }
    for (const [name, list] of Object.entries(this.#values)) list.splice(place, isNew ? 0 : 1, row[name] ?? null);
  }
}

/** Reads the lines of a whole file. */
export function readSeries(text: string): RunSeries {
  const lines = new SeriesLines();
  for (const line of text.split("\n")) lines.add(line);
  return lines.series();
}

function numbersOf(line: string): Record<string, number> | undefined {
  try {
    const value: unknown = JSON.parse(line);
    if (typeof value !== "object" || value === null) return undefined;
    const numbers = Object.entries(value).filter((pair): pair is [string, number] => typeof pair[1] === "number");
    return Object.fromEntries(numbers);
  } catch {
    return undefined;
  }
}

/** Names of the held-out losses: `eval_loss`, or `eval_NAME_loss` of a set with a name. */
export function heldOutLosses({ values }: RunSeries): readonly string[] {
  return Object.keys(values).filter((name) => /^eval_(?:.*_)?loss$/.test(name)).toSorted();
}

/** A shorter series: each point is the mean of adjacent steps, at the last of them. */
export interface ThinnedSeries extends Pick<RunSeries, "steps" | "values"> {
  readonly stepsAPoint: number;
}

/** Makes a series no longer than {@link MOST_POINTS}. */
export function thin({ steps, values }: RunSeries, most: number = MOST_POINTS): ThinnedSeries {
  const stepsAPoint = Math.max(1, Math.ceil(steps.length / most));
  if (stepsAPoint === 1) return { steps, values, stepsAPoint };
  const starts = Array.from({ length: Math.ceil(steps.length / stepsAPoint) }, (_, i) => i * stepsAPoint);
  const meanOf = (list: readonly (number | null)[], start: number): number | null => {
    let [sum, count] = [0, 0];
    for (let i = start; i < start + stepsAPoint; i++) {
      const value = list[i] ?? null;
      if (value === null) continue;
      sum += value;
      count++;
    }
    return count === 0 ? null : sum / count;
  };
  return {
    stepsAPoint,
    steps: starts.map((start) => at(steps, Math.min(start + stepsAPoint, steps.length) - 1, "step")),
    values: Object.fromEntries(
      Object.entries(values).map(([name, list]) => [name, starts.map((start) => meanOf(list, start))]),
    ),
  };
}

/** The last number of a list, with its step; undefined if there is none. */
export function lastOf(
  { steps, values }: Pick<RunSeries, "steps" | "values">,
  name: string,
): { readonly step: number; readonly value: number } | undefined {
  const list = values[name] ?? [];
  for (let i = list.length - 1; i >= 0; i--) {
    const [step, value] = [steps[i], list[i]];
    if (step !== undefined && typeof value === "number") return { step, value };
  }
  return undefined;
}

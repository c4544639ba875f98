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

/** Numbers of a run as points. A point is a step, or in a long run the mean of adjacent steps. */
export interface RunSeries {
  /** The last step of each point, ascending. */
  readonly steps: readonly number[];
  /** Lists by the names of `metrics.jsonl`, each as long as `steps`, with null where no step of a point has such a number. */
  readonly values: Readonly<Record<string, readonly (number | null)[]>>;
  /** Steps of each point but the last, which may have fewer: a power of two. */
  readonly stepsAPoint: number;
  /** The last number of each name, and its step. */
  readonly last: Readonly<Record<string, { readonly step: number; readonly value: number }>>;
  /** Number of lines that are no steps: cut off, or not of this format. */
  readonly badLines: number;
}

/** Most points of a run in a report and on a live page. */
export const MOST_POINTS = 2000;

/** The numbers of one name by point. */
interface Column {
  readonly sums: number[];
  /** Steps that have this number. */
  readonly counts: number[];
}

/**
 * Adds up the lines of `metrics.jsonl`, of which more may come. Adjacent points are merged when there would be too many, so a long
 * run takes no more memory and time than a short one.
 */
export class SeriesLines {
  readonly #most: number;
  #stepsAPoint = 1;
  /** Steps of the last point. */
  #stepsOfLast = 1;
  readonly #steps: number[] = [];
  readonly #columns = new Map<string, Column>();
  readonly #last = new Map<string, { readonly step: number; readonly value: number }>();
  #badLines = 0;

  /** @param most most points; Infinity keeps each step */
  constructor(most: number = MOST_POINTS) {
    this.#most = most;
  }

  /** Takes a line without its end. A step that is there twice counts as it was last, or twice where points were merged. */
  add(line: string): void {
    if (line === "") return;
    const row = numbersOf(line);
    const step = row?.["step"];
    if (row === undefined || step === undefined) {
      this.#badLines++;
      return;
    }
    const place = this.#placeFor(step);
    for (const [name, value] of Object.entries(row)) {
      if (name === "step") continue;
      const { sums, counts } = this.#columnOf(name);
      sums[place] = at(sums, place, "sum") + value;
      counts[place] = at(counts, place, "count") + 1;
      if (step >= (this.#last.get(name)?.step ?? step)) this.#last.set(name, { step, value });
    }
    if (this.#steps.length > this.#most) this.#merge();
  }

  /** The numbers so far. */
  series(): RunSeries {
    const meansOf = ({ sums, counts }: Column): readonly (number | null)[] =>
      sums.map((sum, i) => counts[i] === 0 ? null : sum / at(counts, i, "count"));
    return {
      steps: [...this.#steps],
      values: Object.fromEntries(Array.from(this.#columns, ([name, column]) => [name, meansOf(column)])),
      stepsAPoint: this.#stepsAPoint,
      last: Object.fromEntries(this.#last),
      badLines: this.#badLines,
    };
  }

  /** The place of the point that takes a step. It is made if there is none. */
  #placeFor(step: number): number {
    const place = placeAfter(this.#steps, (one) => one < step);
    const isLast = place === this.#steps.length;
    if (isLast && place > 0 && this.#stepsOfLast < this.#stepsAPoint) {
      this.#steps[place - 1] = step;
      this.#stepsOfLast++;
      return place - 1;
    }
    if (!isLast && this.#stepsAPoint > 1) return place;
    const isAgain = this.#steps[place] === step;
    for (const list of [this.#steps, ...this.#lists()]) {
      list.splice(place, isAgain ? 1 : 0, list === this.#steps ? step : 0);
    }
    if (isLast) this.#stepsOfLast = 1;
    return place;
  }

  #columnOf(name: string): Column {
    const known = this.#columns.get(name);
    if (known !== undefined) return known;
    const zeros = (): number[] => this.#steps.map(() => 0);
    const column = { sums: zeros(), counts: zeros() };
    this.#columns.set(name, column);
    return column;
  }

  *#lists(): Generator<number[]> {
    for (const { sums, counts } of this.#columns.values()) yield* [sums, counts];
  }

  /** Merges each two adjacent points. */
  #merge(): void {
    const count = Math.ceil(this.#steps.length / 2);
    if (this.#steps.length % 2 === 0) this.#stepsOfLast += this.#stepsAPoint;
    this.#stepsAPoint *= 2;
    const lastStepOf = (i: number): number => at(this.#steps, Math.min(2 * i + 1, this.#steps.length - 1), "step");
    for (let i = 0; i < count; i++) this.#steps[i] = lastStepOf(i);
    this.#steps.length = count;
    for (const list of this.#lists()) {
      for (let i = 0; i < count; i++) list[i] = list.slice(2 * i, 2 * i + 2).reduce((sum, number) => sum + number);
      list.length = count;
    }
  }
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

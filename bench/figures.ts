/**
 * Rounds of a case as one figure.
 *
 * @module
 */

/** Figures by who computed them, of which the best counts: a number, or why there is none. */
export type Alternatives = ReadonlyMap<string, number | string>;

/** The result of one round of a case: a number, the reason why there is none, or both for each program that computed it. */
export type Outcome = number | string | Alternatives;

/** The figures of one side over all rounds. */
export interface Figure {
  /** The median of the rounds; of the best, where several computed it. */
  readonly value: number | undefined;
  /** The numbers that it is the median of. */
  readonly rounds: readonly number[];
  /** The program that computed the figure, where there were several, and the medians of all. */
  readonly by: string | undefined;
  readonly medians: Readonly<Record<string, number>>;
  /** The reason why some figure is missing. */
  readonly cannot: string | undefined;
}

/** The middle one, or the mean of both. */
export function median(values: readonly number[]): number | undefined {
  const sorted = values.toSorted((a, b) => a - b);
  const [low, high] = [sorted[(sorted.length - 1) >> 1], sorted[sorted.length >> 1]];
  return low === undefined || high === undefined ? undefined : (low + high) / 2;
}

/** Sums up rounds of one side. A name that is in some rounds alone counts with those. */
export function figureOf(outcomes: readonly (Outcome | undefined)[], higherIsBetter: boolean): Figure {
  const numbers = new Map<string | undefined, number[]>();
  const reasons = new Map<string | undefined, string>();
  const take = (by: string | undefined, outcome: number | string): void => {
    if (typeof outcome === "string") reasons.set(by, reasons.get(by) ?? outcome);
    else numbers.set(by, [...numbers.get(by) ?? [], outcome]);
  };
  for (const outcome of outcomes) {
    if (outcome === undefined) continue;
    if (typeof outcome === "object") { for (const [by, one] of outcome) take(by, one); }
    else take(undefined, outcome);
  }
  let best: Pick<Figure, "value" | "rounds" | "by"> = { value: undefined, rounds: [], by: undefined };
  const medians: Record<string, number> = {};
  for (const [by, rounds] of numbers) {
    const value = median(rounds);
    if (value === undefined) continue;
    if (by !== undefined) medians[by] = value;
    const isBetter = best.value === undefined || (higherIsBetter ? value > best.value : value < best.value);
    if (isBetter) best = { value, rounds, by };
  }
  const told = [...reasons].map(([by, why]) => by === undefined ? why : `${by}: ${why}`);
  return { ...best, medians, cannot: told.length === 0 ? undefined : told.join("; ") };
}

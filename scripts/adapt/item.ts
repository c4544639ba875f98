/**
 * An item of `npm run adapt`: what is asked, and what was found.
 *
 * @module
 */
import type { Bed } from "./bed.ts";

/** Figures of an item by name, as they stand in its line of JSON. */
export type Figures = Readonly<Record<string, number | string | boolean | readonly (number | string)[]>>;

/** What an item found. */
export interface Outcome {
  /** Null where it could not be run. */
  readonly pass: boolean | null;
  readonly figures: Figures;
  /** What is wrong, in words. */
  readonly reason?: string;
}

/** One question, which is answered with a verdict and figures. */
export interface AdaptItem {
  readonly name: string;
  /** True if there is nothing to compare with without the peer. */
  readonly needsPeer?: true;
  run(bed: Bed): Promise<Outcome>;
}

/** The verdict on an item; `pass` is null where it was not run. */
export interface ItemReport {
  readonly name: string;
  readonly pass: boolean | null;
  readonly seconds: number;
  readonly reason?: string;
  readonly figures: Figures;
}

/** A verdict by what is wrong: nothing, or the reasons. */
export function verdict(wrong: readonly string[], figures: Figures): Outcome {
  return wrong.length === 0 ? { pass: true, figures } : { pass: false, figures, reason: wrong.join("; ") };
}

/** Runs an item. An error is a failure, with its words. */
export async function report(item: AdaptItem, bed: Bed): Promise<ItemReport> {
  const { name, needsPeer = false } = item;
  if (needsPeer && bed.peer === undefined) {
    return { name, pass: null, seconds: 0, reason: "not run: it needs --peer trl", figures: {} };
  }
  const started = performance.now();
  const outcome = await item.run(bed).catch((error: unknown): Outcome => {
    return { pass: false, figures: {}, reason: error instanceof Error ? error.message : String(error) };
  });
  return { name, seconds: Math.round(performance.now() - started) / 1000, ...outcome };
}

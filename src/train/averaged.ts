/**
 * Work on the weights that a run evaluates and saves as its model: their averages where it keeps some, else the weights themselves.
 *
 * @module
 */
import type { StepContext } from "./step.ts";

/** Calls `body` with those weights in the model; afterwards it has its own again. Every rank must call it. */
export async function averaged<T>({ optimizer }: Pick<StepContext, "optimizer">, body: () => Promise<T>): Promise<T> {
  return optimizer.hasAverages ? await optimizer.withAverages(body) : await body();
}

/**
 * Whether operations are recorded for a backward pass. One switch a thread: the step is synchronous, so nothing else runs
 * in between.
 *
 * @module
 */

let recording = true;

/** Whether operations are recorded now. */
export function gradEnabled(): boolean {
  return recording;
}

/**
 * Runs `body` without recording, as for evaluation.
 *
 * @returns what `body` returns
 * @example
 * ```ts
 * import { noGrad, openDevice, Parameter } from "fullyshard";
 * const device = await openDevice("cpu");
 * const weight = new Parameter(device, [2]);
 * weight.materialize();
 * const doubled = noGrad(() => weight.mul(2));
 * if (doubled.requiresGrad || !weight.mul(2).requiresGrad) throw new Error("recorded");
 * ```
 */
export function noGrad<T>(body: () => T): T {
  const before = recording;
  recording = false;
  try {
    return body();
  } finally {
    recording = before;
  }
}

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
 * import { noGrad, openDevice, tensor } from "fullyshard";
 * const device = await openDevice("cpu");
 * const x = tensor(device, [1, 2], { requiresGrad: true });
 * const y = noGrad(() => x.mul(2));
 * if (y.requiresGrad) throw new Error("recorded");
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

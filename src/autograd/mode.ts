/**
 * Whether operations are recorded for a backward pass. One switch a thread: the step is synchronous, so nothing else runs
 * in between.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";

let recording = true;

/** Whether operations are recorded now. */
export function gradEnabled(): boolean {
  return recording;
}

/**
 * Runs `body` without recording, as for evaluation.
 *
 * @param body synchronous
 * @returns what `body` returns
 * @throws {ArgumentError} if it is async
 * @example
 * ```ts
 * import { noGrad } from "fullyshard";
 * import { openDevice } from "fullyshard/device";
 * import { Parameter } from "fullyshard/nn";
 * const device = await openDevice("cpu");
 * const weight = new Parameter(device, [2]);
 * weight.materialize();
 * const doubled = noGrad(() => weight.mul(2));
 * if (doubled.requiresGrad || !weight.mul(2).requiresGrad) throw new Error("recorded");
 * ```
 */
export function noGrad<T>(body: () => T): T {
  return withRecording(false, () => {
    const result = body();
    if (result instanceof Promise) {
      throw new ArgumentError("Cannot use noGrad() with an async function: what it awaits for would be recorded again");
    }
    return result;
  });
}

/** Runs `body`, which is synchronous, with operations recorded or not. */
export function withRecording<T>(on: boolean, body: () => T): T {
  const before = recording;
  recording = on;
  try {
    return body();
  } finally {
    recording = before;
  }
}

/**
 * The switch that says if operations are recorded for a backward pass, one for each thread: a step is synchronous, so no other
 * code can change it meanwhile.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";

let recording = true;

/** True if operations are recorded now. */
export function gradEnabled(): boolean {
  return recording;
}

/**
 * Calls `body` without recording, as for evaluation.
 *
 * @param body synchronous
 * @returns the result of `body`
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

/** Calls `body`, which is synchronous, with recording switched on or off. */
export function withRecording<T>(on: boolean, body: () => T): T {
  const before = recording;
  recording = on;
  try {
    return body();
  } finally {
    recording = before;
  }
}

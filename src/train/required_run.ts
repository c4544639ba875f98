/** Refuses a call without its run. @module */
import { ArgumentError } from "../errors.ts";
import { valueText } from "../words.ts";

/**
 * Refuses what is no run of `launch`, nor has a group as one.
 *
 * @param what is not done, e.g. `open a model`
 * @throws {ArgumentError} with the value
 */
export function requireRun(what: string, run: unknown): void {
  if (typeof run === "object" && run !== null && "group" in run && run.group !== undefined) return;
  throw new ArgumentError(`Cannot ${what} of ${valueText(run)}: expected a run first, as launch() gives it`);
}

/**
 * A rank's report to the launcher of the error that ends it, so that the launcher can name the cause and omit its consequences.
 *
 * @module
 */
import { CollectiveError, isOneOf, OUTER_ERRORS, RendezvousError } from "../errors.ts";
import { encodeControlLine, type FailureRecord } from "../runtime/control_line.ts";
import { processEnvironment } from "../runtime/env.ts";
import { readRankEnvironment } from "../runtime/rank_environment.ts";
import { onUncaughtError } from "../runtime/processes.ts";
import { terminal } from "../runtime/terminal.ts";

/** True if a launcher reads this process's output. */
export function hasLauncher(): boolean {
  return processEnvironment().flag("FULLYSHARD_PREFIXED");
}

/** This rank; undefined for a process on its own, and if the environment itself is wrong. */
export function rankOf(): number | undefined {
  try {
    return readRankEnvironment()?.rank;
  } catch {
    return undefined;
  }
}

export function failureOf(error: unknown, uncaught = false): FailureRecord {
  const { name, message, stack = "" } = error instanceof Error ? error : { name: "Error", message: String(error) };
  const frames = isOneOf(error, OUTER_ERRORS) ? [] : stack.split("\n").filter((line) => /^\s+at /.test(line));
  const followed = error instanceof CollectiveError
    ? error.facts.stoppedBy
    : error instanceof RendezvousError
    ? error.stoppedBy
    : undefined;
  return { name, message, frames, uncaught, followed, time: Date.now() };
}

/** Reports a failure to the launcher, on the stream of the runtime's own report. */
export function tellFailure(failure: FailureRecord): void {
  terminal("stderr").write(`${encodeControlLine({ failure })}\n`);
}

let tells = false;

/** Reports an uncaught error to the launcher, if there is one, before the error ends the process. */
export function tellUncaughtErrors(): void {
  if (tells || !hasLauncher()) return;
  tells = true;
  onUncaughtError((error) => tellFailure(failureOf(error, true)));
}

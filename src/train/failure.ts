/**
 * What a rank tells the launcher of the error that ends it, so that the cause is named and its consequences are not.
 *
 * @module
 */
import { CollectiveError, isOneOf, OUTER_ERRORS, RendezvousError } from "../errors.ts";
import { encodeControlLine, type FailureRecord } from "../runtime/control_line.ts";
import { processEnvironment } from "../runtime/env.ts";
import { readRankEnvironment } from "../runtime/rank_environment.ts";
import { onUncaughtError } from "../runtime/processes.ts";
import { terminal } from "../runtime/terminal.ts";

/** Whether a launcher reads what this process prints. */
export function hasLauncher(): boolean {
  return processEnvironment().flag("FULLYSHARD_PREFIXED");
}

/** This rank; undefined for a process on its own, and where the environment is what is wrong. */
export function rankOf(): number | undefined {
  try {
    return readRankEnvironment()?.rank;
  } catch {
    return undefined;
  }
}

/** What is told of an error. */
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

/** Tells the launcher, on the stream where a runtime's own report of the error would follow. */
export function tellFailure(failure: FailureRecord): void {
  terminal("stderr").write(`${encodeControlLine({ failure })}\n`);
}

let tells = false;

/** Tells the launcher, if there is one, of an uncaught error, which ends the process all the same. */
export function tellUncaughtErrors(): void {
  if (tells || !hasLauncher()) return;
  tells = true;
  onUncaughtError((error) => tellFailure(failureOf(error, true)));
}

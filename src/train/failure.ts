/**
 * What a rank tells the launcher of the error that ends it, so that the cause is named and its consequences are not.
 *
 * @module
 */
import { CollectiveError, InternalError, RendezvousError } from "../errors.ts";
import { systemClock } from "../runtime/clock.ts";
import { encodeControlLine, type FailureRecord } from "../runtime/control_line.ts";
import { processEnvironment, readRankEnvironment } from "../runtime/env.ts";
import { onUncaughtError, terminal } from "../runtime/processes.ts";

/** Whether a launcher reads what this process prints. */
export function hasLauncher(): boolean {
  return processEnvironment().flag("FULLYSHARD_PREFIXED");
}

/** This rank; 0 also where the environment is what is wrong. */
export function rankOf(): number {
  try {
    return readRankEnvironment()?.rank ?? 0;
  } catch {
    return 0;
  }
}

/** What is told of an error. Our own bugs show a stack. */
export function failureOf(error: unknown): FailureRecord {
  const { name, message, stack = "" } = error instanceof Error ? error : new Error(String(error));
  const isOurs = error instanceof InternalError || ["TypeError", "ReferenceError"].includes(name);
  const frames = stack.replace(`${name}: ${message}`, "");
  const followed = error instanceof CollectiveError
    ? error.facts.stoppedBy
    : error instanceof RendezvousError
    ? error.stoppedBy
    : undefined;
  const time = systemClock.now();
  return { rank: rankOf(), name, message: isOurs ? `${message}${frames}` : message, followed, time };
}

/** Tells the launcher. */
export function tellFailure(failure: FailureRecord): void {
  terminal("stdout").write(`${encodeControlLine({ failure })}\n`);
}

let tells = false;

/** Tells the launcher, if there is one, of an error that nobody catches; the error ends the process all the same. */
export function tellUncaughtErrors(): void {
  if (tells || !hasLauncher()) return;
  tells = true;
  onUncaughtError((error) => tellFailure(failureOf(error)));
}

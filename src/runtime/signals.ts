/**
 * The end of a process, asked for or come to by itself: SIGINT, SIGTERM and SIGHUP as a flag that work looks at where it can stop,
 * instead of a death in the middle.
 * A process that blocks sees them only at its next {@link eventTurn}; SIGKILL ends it at once.
 *
 * Permissions on Deno: none.
 *
 * @module
 */
import { constants } from "node:os";
import process from "node:process";
import { setImmediate, setTimeout } from "node:timers";

/** Signals that ask a process to stop. */
export type StopSignal = (typeof STOP_SIGNALS)[number];

/** All of them, the most pressing first. */
export const STOP_SIGNALS = ["SIGTERM", "SIGINT", "SIGHUP"] as const;

/** Whether this process was asked to stop. */
export interface StopRequest extends Disposable {
  /** The first signal that came, or `undefined`. */
  readonly signal: StopSignal | undefined;
}

/**
 * Catches the first of each of these signals until it is disposed. A second one of a kind ends the process by the system's
 * default, but for SIGHUP: where a terminal is closed, its shell sends it and so does the system.
 *
 * @param notify told of the first
 */
export function watchStopSignals(notify: (signal: StopSignal) => void = () => {}): StopRequest {
  let first: StopSignal | undefined;
  const listeners = STOP_SIGNALS.map((signal) => {
    const listener = (): void => {
      if (signal !== "SIGHUP") process.removeListener(signal, listener);
      if (first !== undefined) return;
      first = signal;
      notify(signal);
    };
    process.on(signal, listener);
    return [signal, listener] as const;
  });
  return {
    get signal(): StopSignal | undefined {
      return first;
    },
    [Symbol.dispose](): void {
      for (const [signal, listener] of listeners) process.removeListener(signal, listener);
    },
  };
}

let ignoresFileSize = false;

/**
 * Makes a write beyond the limit on the size of files (`ulimit -f`) an error, EFBIG, that is told. Under Deno the signal SIGXFSZ
 * would end the process instead; Bun ignores it by itself.
 */
export function ignoreFileSizeSignal(): void {
  if (ignoresFileSize) return;
  ignoresFileSize = true;
  process.on("SIGXFSZ", () => {});
}

/** The exit code by which a shell reports a signal. */
export function exitCodeOf(signal: keyof typeof constants.signals): number {
  return 128 + constants.signals[signal];
}

/** Longest time without an idle turn, in milliseconds. */
const IDLE_EVERY_MS = 50;
let idleAt = 0;

/**
 * Lets what waits in the event loop run, signals among it. Deno looks for signals only where it idles, or after dozens of
 * busy turns, so a turn idles if the last one to do so is long ago: an idle turn takes 1 ms, a busy one some microseconds.
 */
export function eventTurn(): Promise<void> {
  const now = performance.now();
  if (now - idleAt < IDLE_EVERY_MS) return new Promise((resolve) => void setImmediate(resolve));
  idleAt = now;
  return new Promise((resolve) => void setTimeout(resolve, 1));
}

/**
 * Calls `listener` when nothing is left to run in this process, unless the returned function was called before. What it throws
 * ends the process as an uncaught error.
 */
export function onProgramEnd(listener: () => void): () => void {
  const atEnd = (): void => void setImmediate(listener); // Deno does not report what the event's own listeners throw
  process.once("beforeExit", atEnd);
  return () => void process.removeListener("beforeExit", atEnd);
}

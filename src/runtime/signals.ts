/**
 * The end of a process, by request or by itself: SIGINT, SIGTERM, SIGHUP and SIGUSR1 set a flag, which work checks at points where it can
 * stop. A process that blocks sees them only at its next {@link eventTurn}; SIGKILL ends it at once.
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

/** All stop signals, the most urgent first. SLURM sends SIGUSR1 before a job's limit of time (`--signal=USR1@120`). */
export const STOP_SIGNALS = ["SIGTERM", "SIGINT", "SIGHUP", "SIGUSR1"] as const;

/**
 * Signals that come more than once for one reason, and a second of which ends nothing: a closing terminal and its shell both send SIGHUP,
 * and SLURM sends SIGUSR1 to a launcher and to its ranks.
 */
export const REPEATED_SIGNALS: readonly StopSignal[] = ["SIGHUP", "SIGUSR1"];

/**
 * Signals of one kind that are so close to each other are one: a terminal sends a Ctrl-C to a process and to the program that started
 * it, which passes it on, late where the machine is busy.
 */
export const SAME_SIGNAL_MS = 500;

export interface StopRequest extends Disposable {
  /** The first signal that came, or `undefined`. */
  readonly signal: StopSignal | undefined;
}

/**
 * Catches the first of each of these signals until it is disposed. A second signal of the same kind, {@link SAME_SIGNAL_MS} later or
 * more, ends the process by the system's default, except {@link REPEATED_SIGNALS}.
 *
 * @param notify called with the first signal
 */
export function watchStopSignals(notify: (signal: StopSignal) => void = () => {}): StopRequest {
  let first: StopSignal | undefined;
  const listeners = STOP_SIGNALS.map((signal) => {
    const remove = (): void => void process.removeListener(signal, listener);
    const listener = (): void => {
      if (!REPEATED_SIGNALS.includes(signal)) setTimeout(remove, SAME_SIGNAL_MS).unref();
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
 * Makes a write beyond the limit on file sizes (`ulimit -f`) fail with EFBIG. Under Deno the signal SIGXFSZ would end the process
 * instead; Bun ignores it by itself.
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
 * Lets waiting events of the event loop be handled, with signals. Deno checks for signals only when it idles, or after dozens of
 * busy turns, so a turn idles if the last idle turn is long ago: an idle turn takes 1 ms, a busy one some microseconds.
 */
export function eventTurn(): Promise<void> {
  const now = performance.now();
  if (now - idleAt < IDLE_EVERY_MS) return new Promise((resolve) => void setImmediate(resolve));
  idleAt = now;
  return new Promise((resolve) => void setTimeout(resolve, 1));
}

/**
 * Calls `listener` when nothing is left to do in this process, unless the returned function was called before. An error of
 * `listener` ends the process as an uncaught error.
 */
export function onProgramEnd(listener: () => void): () => void {
  const atEnd = (): void => void setImmediate(listener); // Deno does not report what the event's own listeners throw
  process.once("beforeExit", atEnd);
  return () => void process.removeListener("beforeExit", atEnd);
}

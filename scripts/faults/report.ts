/**
 * The report on a fault, and the rules for all faults.
 *
 * @module
 */

/** The outcome of one fault. */
export interface FaultReport {
  readonly name: string;
  /** The line that names the fault; empty if none did. */
  readonly named: string;
  /** From the fault to the end of the run. */
  readonly ended_in_seconds: number;
  /** Checkpoints that were saved and cannot be read. */
  readonly lost: readonly string[];
  /** The differences from the expected outcome. */
  readonly wrong: readonly string[];
}

/** Seconds within which a run must end, from the fault or the timeout that finds it. */
export const LIMIT_SECONDS = 5;

/** Seconds to a hundredth. */
export function round(seconds: number): number {
  return Math.round(seconds * 100) / 100;
}

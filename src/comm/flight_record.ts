/**
 * The last calls of every rank of a group, as plain data: what is looked at when ranks have stopped.
 *
 * @module
 */
import type { CallKind, Phase } from "./call.ts";

/** One call that a rank has made. */
export interface RecordedCall {
  /** Number of the call in its group. */
  readonly sequence: number;
  /** What was called. */
  readonly kind: CallKind;
  /** FQN of the unit, or what the call is about. */
  readonly unit: string;
  /** When in the step; null outside of one. */
  readonly phase: Phase | null;
  /** Step of the training. */
  readonly step: number;
  /** Bytes that it moves. */
  readonly bytes: number;
}

/** One rank of a record. */
export interface RecordedRank {
  /** Its rank in the world. */
  readonly rank: number;
  /** Whether it waits in its newest call, is past it, has left the group, or is gone. */
  readonly state: "waiting" | "running" | "left" | "dead";
  /** The newest last, as many as are kept. */
  readonly calls: readonly RecordedCall[];
}

/** What ranks of a group have called. */
export interface FlightRecord {
  /** Name of the group. */
  readonly group: string;
  /** The rank that looked. */
  readonly rank: number;
  /** All ranks of the group. */
  readonly ranks: readonly RecordedRank[];
}

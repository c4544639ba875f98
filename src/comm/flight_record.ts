/**
 * The last calls of every rank of a group, as plain data: read after ranks have stopped.
 *
 * @module
 */
import type { CallKind, Phase } from "./call.ts";

/** One call that a rank has made. */
export interface RecordedCall {
  /** Number of the call in its group. */
  readonly sequence: number;
  /** Kind of the call. */
  readonly kind: CallKind;
  /** FQN of the unit, or the purpose of the call. */
  readonly unit: string;
  /** Phase of the step; null outside of one. */
  readonly phase: Phase | null;
  /** Step of the training. */
  readonly step: number;
  /** Bytes that the call moves. */
  readonly bytes: number;
}

/** One rank of a record. */
export interface RecordedRank {
  /** Its rank in the world. */
  readonly rank: number;
  /** `waiting` in its newest call, `running` after it, `left` the group, or `dead`. */
  readonly state: "waiting" | "running" | "left" | "dead";
  /** Its last calls, the newest last. */
  readonly calls: readonly RecordedCall[];
}

/** The last calls of the ranks of a group. */
export interface FlightRecord {
  /** Name of the group. */
  readonly group: string;
  /** World rank that made the record. */
  readonly rank: number;
  /** All ranks of the group. */
  readonly ranks: readonly RecordedRank[];
}

/**
 * The record of a call, which a rank announces before it makes the call. The record is compared between ranks, handed to
 * listeners, kept in shared words and read by error messages. A replayed graph is one call: `count` is then its number of
 * calls, and `detail` the hash over them.
 *
 * @module
 */
import { at } from "../at.ts";
import type { DType } from "../dtype.ts";
import { countOf } from "../words.ts";

/** Kinds of calls. */
export const CALL_KINDS = [
  "all-reduce",
  "reduce-scatter",
  "all-gather",
  "broadcast",
  "barrier",
  "exchange",
  "together",
  "open window",
  "write",
  "gather",
  "split",
  "send and receive",
  "replay",
] as const;
/** Name of a call, as messages spell it. */
export type CallKind = typeof CALL_KINDS[number];

/** Phases of a step in which a unit is gathered, reduced or written. */
export const PHASES = ["forward", "backward", "update", "manual"] as const;
/** Name of a phase. */
export type Phase = typeof PHASES[number];

/** One call of a group. */
export interface Call {
  /** Kind of the call. */
  readonly kind: CallKind;
  /** FQN of the unit, or the purpose of the call, e.g. `token count`. */
  readonly unit: string;
  /** Phase of the step; undefined outside of one. */
  readonly phase: Phase | undefined;
  /** dtype of the elements; undefined where bytes are counted. */
  readonly dtype: DType | undefined;
  /** Elements, or bytes where there is no dtype; calls of a replay. */
  readonly count: number;
  /** Hash of everything else that must agree: slices, root, operation, factor. */
  readonly detail: number;
  /** Number of the call in its group, from 1 without gaps. */
  readonly sequence: number;
  /** Step of the training; 0 before the first, and in a loop that does not tell its steps. */
  readonly step: number;
}

/** True for calls that all ranks of the group make in one order; false for messages between two ranks. */
export function isCollective({ kind }: Pick<Call, "kind">): boolean {
  return kind !== "send and receive";
}

/** Bytes that the call moves, as counted on one rank. */
export function byteLengthOf({ kind, count, dtype }: Pick<Call, "kind" | "count" | "dtype">): number {
  return kind === "replay" ? 0 : count * (dtype?.byteLength ?? 1);
}

/** A call in words, e.g. `gather 'layers.7' (forward, 4096 bytes)`. */
export function describeCall(call: Omit<Call, "detail">): string {
  const { kind, unit, phase, dtype, count } = call;
  const facts = kind === "replay" ? [countOf(count, "call")] : [
    ...phase === undefined ? [] : [phase],
    ...dtype === undefined ? [] : [dtype.name, countOf(count, "element")],
    ...count === 0 && dtype === undefined ? [] : [countOf(byteLengthOf(call), "byte")],
  ];
  return `${kind} '${unit}'${facts.length === 0 ? "" : ` (${facts.join(", ")})`}`;
}

/** The words of {@link describeCall}, with the step where that is known. */
export function describeInStep(call: Omit<Call, "detail">): string {
  return `${describeCall(call)}${call.step === 0 ? "" : ` of step ${call.step}`}`;
}

/** Initial value of a hash. */
export const HASH_START: number = 0x811c9dc5 | 0;

/** Continues a hash with one 32-bit number, so that different hashes stay different. */
export function hashWord(hash: number, value: number): number {
  // FNV-1a with whole words instead of bytes, and high bits mixed into the low ones.
  const mixed = Math.imul(hash ^ value, 0x01000193);
  return mixed ^ (mixed >>> 15);
}

const NUMBER = new Float64Array(1);
const HALVES = new Int32Array(NUMBER.buffer);

/** A hash of numbers by all 64 bits of each. */
export function hashNumbers(values: readonly number[]): number {
  let hash = HASH_START;
  for (const value of values) {
    NUMBER[0] = value;
    hash = hashWord(hashWord(hash, at(HALVES, 0, "half")), at(HALVES, 1, "half"));
  }
  return hash;
}

export function hashText(text: string): number {
  return new TextEncoder().encode(text).reduce(hashWord, HASH_START);
}

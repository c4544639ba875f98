/**
 * The last calls of every rank of a group, in shared words: written by their rank, compared by whichever rank comes to
 * the same sequence number later, read for messages by all. Numbers are compared; text is only read to explain.
 *
 * Note [Who compares]: a rank publishes its call, then compares it with those of the ranks that have published that
 * number already. Of any two ranks one publishes later and sees the other's, so every pair is compared without a wait.
 * An entry is overwritten only after every peer says that it has compared that number.
 *
 * @module
 */
import { CALL_KINDS } from "../transport.ts";
import type { CallKind } from "../transport.ts";
import { DTYPES } from "../../dtype.ts";
import type { DType } from "../../dtype.ts";

/** How many calls of each rank are kept, so how far one may run ahead. */
export const CALLS_KEPT: number = 64;
const ENTRY_WORDS = 32;
const LABEL = 7;
const LABEL_BYTES: number = (ENTRY_WORDS - LABEL) * 4;
/** Words of one rank's log. */
export const CALL_LOG_WORDS: number = CALLS_KEPT * ENTRY_WORDS;

/** A label with what the log needs of it. */
interface KnownLabel {
  readonly hash: number;
  readonly words: Int32Array;
  readonly byteLength: number;
}

/** Continues an FNV-1a hash with one 32-bit number. */
export function hashNumber(hash: number, value: number): number {
  let h = hash;
  for (let v = value >>> 0, i = 0; i < 4; i++, v >>>= 8) h = Math.imul(h ^ (v & 255), 0x01000193);
  return h;
}

/** Where a hash begins. */
export const HASH_START: number = 0x811c9dc5 | 0;

/** The logs of all ranks of one group. */
export class CallLog {
  readonly #words: Int32Array;
  readonly #bytes: Uint8Array;
  readonly #bases: readonly number[];
  readonly #rank: number;
  readonly #labels = new Map<string, KnownLabel>();

  /**
   * @param words the group's shared words
   * @param bases first word of each rank's log
   * @param rank whose log this one writes
   */
  constructor(words: Int32Array, bases: readonly number[], rank: number) {
    this.#words = words;
    this.#bytes = new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
    this.#bases = bases;
    this.#rank = rank;
  }

  /** Writes this rank's call; published by whoever stores its sequence number afterwards. */
  write(
    sequence: number,
    kind: CallKind,
    dtype: DType | undefined,
    count: number,
    detail: number,
    label: string,
  ): void {
    const known = this.#known(label);
    const at = this.#entry(this.#rank, sequence);
    const words = this.#words;
    words[at] = sequence | 0;
    words[at + 1] = CALL_KINDS.indexOf(kind) | (dtype === undefined ? 0 : dtype.code + 1) << 8;
    words[at + 2] = count | 0;
    words[at + 3] = Math.floor(count / 2 ** 32);
    words[at + 4] = detail | 0;
    words[at + 5] = known.hash;
    words[at + 6] = known.byteLength;
    words.set(known.words, at + LABEL);
  }

  /** Whether a rank's call of that number equals this rank's. */
  agrees(rank: number, sequence: number): boolean {
    const mine = this.#entry(this.#rank, sequence);
    const theirs = this.#entry(rank, sequence);
    const words = this.#words;
    for (let i = 0; i < 6; i++) if (words[mine + i] !== words[theirs + i]) return false;
    return true;
  }

  /** A rank's call of that number in words, e.g. `all-reduce 'loss' (float32, 3 elements, 12 bytes)`. */
  describe(rank: number, sequence: number): string {
    if (sequence === 0) return "no call yet";
    const at = this.#entry(rank, sequence);
    const words = this.#words;
    const code = words[at + 1] ?? 0;
    const count = ((words[at + 2] ?? 0) >>> 0) + (words[at + 3] ?? 0) * 2 ** 32;
    const start = (at + LABEL) * 4;
    const byteLength = words[at + 6] ?? 0;
    const text = new TextDecoder().decode(this.#bytes.slice(start, start + byteLength));
    const label = byteLength === LABEL_BYTES ? `${text}…` : text;
    const dtype = DTYPES.find((type) => type.code === (code >> 8) - 1);
    const size = dtype === undefined
      ? count === 0 ? "" : ` (${count} bytes)`
      : ` (${dtype.name}, ${count} elements, ${count * dtype.byteLength} bytes)`;
    return `${CALL_KINDS[code & 255] ?? "?"} '${label}'${size}`;
  }

  #entry(rank: number, sequence: number): number {
    return (this.#bases[rank] ?? 0) + (sequence & (CALLS_KEPT - 1)) * ENTRY_WORDS;
  }

  #known(label: string): KnownLabel {
    const found = this.#labels.get(label);
    if (found !== undefined) return found;
    const encoded = new TextEncoder().encode(label);
    const kept = encoded.subarray(0, LABEL_BYTES);
    const padded = new Uint8Array(Math.ceil(kept.length / 4) * 4);
    padded.set(kept);
    let hash = HASH_START;
    for (const byte of encoded) hash = Math.imul(hash ^ byte, 0x01000193);
    const known = { hash, words: new Int32Array(padded.buffer), byteLength: kept.length };
    // Labels are as many as units and phases; a caller that numbers its labels must not fill the heap.
    if (this.#labels.size >= 4096) this.#labels.clear();
    this.#labels.set(label, known);
    return known;
  }
}

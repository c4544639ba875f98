/**
 * The flight recorder: the last calls of every rank of a group, in shared words, written by their rank and read by all.
 * Ranks compare numbers; the texts only serve messages.
 *
 * Note [Rolling hash]:
 * - Each entry holds a hash over all calls of its rank, from the first to this call. So two ranks have made the same calls if they
 *   have the same hash for the newest call that both have made. No rank waits to compare.
 * - The first call that differs is the first with different hashes, if both ranks still keep the entries there.
 * - The newest {@link NUM_RECENT} hashes lie beside the newest number, so one cache line is mostly enough.
 *
 * An entry holds its call's number, which is zeroed while the entry is rewritten: so readers notice an overwritten entry.
 *
 * @module
 */
import { at } from "../../at.ts";
import { DTYPES } from "../../dtype.ts";
import { type Call, CALL_KINDS, HASH_START, hashWord, isCollective, PHASES } from "../call.ts";

const CALLS_KEPT = 64;

// Words of a log: number of the newest call, the newest hashes, then the entries.
const NEWEST = 0;
const RECENT = 8;
const NUM_RECENT = 8;
const ENTRIES = 16;
// Words of an entry; kind, phase and dtype have a byte of TYPE each, a count has two words.
const SEQUENCE = 0;
const ROLLING = 1;
const TYPE = 2;
const COUNT = 3;
const DETAIL = 5;
const UNIT_HASH = 6;
const STEP = 7;
const UNIT_LENGTH = 8;
const UNIT = 9;
const ENTRY_WORDS = 32;
const UNIT_BYTES: number = (ENTRY_WORDS - UNIT) * 4;
/** Slot for the last send/receive, which has no sequence number. */
export const P2P_ENTRY: number = ENTRIES + CALLS_KEPT * ENTRY_WORDS;
export const CALL_LOG_HEAD_WORDS: number = ENTRIES;
export const CALL_LOG_WORDS: number = P2P_ENTRY + ENTRY_WORDS;

type LoggedCall = Omit<Call, "detail">;

/** The logs of all ranks of one group. */
export class CallLog {
  readonly #log: (rank: number) => Int32Array;
  readonly #own: Int32Array;
  readonly #bytes: Uint8Array;
  /** The kept bytes and the hash of each unit's name. */
  readonly #units = new Map<string, { readonly hash: number; readonly kept: Uint8Array }>();
  #rolling = HASH_START;
  #newest = 0;

  /** @param logOf gives {@link CALL_LOG_WORDS} shared words of a rank, zeros at first; `rank` writes its own */
  constructor(logOf: (rank: number) => Int32Array, rank: number) {
    this.#log = logOf;
    this.#own = this.#log(rank);
    this.#bytes = new Uint8Array(this.#own.buffer, this.#own.byteOffset, CALL_LOG_WORDS * 4);
  }

  /** Number of a rank's newest call. Words hold its low 32 bits, as no rank is 2^31 calls ahead of any other. */
  newest(rank: number): number {
    return this.#newest + ((Atomics.load(this.#log(rank), NEWEST) - this.#newest) | 0);
  }

  /** Writes this rank's call to its log and publishes it. */
  write(call: Call): void {
    const { kind, phase, dtype, count, detail, sequence, step } = call;
    const unit = this.#known(call.unit);
    const words = this.#own;
    const begin = isCollective(call) ? placeOf(sequence) : P2P_ENTRY;
    Atomics.store(words, begin + SEQUENCE, 0);
    words[begin + TYPE] = CALL_KINDS.indexOf(kind) | (phase === undefined ? 0 : PHASES.indexOf(phase) + 1) << 8 |
      (dtype === undefined ? 0 : dtype.code + 1) << 16;
    words[begin + COUNT] = count | 0;
    words[begin + COUNT + 1] = Math.floor(count / 2 ** 32);
    words[begin + DETAIL] = detail;
    words[begin + UNIT_HASH] = unit.hash;
    words[begin + STEP] = step | 0;
    words[begin + UNIT_LENGTH] = unit.kept.length;
    this.#bytes.set(unit.kept, (begin + UNIT) * 4);
    if (isCollective(call)) {
      for (let i = TYPE; i < STEP; i++) this.#rolling = hashWord(this.#rolling, at(words, begin + i, "word of a call"));
      Atomics.store(words, begin + ROLLING, this.#rolling);
      Atomics.store(words, RECENT + sequence % NUM_RECENT, this.#rolling);
    }
    Atomics.store(words, begin + SEQUENCE, sequence | 0);
    if (!isCollective(call)) return;
    this.#newest = sequence;
    Atomics.store(words, NEWEST, sequence | 0);
  }

  /**
   * Compares this rank's calls with a peer's. See Note [Rolling hash].
   *
   * @returns the first call known to differ, and if all calls before it are known to be equal; `undefined` if no call that
   * both have made is known to differ
   */
  difference(peer: number): { readonly sequence: number; readonly isFirst: boolean } | undefined {
    const theirs = this.#log(peer);
    const newest = Math.min(this.#newest, this.newest(peer));
    if (newest === 0) return undefined;
    const recent = RECENT + newest % NUM_RECENT;
    const isEqual = Atomics.load(theirs, recent) === this.#own[recent];
    // The oldest recent hash may belong to the call which is being written.
    const isRecent = Math.max(this.#newest, this.newest(peer)) < newest + NUM_RECENT - 1;
    if (isEqual && isRecent) return undefined;
    if (this.#agree(theirs, newest) !== false) return undefined;
    for (let earlier = newest - 1; earlier > 0; earlier--) {
      const agree = this.#agree(theirs, earlier);
      if (agree !== false) return { sequence: earlier + 1, isFirst: agree === true };
    }
    return { sequence: 1, isFirst: true };
  }

  /**
   * A rank's call of that number; undefined if it is not kept any more.
   *
   * @param begin {@link P2P_ENTRY} for the rank's last send/receive, if it came after that call
   */
  read(rank: number, sequence: number, begin: number = placeOf(sequence)): LoggedCall | undefined {
    const words = this.#log(rank);
    const entry = words.slice(begin, begin + ENTRY_WORDS);
    if (entry[SEQUENCE] !== (sequence | 0) || Atomics.load(words, begin + SEQUENCE) !== (sequence | 0)) {
      return undefined;
    }
    const word = (index: number): number => at(entry, index, "word of a call");
    const type = word(TYPE);
    const text = new TextDecoder().decode(new Uint8Array(entry.buffer, UNIT * 4, word(UNIT_LENGTH)));
    return {
      kind: at(CALL_KINDS, type & 255, "kind of call"),
      phase: PHASES[(type >> 8 & 255) - 1],
      dtype: DTYPES.find(({ code }) => code === (type >> 16) - 1),
      count: (word(COUNT) >>> 0) + word(COUNT + 1) * 2 ** 32,
      unit: word(UNIT_LENGTH) === UNIT_BYTES ? `${text}…` : text,
      step: word(STEP),
      sequence,
    };
  }

  /** A rank's calls that are still kept, the newest last. */
  kept(rank: number): LoggedCall[] {
    const newest = this.newest(rank);
    const first = Math.max(1, newest - CALLS_KEPT + 1);
    const calls = Array.from({ length: newest - first + 1 }, (_, i) => this.read(rank, first + i));
    return calls.filter((call) => call !== undefined);
  }

  /** True if the hashes of a call are equal; `undefined` if one of the two is not kept any more. */
  #agree(theirs: Int32Array, sequence: number): boolean | undefined {
    const begin = placeOf(sequence);
    const [mine, other] = [this.#own[begin + ROLLING], Atomics.load(theirs, begin + ROLLING)];
    if (this.#own[begin] !== (sequence | 0) || Atomics.load(theirs, begin) !== (sequence | 0)) return undefined;
    return mine === other;
  }

  #known(unit: string): { readonly hash: number; readonly kept: Uint8Array } {
    const found = this.#units.get(unit);
    if (found !== undefined) return found;
    const encoded = new TextEncoder().encode(unit);
    const known = { hash: encoded.reduce(hashWord, HASH_START), kept: encoded.slice(0, UNIT_BYTES) };
    // Units are as many as the model has, but a caller that numbers its calls must not fill the heap.
    if (this.#units.size >= 4096) this.#units.clear();
    this.#units.set(unit, known);
    return known;
  }
}

function placeOf(sequence: number): number {
  return ENTRIES + (sequence % CALLS_KEPT) * ENTRY_WORDS;
}

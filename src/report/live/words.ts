/**
 * Words of memory that a run and the Worker of its live page share. Neither waits for the other: a run looks at them between steps.
 *
 * @module
 */

/** Places of words. */
const PLACES = { port: 0, save: 1, stop: 2, ended: 3, closed: 4, failed: 5 } as const;

/** Name of a word. */
type WordName = keyof typeof PLACES;

/** Most bytes of the reason of a failure. */
const REASON_BYTES = 4000;

/** Bytes of the words. */
const WORD_BYTES = 4 * Object.keys(PLACES).length;

/** The shared words. */
export class LiveWords {
  /** Their memory, to be handed to the Worker. */
  readonly buffer: SharedArrayBuffer;
  readonly #words: Int32Array;

  /** @param buffer of the other side; without one, new memory */
  constructor(buffer: SharedArrayBuffer = new SharedArrayBuffer(WORD_BYTES + REASON_BYTES)) {
    this.buffer = buffer;
    this.#words = new Int32Array(buffer, 0, WORD_BYTES / 4);
  }

  /** Sets a word. */
  set(name: WordName, value = 1): void {
    Atomics.store(this.#words, PLACES[name], value);
  }

  /** The value of a word. */
  get(name: WordName): number {
    return Atomics.load(this.#words, PLACES[name]);
  }

  /** The value of a word, which is 0 from then on. */
  take(name: WordName): number {
    return Atomics.exchange(this.#words, PLACES[name], 0);
  }

  /** Leaves the reason of a failure: of the Worker, which could not begin, or of the run. */
  fail(reason: string): void {
    const bytes = new TextEncoder().encode(reason).subarray(0, REASON_BYTES);
    new Uint8Array(this.buffer, WORD_BYTES).set(bytes);
    this.set("failed");
  }

  /** The reason of a failure; undefined if there was none. */
  get reason(): string | undefined {
    if (this.get("failed") === 0) return undefined;
    return new TextDecoder().decode(new Uint8Array(this.buffer, WORD_BYTES).slice()).replace(/[\0\ufffd]+$/, "");
  }
}

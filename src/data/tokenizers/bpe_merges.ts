/**
 * The merges of byte-pair encoding, applied: of all pairs of neighbours the one that was learned first becomes one token,
 * the leftmost of equal ones, until no pair was learned.
 *
 * Invariant: a pair that waits is merged if the token that it makes is what it was when it was put in the queue, even by
 * another merge, as in Python's `tokenizers`.
 *
 * @module
 */

/** Ranks are below it, so that a rank and a place fit a number. */
export const MAX_MERGES: number = 2 ** 21;

const PLACES = 2 ** 32;

/** The merges in the order in which they were learned: two ids, and the id that they become. */
export class Merges {
  readonly #mask: number;
  readonly #table: Int32Array;
  readonly #made: Int32Array;

  /** @param merges left id, right id and the id that they make; of equal pairs the last one counts */
  constructor(merges: readonly (readonly [left: number, right: number, made: number])[]) {
    let slots = 16;
    while (slots < 2 * merges.length) slots *= 2;
    this.#mask = slots - 1;
    this.#table = new Int32Array(3 * slots).fill(-1);
    this.#made = Int32Array.from(merges, ([, , made]) => made);
    for (const [rank, [left, right]] of merges.entries()) {
      const slot = this.#slotOf(left, right);
      this.#table.set([left, right, rank], 3 * slot);
    }
  }

  /** The slot of a pair, or the free one where it would be. */
  #slotOf(left: number, right: number): number {
    const table = this.#table;
    let hash = Math.imul(left, 0x9e3779b1) ^ Math.imul(right, 0x85ebca6b);
    hash ^= hash >>> 15;
    for (let slot = hash & this.#mask;; slot = (slot + 1) & this.#mask) {
      if (table[3 * slot + 2] === -1 || (table[3 * slot] === left && table[3 * slot + 1] === right)) return slot;
    }
  }

  #rankOf(left: number, right: number): number {
    return this.#table[3 * this.#slotOf(left, right) + 2] ?? -1;
  }

  /** Merges ids in place; a merged one is left where its first part was, and the others are removed. */
  apply(ids: number[]): void {
    const { length } = ids;
    if (length < 2) return;
    const next = new Int32Array(length);
    const previous = new Int32Array(length);
    const queue = new Queue();
    for (let place = 0; place < length; place++) {
      next[place] = place + 1;
      previous[place] = place - 1;
      this.#push(queue, ids, place, place + 1);
    }
    for (let key = queue.pop(); key >= 0; key = queue.pop()) {
      const place = key % PLACES;
      const made = this.#made[(key - place) / PLACES] ?? -1;
      const left = ids[place] ?? -1;
      const right = next[place] ?? length;
      if (left < 0 || right >= length) continue;
      const rank = this.#rankOf(left, ids[right] ?? -1);
      if (rank < 0 || this.#made[rank] !== made) continue;
      ids[place] = made;
      ids[right] = -1;
      const after = next[right] ?? length;
      next[place] = after;
      if (after < length) previous[after] = place;
      const before = previous[place] ?? -1;
      if (before >= 0) this.#push(queue, ids, before, place);
      this.#push(queue, ids, place, after);
    }
    let kept = 0;
    for (const id of ids) if (id >= 0) ids[kept++] = id;
    ids.length = kept;
  }

  #push(queue: Queue, ids: readonly number[], place: number, right: number): void {
    const second = ids[right];
    const first = ids[place];
    if (first === undefined || second === undefined) return;
    const rank = this.#rankOf(first, second);
    if (rank >= 0) queue.push(rank * PLACES + place);
  }
}

/** A queue of numbers, the least first. */
class Queue {
  readonly #heap: number[] = [];

  push(key: number): void {
    const heap = this.#heap;
    let place = heap.push(key) - 1;
    while (place > 0) {
      const parent = (place - 1) >> 1;
      const above = heap[parent] ?? 0;
      if (above <= key) break;
      heap[place] = above;
      place = parent;
    }
    heap[place] = key;
  }

  /** The least; -1 where there is none. */
  pop(): number {
    const heap = this.#heap;
    const [top = -1] = heap;
    const key = heap.pop();
    if (key === undefined || heap.length === 0) return top;
    let place = 0;
    for (let child = 1; child < heap.length; child = 2 * place + 1) {
      const other = heap[child + 1];
      let least = heap[child] ?? 0;
      if (other !== undefined && other < least) {
        least = other;
        child++;
      }
      if (least >= key) break;
      heap[place] = least;
      place = child;
    }
    heap[place] = key;
    return top;
  }
}

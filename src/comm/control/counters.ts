/**
 * Monotonic counters (mod 2^32) in shared memory, and on them a broadcast ring of {@link DEPTH} slots a rank: SENT = produced,
 * TAKEN = consumed. A rank raises its own counter alone, so a wait is always until a rank's counter has reached n.
 *
 * Note [Rounds]: ranks pass data in numbered rounds, which are the same for all ranks. In round k, a rank
 * 1. waits until every peer's TAKEN is at least k - DEPTH + 1;
 * 2. writes its slot k mod DEPTH, and raises its SENT to k + 1;
 * 3. reads a peer's slot k mod DEPTH once that peer's SENT is k + 1;
 * 4. raises its TAKEN to k + 1 after its last read.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { ControlPlane } from "../control_plane.ts";

/** Slots of a rank's ring: the most rounds by which writing is ahead of reading. */
export const DEPTH = 4;

/** One counter of each rank of a group. */
export class Counters {
  readonly #control: ControlPlane;
  readonly #blocks: readonly Int32Array[];
  readonly #word: number;

  /** @param word index of the counter among the shared words of each rank, zeros at first */
  constructor(control: ControlPlane, blocks: readonly Int32Array[], word: number) {
    this.#control = control;
    this.#blocks = blocks;
    this.#word = word;
  }

  /** This rank's counter. */
  get own(): number {
    return Atomics.load(at(this.#blocks, this.#control.rank, "rank"), this.#word);
  }

  /** Raises this rank's counter and wakes the ranks that wait for it. */
  raise(value: number): void {
    Atomics.store(at(this.#blocks, this.#control.rank, "rank"), this.#word, value | 0);
    this.#control.notify();
  }

  /** True once a rank's counter is at least `target`. */
  reached(rank: number, target: number): boolean {
    return ((Atomics.load(at(this.#blocks, rank, "rank"), this.#word) - target) | 0) >= 0;
  }

  /** Waits until a rank's counter has reached `target`. @param stage the rank's awaited step, e.g. `its contribution` */
  wait(rank: number, target: number, stage: string): void {
    if (!this.reached(rank, target)) this.#control.wait(() => this.reached(rank, target), stage, rank);
  }

  /** Waits until every peer's counter has reached `target`. */
  waitAll(target: number, stage: string): void {
    const { rank, size } = this.#control;
    for (let peer = 0; peer < size; peer++) if (peer !== rank) this.wait(peer, target, stage);
  }
}

/** The rounds of a group. See Note [Rounds]. */
export class Rounds {
  readonly #sent: Counters;
  readonly #taken: Counters;
  /** The next round's number. */
  next = 0;

  /**
   * @param sent index of the shared word that counts the rounds a rank has written
   * @param taken index of the word that counts the rounds it has read
   */
  constructor(control: ControlPlane, blocks: readonly Int32Array[], sent: number, taken: number) {
    this.#sent = new Counters(control, blocks, sent);
    this.#taken = new Counters(control, blocks, taken);
  }

  /** Waits until this rank's slot for a round is free; returns the slot's number. */
  begin(round: number): number {
    this.#taken.waitAll(round - DEPTH + 1, "its read of an earlier round");
    return round % DEPTH;
  }

  /** Tells the peers that this rank has written its slot. */
  publish(round: number): void {
    this.#sent.raise(round + 1);
  }

  /** Waits until rank `rank` has written its slot. */
  wait(round: number, rank: number): void {
    this.#sent.wait(rank, round + 1, "its contribution");
  }

  /** Waits until every peer has written its slot. */
  waitAll(round: number): void {
    this.#sent.waitAll(round + 1, "its contribution");
  }

  /** Waits until every peer has read all slots of this rank. */
  drain(): void {
    this.#taken.waitAll(this.next, "its read of an earlier round");
  }

  /** Tells the peers that this rank has read all that it needs. */
  end(round: number): void {
    this.next = round + 1;
    this.#taken.raise(round + 1);
  }
}

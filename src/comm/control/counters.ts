/**
 * Order between ranks that share memory: counters that only rise, and rounds built of two of them. A rank raises its own
 * counter alone (modulo 2^32), so a wait is always "until that rank's counter has reached n".
 *
 * Note [Rounds]: ranks pass each other data in numbered rounds, through memory that each rank owns {@link DEPTH} parts
 * of. In round k a rank writes its part k mod DEPTH and raises SENT to k + 1; it reads a peer's part of round k after
 * that peer's SENT is k + 1; when it has read all that it will, it raises TAKEN to k + 1; and it writes round k only
 * after every peer's TAKEN is at least k - DEPTH + 1. Every rank makes the same rounds.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { ControlPlane } from "../control_plane.ts";

/** Parts of a rank's memory for rounds: how far the writing may be ahead of the reading. */
export const DEPTH = 4;

/** One counter of each rank of a group. */
export class Counters {
  readonly #control: ControlPlane;
  readonly #blocks: readonly Int32Array[];
  readonly #word: number;

  /** @param word which of the shared words of each rank, zero at first, is the counter */
  constructor(control: ControlPlane, blocks: readonly Int32Array[], word: number) {
    this.#control = control;
    this.#blocks = blocks;
    this.#word = word;
  }

  /** This rank's counter. */
  get own(): number {
    return Atomics.load(at(this.#blocks, this.#control.rank, "rank"), this.#word);
  }

  /** Raises this rank's counter and wakes whoever waits for it. */
  raise(value: number): void {
    Atomics.store(at(this.#blocks, this.#control.rank, "rank"), this.#word, value | 0);
    this.#control.notify();
  }

  /** Whether a rank's counter has reached `target`. */
  reached(rank: number, target: number): boolean {
    return ((Atomics.load(at(this.#blocks, rank, "rank"), this.#word) - target) | 0) >= 0;
  }

  /** Waits until a rank's counter has reached `target`. @param stage what the rank should do, e.g. `contributing` */
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
   * @param sent which of the shared words counts what a rank has written
   * @param taken which counts what a rank has read
   */
  constructor(control: ControlPlane, blocks: readonly Int32Array[], sent: number, taken: number) {
    this.#sent = new Counters(control, blocks, sent);
    this.#taken = new Counters(control, blocks, taken);
  }

  /** Waits until this rank's part for a round is free; returns the part's number. */
  begin(round: number): number {
    this.#taken.waitAll(round - DEPTH + 1, "taking what was sent before");
    return round % DEPTH;
  }

  /** This rank has written its part. */
  publish(round: number): void {
    this.#sent.raise(round + 1);
  }

  /** Waits until a rank has written its part. */
  wait(round: number, rank: number): void {
    this.#sent.wait(rank, round + 1, "contributing");
  }

  /** Waits until every peer has written its part. */
  waitAll(round: number): void {
    this.#sent.waitAll(round + 1, "contributing");
  }

  /** Waits until every peer has read all of this rank's parts. */
  drain(): void {
    this.#taken.waitAll(this.next, "taking what was sent before");
  }

  /** This rank has read all that it will. */
  end(round: number): void {
    this.next = round + 1;
    this.#taken.raise(round + 1);
  }
}

/**
 * Lengths of messages between two ranks, compared before NCCL gets them: NCCL compares nothing, and where lengths differ it may wait
 * for ever. Each rank writes its length into shared memory; the second of the two to write compares both. Neither waits.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { ControlPlane } from "../control_plane.ts";
import type { RunFiles } from "../control/run_files.ts";
import { shareSegment } from "../control/segments.ts";
import type { Transfer } from "../data_plane.ts";

/** How many messages one rank may be ahead of the other; the lengths of those further ahead are not compared. */
const KEPT = 64;
/** Bytes of a message: its number, from 1, and from the eighth byte its length. */
const MESSAGE_BYTES = 16;

/** What the ranks of a group have sent each other, and received. */
export class MessageLengths implements Disposable {
  readonly #control: ControlPlane;
  readonly #numbers: Int32Array;
  readonly #lengths: Float64Array;
  readonly #kept: DisposableStack;
  /** How many there were, by direction and peer. */
  readonly #counts: Uint32Array;

  /** Collective. */
  constructor(control: ControlPlane, files: RunFiles) {
    const byteLength = 2 * control.size ** 2 * KEPT * MESSAGE_BYTES;
    const request = { byteLength, owner: "lengths of messages", leader: 0 };
    const { value, kept } = shareSegment(
      control,
      files,
      request,
      (_, address) => files.posix.provider.viewOf(address, byteLength),
    );
    this.#control = control;
    this.#numbers = new Int32Array(value);
    this.#lengths = new Float64Array(value);
    this.#kept = kept;
    this.#counts = new Uint32Array(2 * control.size);
  }

  /** Tells the other end of a message its length. @throws {CollectiveError} if that has another one */
  announce({ kind, byteLength, peer }: Transfer): void {
    const { rank, size, worldRanks } = this.#control;
    const counter = (kind === "send" ? 0 : size) + peer;
    const number = at(this.#counts, counter, "count of messages") + 1;
    this.#counts[counter] = number;
    const [from, to] = kind === "send" ? [rank, peer] : [peer, rank];
    const placeOf = (end: number): number => (((end * size + from) * size + to) * KEPT + number % KEPT);
    const [sender, receiver] = [placeOf(0), placeOf(1)];
    const [own, other] = kind === "send" ? [sender, receiver] : [receiver, sender];
    this.#lengths[own * 2 + 1] = byteLength;
    Atomics.store(this.#numbers, own * 4, number | 0);
    if (Atomics.load(this.#numbers, other * 4) !== (number | 0)) return;
    const [sent, received] = [sender, receiver].map((end) => at(this.#lengths, end * 2 + 1, "length"));
    if (sent === received) return;
    const [source, target] = [from, to].map((end) => at(worldRanks, end, "world rank of rank"));
    this.#control.stop(`rank ${source} sends ${sent} bytes, but rank ${target} receives ${received}`);
  }

  [Symbol.dispose](): void {
    this.#kept.dispose();
  }
}

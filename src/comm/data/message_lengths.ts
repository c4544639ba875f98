/**
 * Comparison of the lengths of messages between two ranks. NCCL compares nothing, and may wait forever if lengths differ.
 * Each rank publishes the length of its messages before it hands them to NCCL, and compares the peer's lengths then, or
 * later as they arrive. No rank waits.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { ControlPlane } from "../control_plane.ts";
import type { Transfer } from "../data_plane.ts";
import type { RankParts, ShareParts } from "../rank_parts.ts";

/** Number of lengths kept for each pair and direction; a rank that is further ahead of its peer is not compared. */
const KEPT = 64;
/** Bytes of a message's entry: its number, from 1, and from byte 8 its length. */
const MESSAGE_BYTES = 16;

/** A message whose peer has not published its length. */
interface Unannounced {
  readonly transfer: Transfer;
  readonly number: number;
}

/** Lengths of the messages that the ranks of a group have sent and received. */
export class MessageLengths implements Disposable {
  readonly #control: ControlPlane;
  readonly #shared: RankParts;
  readonly #numbers: readonly Int32Array[];
  readonly #lengths: readonly Float64Array[];
  /** Number of messages so far, by direction and peer. */
  readonly #counts: Uint32Array;
  #unannounced: Unannounced[] = [];

  /** Collective. */
  constructor(control: ControlPlane, share: ShareParts) {
    const byteLength = 2 * control.size * KEPT * MESSAGE_BYTES;
    this.#control = control;
    this.#shared = share(control, byteLength, "lengths of messages");
    const { parts } = this.#shared;
    this.#numbers = parts.map(({ buffer, byteOffset }) => new Int32Array(buffer, byteOffset, byteLength / 4));
    this.#lengths = parts.map(({ buffer, byteOffset }) => new Float64Array(buffer, byteOffset, byteLength / 8));
    this.#counts = new Uint32Array(2 * control.size);
    this.#shared.onChange(() => this.#compare());
  }

  /** Publishes the length of a message. @throws {CollectiveError} if the peer has published a different length */
  announce(transfer: Transfer): void {
    const { rank, size } = this.#control;
    const counter = (transfer.kind === "send" ? 0 : size) + transfer.peer;
    const number = at(this.#counts, counter, "count of messages") + 1;
    this.#counts[counter] = number;
    const place = placeOf(transfer.kind === "send", transfer.peer, number);
    at(this.#lengths, rank, "lengths of rank")[place * 2 + 1] = transfer.byteLength;
    Atomics.store(at(this.#numbers, rank, "numbers of rank"), place * 4, number | 0);
    this.#unannounced.push({ transfer, number });
    this.#shared.follow(transfer.peer);
    this.#shared.publish();
    this.#compare();
  }

  /** Compares lengths that peers have published meanwhile. @throws {CollectiveError} if the two lengths of a message differ */
  #compare(): void {
    if (this.#unannounced.length > 0) {
      this.#unannounced = this.#unannounced.filter((message) => !this.#isAnnounced(message));
    }
  }

  /** True if the peer has published the same length, or more than {@link KEPT} later ones, so that this one is no longer kept. */
  #isAnnounced({ transfer: { kind, byteLength, peer }, number }: Unannounced): boolean {
    const { rank, worldRanks } = this.#control;
    const place = placeOf(kind === "receive", rank, number);
    const published = Atomics.load(at(this.#numbers, peer, "numbers of rank"), place * 4);
    if (published !== (number | 0)) return ((published - number) | 0) > 0;
    const theirs = at(at(this.#lengths, peer, "lengths of rank"), place * 2 + 1, "length");
    if (theirs === byteLength) return true;
    const [own, other] = [rank, peer].map((end) => at(worldRanks, end, "world rank of rank"));
    const [source, sent, target, received] = kind === "send"
      ? [own, byteLength, other, theirs]
      : [other, theirs, own, byteLength];
    this.#control.stop(`rank ${source} sends ${sent} bytes, but rank ${target} receives ${received}`);
  }

  [Symbol.dispose](): void {
    this.#shared[Symbol.dispose]();
  }
}

/** Index of a message's entry in a rank's part. */
function placeOf(isSent: boolean, peer: number, number: number): number {
  return (2 * peer + (isSent ? 0 : 1)) * KEPT + number % KEPT;
}

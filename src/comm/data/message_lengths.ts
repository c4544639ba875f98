/**
 * Lengths of messages between two ranks, compared before NCCL gets them: NCCL compares nothing, and where lengths differ it may wait
 * for ever. Each rank tells its length; whoever hears of the other's, when it tells its own or later, compares both. Nobody waits.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { ControlPlane } from "../control_plane.ts";
import type { Transfer } from "../data_plane.ts";
import type { RankParts, ShareParts } from "../rank_parts.ts";

/** How many messages one rank may be ahead of the other; the lengths of those further ahead are not compared. */
const KEPT = 64;
/** Bytes of a message: its number, from 1, and from the eighth byte its length. */
const MESSAGE_BYTES = 16;

/** A message whose other end has told no length yet. */
interface Unannounced {
  readonly transfer: Transfer;
  readonly number: number;
}

/** What the ranks of a group have sent each other, and received. */
export class MessageLengths implements Disposable {
  readonly #control: ControlPlane;
  readonly #shared: RankParts;
  readonly #numbers: readonly Int32Array[];
  readonly #lengths: readonly Float64Array[];
  /** How many there were, by direction and peer. */
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

  /** Tells the other end of a message its length. @throws {CollectiveError} if that has told another one */
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

  /** Looks at what others have told meanwhile. @throws {CollectiveError} if the two lengths of a message differ */
  #compare(): void {
    if (this.#unannounced.length > 0) {
      this.#unannounced = this.#unannounced.filter((message) => !this.#isAnnounced(message));
    }
  }

  /** Whether the other end has told its length, which is this one's, or has gone on to where it is not kept. */
  #isAnnounced({ transfer: { kind, byteLength, peer }, number }: Unannounced): boolean {
    const { rank, worldRanks } = this.#control;
    const place = placeOf(kind === "receive", rank, number);
    const told = Atomics.load(at(this.#numbers, peer, "numbers of rank"), place * 4);
    if (told !== (number | 0)) return ((told - number) | 0) > 0;
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

/** Where in a rank's part the length of a message is. */
function placeOf(isSent: boolean, peer: number, number: number): number {
  return (2 * peer + (isSent ? 0 : 1)) * KEPT + number % KEPT;
}

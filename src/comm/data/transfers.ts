/**
 * Messages between two ranks, through the sender's slot: chunk k of a pair lies in part k mod DEPTH, where the receiver's
 * chunk of a reduction would. A message has ended for its sender when all of it was taken, so the slot is free again for
 * rounds. Its length goes ahead of it, so that two ends which disagree find out.
 *
 * @module
 */
import { at } from "../../at.ts";
import { devicePtr } from "../../device/device.ts";
import type { ControlPlane } from "../control_plane.ts";
import { Counters, DEPTH } from "../control/counters.ts";
import type { Transfer } from "../data_plane.ts";
import type { SlotLayout } from "./sizes.ts";
import type { StagingBuffer } from "./staging.ts";

/** What both ends of a message work on. */
export interface Lanes {
  readonly control: ControlPlane;
  /** Of each rank {@link laneWords} shared words, zero at first. */
  readonly words: readonly Int32Array[];
  readonly staging: StagingBuffer;
  readonly layout: SlotLayout;
}

/** Words that each of `size` ranks needs. For each peer: chunks sent to it, chunks taken from it, low and high half of a length. */
export function laneWords(size: number): number {
  return 4 * size;
}

/** Makes all transfers side by side; one after another where two have the same direction and peer. */
export function transferAll(lanes: Lanes, transfers: readonly Transfer[]): void {
  let open = transfers.map((transfer) => new Message(lanes, transfer));
  for (;;) {
    open = open.filter((message) => !message.isOver);
    const heads = open.filter((message, i) => i === open.findIndex(({ lane }) => lane === message.lane));
    const [awaited] = heads;
    if (awaited === undefined) return;
    const isReady = (): boolean => heads.some((message) => message.isReady);
    const isOne = heads.every(({ peer }) => peer === awaited.peer);
    if (!isReady()) lanes.control.wait(isReady, awaited.stage, isOne ? awaited.peer : undefined);
    for (const message of heads) if (message.isReady) message.advance();
  }
}

/** One end of a message. */
class Message {
  readonly lane: string;
  readonly stage: string;
  readonly peer: number;
  isOver = false;
  readonly #lanes: Lanes;
  readonly #transfer: Transfer;
  /** Of all ranks: what this one's peer, or this one, has sent in this direction. */
  readonly #sent: Counters;
  readonly #taken: Counters;
  /** Chunks that are still to be sent or received; the last one may be empty. */
  #left: number;

  constructor(lanes: Lanes, transfer: Transfer) {
    const { control, words, layout } = lanes;
    const { kind, peer, byteLength } = transfer;
    const [from, to] = kind === "send" ? [control.rank, peer] : [peer, control.rank];
    this.lane = `${kind} ${peer}`;
    this.stage = kind === "send" ? "receiving what was sent" : "sending";
    this.peer = peer;
    this.#lanes = lanes;
    this.#transfer = transfer;
    this.#sent = new Counters(control, words, to);
    this.#taken = new Counters(control, words, control.size + from);
    this.#left = Math.max(1, Math.ceil(byteLength / layout.chunkBytes));
  }

  /** Whether the next chunk can be sent or received, or all that was sent has been taken. */
  get isReady(): boolean {
    if (this.#transfer.kind === "receive") return this.#sent.reached(this.peer, this.#taken.own + 1);
    return this.#taken.reached(this.peer, this.#sent.own - (this.#left === 0 ? 0 : DEPTH - 1));
  }

  /** Sends or receives the next chunk, or ends. */
  advance(): void {
    const { control: { rank }, staging, layout: { chunkBytes, partBytes } } = this.#lanes;
    const { kind, ptr, byteLength } = this.#transfer;
    const isSend = kind === "send";
    if (this.#left > 0) {
      const chunks = Math.max(1, Math.ceil(byteLength / chunkBytes));
      if (this.#left === chunks) this.#agreeOnLength();
      const start = (chunks - this.#left) * chunkBytes;
      const [place, n] = [devicePtr(ptr + start), Math.min(chunkBytes, byteLength - start)];
      const counter = isSend ? this.#sent : this.#taken;
      const offset = (counter.own & (DEPTH - 1)) * partBytes + (isSend ? this.peer : rank) * chunkBytes;
      if (isSend) staging.put(offset, place, n);
      else staging.take(place, this.peer, offset, n);
      counter.raise(counter.own + 1);
      this.#left--;
      this.isOver = !isSend && this.#left === 0;
    } else this.isOver = true;
  }

  /** The sender tells how long the message is, and the receiver compares. */
  #agreeOnLength(): void {
    const { control, words } = this.#lanes;
    const { kind, byteLength } = this.#transfer;
    const [from, to] = kind === "send" ? [control.rank, this.peer] : [this.peer, control.rank];
    const length = at(words, from, "words of rank").subarray(2 * control.size + 2 * to);
    if (kind === "send") {
      length[0] = byteLength | 0;
      length[1] = Math.floor(byteLength / 2 ** 32);
      return;
    }
    const sent = (at(length, 0, "half of a length") >>> 0) + at(length, 1, "half of a length") * 2 ** 32;
    if (sent === byteLength) return;
    const world = (rank: number): number => at(control.worldRanks, rank, "world rank of rank");
    const error = control.failure(
      `rank ${world(from)} sends ${sent} bytes, but rank ${world(to)} receives ${byteLength}`,
    );
    control.abort(error.message);
    throw error;
  }
}

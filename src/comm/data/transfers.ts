/**
 * Messages between two ranks, through the sender's slot. Chunk k of a pair lies in part k mod DEPTH, in the place of the
 * receiver's chunk of a reduction. A send ends when the receiver has taken all of it, so the slot is free again for rounds.
 * The sender gives length and tag before the first chunk, so that ranks which disagree are found.
 *
 * @module
 */
import { at } from "../../at.ts";
import { devicePtr } from "../../device/device.ts";
import { hashText } from "../call.ts";
import { Counters, DEPTH } from "../control/counters.ts";
import type { Transfer } from "../data_plane.ts";
import type { SlotLayout } from "./sizes.ts";
import type { StagingPlace } from "./staged.ts";

/** State that both ranks of a message use; `words` are {@link laneWords} of each rank. */
export type Lanes = Pick<StagingPlace, "control" | "words" | "staging" | "layout">;

/**
 * Number of words that each of `size` ranks needs. For each peer: chunks sent to it, chunks taken from it, two halves of a
 * length; behind those of all peers, the hash of a tag for each.
 */
export function laneWords(size: number): number {
  return 5 * size;
}

/** The word of a message's tag: 0 if it has none. */
function tagWord(tag: string | undefined): number {
  return tag === undefined ? 0 : hashText(tag) | 1;
}

/** A message under way: yields the condition that must hold before its next step. */
type Message = Generator<() => boolean, void>;

/** Transfers under way, side by side. Transfers of one direction and peer keep their order. */
export class TransfersUnderWay {
  readonly #control: Lanes["control"];
  readonly #open = new Map<Message, { readonly peer: number; readonly ready: () => boolean }>();

  /** Begins the transfers, and moves what has room in the slots. */
  constructor(lanes: Lanes, transfers: readonly Transfer[]) {
    this.#control = lanes.control;
    for (const list of Map.groupBy(transfers, ({ kind, peer }) => `${kind} ${peer}`).values()) {
      const { peer } = at(list, 0, "transfer");
      this.#open.set(messagesOf(lanes, list), { peer, ready: () => true });
    }
    this.advance();
  }

  /** Moves all that can be moved without waiting. */
  advance(): void {
    while (this.#isReady()) {
      for (const [message, { peer, ready }] of this.#open) {
        if (!ready()) continue;
        const next = message.next();
        if (next.done === true) this.#open.delete(message);
        else this.#open.set(message, { peer, ready: next.value });
      }
    }
  }

  /** Waits until all transfers have ended. */
  finish(): void {
    this.advance();
    while (this.#open.size > 0) {
      // Only peers with open messages are awaited: others may have left.
      const peers = [...new Set([...this.#open.values()].map(({ peer }) => peer))];
      this.#control.wait(() => this.#isReady(), "point-to-point messages", peers.length === 1 ? peers[0] : peers);
      this.advance();
    }
  }

  /** Leaves what is under way as it is: after a failure nobody receives it. */
  drop(): void {
    this.#open.clear();
  }

  #isReady(): boolean {
    return this.#open.values().some(({ ready }) => ready());
  }
}

function* messagesOf(lanes: Lanes, transfers: readonly Transfer[]): Message {
  for (const transfer of transfers) yield* transfer.kind === "send" ? send(lanes, transfer) : receive(lanes, transfer);
}

function* send({ control, words, staging, layout }: Lanes, { ptr, byteLength, peer, tag }: Transfer): Message {
  const { rank, size } = control;
  const sent = new Counters(control, words, peer);
  const taken = new Counters(control, words, size + rank);
  const own = at(words, rank, "words of rank");
  own.set([byteLength | 0, Math.floor(byteLength / 2 ** 32)], 2 * (size + peer));
  own[4 * size + peer] = tagWord(tag);
  let start = 0;
  // An empty message has one chunk too: it carries the length.
  do {
    yield () => taken.reached(peer, sent.own - DEPTH + 1);
    const n = Math.min(layout.chunkBytes, byteLength - start);
    staging.put(placeOf(layout, sent.own, peer), devicePtr(ptr + start), n);
    sent.raise(sent.own + 1);
    start += layout.chunkBytes;
  } while (start < byteLength);
  yield () => taken.reached(peer, sent.own);
}

function* receive({ control, words, staging, layout }: Lanes, { ptr, byteLength, peer, tag }: Transfer): Message {
  const { rank, size } = control;
  const sent = new Counters(control, words, rank);
  const taken = new Counters(control, words, size + peer);
  let start = 0;
  do {
    yield () => sent.reached(peer, taken.own + 1);
    if (start === 0) {
      const length = at(words, peer, "words of rank").subarray(2 * (size + rank));
      const given = (at(length, 0, "word") >>> 0) + at(length, 1, "word") * 2 ** 32;
      const [from, to] = [control.worldRank(peer), control.worldRank(rank)];
      if (given !== byteLength) {
        control.stop(`rank ${from} sends ${given} bytes, but rank ${to} receives ${byteLength}`);
      }
      const sentTag = at(words, peer, "words of rank")[4 * size + rank];
      if (tag !== undefined && sentTag !== 0 && sentTag !== tagWord(tag)) {
        control.stop(
          `rank ${from} sends another message of ${given} bytes than rank ${to} receives, which is '${tag}'`,
        );
      }
    }
    const n = Math.min(layout.chunkBytes, byteLength - start);
    staging.take(devicePtr(ptr + start), peer, placeOf(layout, taken.own, rank), n);
    taken.raise(taken.own + 1);
    start += layout.chunkBytes;
  } while (start < byteLength);
}

/** Offset of chunk `count` to rank `to` in the sender's slot. */
function placeOf({ partBytes, chunkBytes }: SlotLayout, count: number, to: number): number {
  return (count & (DEPTH - 1)) * partBytes + to * chunkBytes;
}

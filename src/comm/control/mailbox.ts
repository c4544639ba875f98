/**
 * Exchange of host bytes between all ranks, over a few kilobytes of shared memory a rank, in as many rounds as the longest
 * message needs. It uses the control plane alone, so it exists before any data plane.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { ControlPlane } from "../control_plane.ts";
import { DEPTH, Rounds } from "./counters.ts";

// Words of a mailbox: the counters of its rounds, then for each part the length of its message, which may be longer than the part.
const SENT = 0;
const TAKEN = 1;
const LENGTHS = 2;
const HEAD_BYTES = 64;
const PART_BYTES = 4096;
export const MAILBOX_BYTES: number = HEAD_BYTES + DEPTH * PART_BYTES;

/**
 * Opens the mailboxes of a group.
 *
 * @param memory {@link MAILBOX_BYTES} shared bytes of each rank, zeros at first
 * @returns the exchange: sends bytes to all ranks, and returns the bytes of each rank
 */
export function openMailboxes(
  control: ControlPlane,
  memory: readonly Uint8Array[],
): (bytes: Uint8Array) => readonly Uint8Array[] {
  const { rank, size } = control;
  const heads = memory.map(({ buffer, byteOffset }) => new Int32Array(buffer, byteOffset, HEAD_BYTES / 4));
  const boxes = memory.map((bytes) => bytes.subarray(HEAD_BYTES));
  const rounds = new Rounds(control, heads, SENT, TAKEN);
  return (bytes) => {
    const messages = new Array<Uint8Array>(size).fill(bytes);
    let longest = bytes.length;
    let start = 0;
    do {
      const round = rounds.next;
      const part = rounds.begin(round);
      const begin = part * PART_BYTES;
      at(heads, rank, "mailbox of rank")[LENGTHS + part] = bytes.length;
      at(boxes, rank, "mailbox of rank").set(bytes.subarray(start, start + PART_BYTES), begin);
      rounds.publish(round);
      for (let peer = 0; peer < size; peer++) {
        if (peer !== rank) rounds.wait(round, peer);
        if (start === 0) {
          const length = at(at(heads, peer, "mailbox of rank"), LENGTHS + part, "length in part");
          messages[peer] = new Uint8Array(length);
          longest = Math.max(longest, length);
        }
        const message = at(messages, peer, "message of rank");
        const end = begin + Math.min(PART_BYTES, message.length - start);
        if (end > begin) message.set(at(boxes, peer, "mailbox of rank").subarray(begin, end), start);
      }
      rounds.end(round);
      start += PART_BYTES;
    } while (start < longest);
    return messages;
  };
}

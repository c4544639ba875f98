/**
 * A rank's stream to the store. It is looked at when the rank announces a call or waits, never by an event loop: whoever
 * waits gives the time that it would sleep to {@link StoreLink.pump}. What the rank has to say goes out before it waits.
 *
 * A stream that ends stops this rank: without the store it hears of nobody.
 *
 * @module
 */
import { SILENCE_SECONDS, type Sockets } from "../../ffi/sockets.ts";
import { sha256 } from "../../runtime/checksum.ts";
import { blockFor } from "../../runtime/clock.ts";
import { ABORT_WORDS, AbortArea } from "../control/abort.ts";
import {
  type Fields,
  type Frame,
  FrameError,
  FrameReader,
  FrameWriter,
  ID_BYTES,
  listField,
  RANK_BYTES,
  STRANGER_BYTES,
} from "./frames.ts";
import type { Change, Replica } from "./replica.ts";

/** Longest time that a rank waits for the store's answer: it explains a failure with what it knows then. */
const ANSWER_MS = 2000;
/** Longest time that a rank which stops all waits until the store knows: it may end right after. */
const ABORT_MS = 500;
/** Longest time that a rank which leaves takes to say so. */
const FAREWELL_MS = 2000;

/** One rank's end of the stream. */
export class StoreLink {
  /** Whether ranks have stopped, as this one knows. */
  readonly abort: AbortArea;
  /** World ranks whose streams have ended without a farewell. */
  readonly gone: ReadonlySet<number>;
  /** What looks at others' parts of a group whenever this rank waits, by the group's id. */
  readonly looks: Map<string, () => void> = new Map();
  readonly #gone = new Set<number>();
  readonly #abortWords = new Int32Array(ABORT_WORDS);
  readonly #sockets: Sockets;
  readonly #descriptor: number;
  /** Where the store is, for messages. */
  readonly #place: string;
  readonly #reader = new FrameReader(4 * STRANGER_BYTES);
  readonly #writer = new FrameWriter();
  readonly #groups = new Map<string, Replica>();
  /** How many groups of one name and the same ranks there were. */
  readonly #counts = new Map<string, number>();
  #handler: ((frame: Frame) => void) | undefined;
  #asked = 0;
  #answered = 0;
  #hasSentAbort = false;
  /** Whether the store has said that a rank has stopped all. */
  #isStopped = false;
  /** Whether the store is expected to end the stream. */
  #isLeaving = false;
  #isOpen = true;

  /** @param descriptor an open stream, which this owns */
  constructor(sockets: Sockets, descriptor: number, place: string) {
    this.#sockets = sockets;
    this.#descriptor = descriptor;
    this.#place = place;
    this.abort = new AbortArea(this.#abortWords);
    this.gone = this.#gone;
  }

  /** Whether the stream has not ended. */
  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** The store has proved that it is the run's: before, it may be anything, and what it may send is short. */
  trust(): void {
    this.#reader.limit = RANK_BYTES;
  }

  /** Hands frames of kinds that only come while ranks join to somebody; undefined ends that. */
  onJoining(handler: ((frame: Frame) => void) | undefined): void {
    this.#handler = handler;
  }

  /** Sends a frame, when there is room for it. */
  say(kind: "hello" | "absent", ...fields: readonly (Uint8Array | number)[]): void {
    this.#writer.write(kind, ...fields);
    this.#send();
  }

  /** A name for a group: another for each, and the same on all its ranks, which make their groups in one order. */
  idOf(name: string, worldRanks: readonly number[]): string {
    const key = `${name}/${worldRanks.join()}`;
    const count = this.#counts.get(key) ?? 0;
    this.#counts.set(key, count + 1);
    return sha256([`${key}/${count}`]).slice(0, 2 * ID_BYTES);
  }

  /**
   * Begins this rank's part in a group.
   *
   * @param followed world ranks whose blocks it is to be sent whenever they change
   * @param headBytes first bytes of a block that all members are sent when its owner leaves
   */
  open(replica: Replica, followed: readonly number[] = [], headBytes: number = 0): void {
    const { id, byteLength, worldRanks } = replica;
    this.#groups.set(id, replica);
    const lists = [worldRanks, followed].map(listField);
    this.#writer.write("open", Uint8Array.fromHex(id), byteLength, headBytes, ...lists);
    this.publish(replica);
  }

  /** From now on this rank is sent a world rank's block whenever it changes. */
  follow({ id }: Replica, worldRank: number): void {
    if (!this.#isOpen) return;
    this.#writer.write("follow", Uint8Array.fromHex(id), listField([worldRank]));
    this.#send();
  }

  /**
   * Brings the first bytes of all blocks of a group to what their owners have published, and waits for it.
   *
   * @returns whether that was done: not where the stream has ended, or the store does not answer
   */
  ask(replica: Replica, byteLength: number): boolean {
    if (!this.#isOpen || !this.#groups.has(replica.id)) return false;
    this.publish(replica);
    const question = ++this.#asked;
    this.#writer.write("ask", Uint8Array.fromHex(replica.id), question, byteLength);
    this.#send();
    this.#pumpUntil(() => this.#answered === question, ANSWER_MS);
    return this.#answered === question;
  }

  /** Ends this rank's part in a group. */
  leave(replica: Replica): void {
    this.publish(replica);
    this.#groups.delete(replica.id);
    if (this.#isOpen) this.#writer.write("leave", Uint8Array.fromHex(replica.id));
  }

  /** Tells the others what this rank has changed of its block, and that it has stopped all. */
  publish(replica: Replica): void {
    if (!this.#isOpen) return;
    const changes = this.#groups.has(replica.id) ? replica.changes() : [];
    if (changes.length > 0) {
      this.#writer.write("update", Uint8Array.fromHex(replica.id), ...changes.flatMap(changeFields));
    }
    const isAbort = this.#tellAbort();
    this.#send();
    if (isAbort) this.#pumpUntil(() => this.#isStopped, ABORT_MS);
  }

  /** Takes what has come, and waits for something, at most so long; then takes that. */
  pump(timeoutMs: number): void {
    const end = performance.now() + timeoutMs;
    let isFirst = true;
    while (this.#isOpen) {
      const took = this.#receive();
      const left = end - performance.now();
      if (took || (!isFirst && left <= 0) || timeoutMs <= 0 || !this.#isOpen) return;
      isFirst = false;
      this.#sockets.poll([{ descriptor: this.#descriptor, wantsOutput: false }], Math.max(0, left));
    }
    // Without a stream there is nothing to wait for, but the caller wants some time to pass.
    if (isFirst && timeoutMs > 0) blockFor(timeoutMs);
  }

  /** Looks at what has come. */
  look(): void {
    for (const look of this.looks.values()) look();
  }

  /**
   * Says farewell, and ends the stream when the store has: closing it earlier, with bytes that were not received, would reset the
   * stream, and what this rank has said last would be lost.
   */
  close(): void {
    if (!this.#isOpen) return;
    this.#writer.write("bye");
    this.#isLeaving = true;
    this.#send(FAREWELL_MS);
    this.#pumpUntil(() => false, FAREWELL_MS);
    this.end();
  }

  /** Ends the stream without a word. */
  end(): void {
    if (!this.#isOpen) return;
    this.#isOpen = false;
    this.#sockets.close(this.#descriptor);
  }

  /** Stops all ranks while they join. */
  giveUp(rank: number, reason: string): void {
    this.abort.set(rank, reason);
    if (!this.#isOpen) return;
    this.#tellAbort();
    this.close();
  }

  /** Takes what comes until something holds or the stream ends, at most so long. */
  #pumpUntil(holds: () => boolean, longestMs: number): void {
    const end = performance.now() + longestMs;
    while (this.#isOpen && !holds() && performance.now() < end) this.pump(50);
  }

  /** Writes that this rank has stopped all, unless the store knows that somebody has; whether it did. */
  #tellAbort(): boolean {
    if (this.#hasSentAbort || this.abort.cause === undefined) return false;
    this.#hasSentAbort = true;
    this.#writer.write("abort", new Uint8Array(this.#abortWords.buffer));
    return true;
  }

  /** Sends all that is to be sent. The store takes it at once, unless it has much to do or is gone. */
  #send(longestMs: number = SILENCE_SECONDS * 1000): void {
    const end = performance.now() + longestMs;
    while (this.#isOpen && this.#writer.pending.length > 0) {
      const moved = this.#sockets.send(this.#descriptor, this.#writer.pending);
      if ("end" in moved) return this.#lose(moved.end);
      this.#writer.sent(moved.count);
      if (moved.count > 0) continue;
      if (performance.now() > end) return this.#lose(`it took nothing for ${longestMs / 1000} s`);
      this.#sockets.poll([{ descriptor: this.#descriptor, wantsOutput: true }], 50);
      this.#receive();
    }
  }

  /** Takes what is there; whether there was anything. */
  #receive(): boolean {
    let took = false;
    while (this.#isOpen) {
      const moved = this.#sockets.receive(this.#descriptor, this.#reader.room);
      if ("end" in moved) {
        this.#lose(moved.end);
        return true;
      }
      if (moved.count === 0) return took;
      took = true;
      this.#reader.received(moved.count);
      try {
        for (let frame = this.#reader.next(); frame !== undefined; frame = this.#reader.next()) this.#take(frame);
      } catch (error) {
        if (!(error instanceof FrameError)) throw error;
        this.#lose(`it sent ${error.message}`);
      }
    }
    return took;
  }

  #take(frame: Frame): void {
    const { kind, body } = frame;
    if (kind === "update") this.#update(body);
    else if (kind === "answer") this.#answered = body.number();
    else if (kind === "gone") this.#gone.add(body.number());
    else if (kind === "abort") this.#stop(body.bytes());
    else if (this.#handler !== undefined) this.#handler(frame);
    else throw new FrameError(`'${kind}' after all ranks have joined`);
  }

  #update(body: Fields): void {
    const [id, worldRank] = [body.id(), body.number()];
    // What this rank has left may go on without it.
    const group = this.#groups.get(id);
    while (group !== undefined && !body.isEmpty) group.apply(worldRank, body.number(), body.bytes(body.number()));
  }

  /** Takes the words of the abort area of the rank that was the first, unless this one has stopped all itself. */
  #stop(bytes: Uint8Array): void {
    if (bytes.length !== this.#abortWords.byteLength) throw new FrameError(`an abort of ${bytes.length} bytes`);
    if (this.abort.cause === undefined) new Uint8Array(this.#abortWords.buffer).set(bytes);
    this.#hasSentAbort = this.#isStopped = true;
  }

  #lose(reason: string): void {
    this.end();
    if (this.#isLeaving) return;
    this.#gone.add(0);
    const where = `the stream to the store at ${this.#place}, which rank 0 serves, ended: ${reason}`;
    this.abort.set(0, `${where}. Rank 0 has died or left, or its host cannot be reached any more`, { dead: 0 });
    this.#hasSentAbort = true;
  }
}

/** A change as fields of a frame. */
function changeFields({ offset, bytes }: Change): readonly (Uint8Array | number)[] {
  return [offset, bytes.length, bytes];
}

/**
 * A rank's stream to the store. It is read when the rank announces a call or waits, never by an event loop: a wait gives the
 * time of its sleep to {@link StoreLink.pump}. A rank sends all that it has before it waits.
 *
 * If the stream ends, this rank stops: without the store it hears of no other rank.
 *
 * @module
 */
import { SILENCE_SECONDS, type Sockets, type StreamEnd } from "../../ffi/sockets.ts";
import { sha256 } from "../../runtime/checksum.ts";
import { blockFor } from "../../runtime/clock.ts";
import { ABORT_WORDS, AbortArea, DIED } from "../control/abort.ts";
import { BEAT_MS, Silence } from "./beats.ts";
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

/** The state of a rank that cannot be reached and may live, as errors say it. */
const UNREACHABLE = "cannot be reached any more (its host or the network to it is down)";
/** Longest wait for the store's answer; after it, a failure is explained with what the rank knows. */
const ANSWER_MS = 2000;
/** Longest time that a rank which stops all waits until the store knows, as its process may end right after. */
const ABORT_MS = 500;
/** Longest time that a rank which leaves takes to send `bye`. */
const FAREWELL_MS = 2000;

/** One rank's end of its stream to the store. */
export class StoreLink {
  /** This rank's copy of the abort area. */
  readonly abort: AbortArea;
  /** World ranks whose streams have ended without `bye`, and what became of each. */
  readonly gone: ReadonlyMap<number, string>;
  /** Functions that check others' parts of a group in each wait of this rank, by the group's id. */
  readonly looks: Map<string, () => void> = new Map();
  readonly #gone = new Map<number, string>();
  readonly #abortWords = new Int32Array(ABORT_WORDS);
  readonly #sockets: Sockets;
  readonly #descriptor: number;
  /** Address of the store, for messages. */
  readonly #place: string;
  readonly #reader = new FrameReader(4 * STRANGER_BYTES);
  readonly #writer = new FrameWriter();
  readonly #groups = new Map<string, Replica>();
  /** Number of groups so far, by name and ranks. */
  readonly #counts = new Map<string, number>();
  #handler: ((frame: Frame) => void) | undefined;
  #asked = 0;
  #answered = 0;
  #hasSentAbort = false;
  /** True once the store has confirmed that a rank has stopped all. */
  #isStopped = false;
  /** True once this rank expects the store to end the stream. */
  #isLeaving = false;
  #isOpen = true;
  readonly #silence = new Silence();
  /** Time of the last beat; Infinity until the store is known. */
  #beatAt = Infinity;

  /** @param descriptor an open stream, which this owns */
  constructor(sockets: Sockets, descriptor: number, place: string) {
    this.#sockets = sockets;
    this.#descriptor = descriptor;
    this.#place = place;
    this.abort = new AbortArea(this.#abortWords);
    this.gone = this.#gone;
  }

  /** True once ranks cannot be reached any more, which may live on. */
  get isCutOff(): boolean {
    return this.#gone.values().some((end) => end === UNREACHABLE);
  }

  get isOpen(): boolean {
    return this.#isOpen;
  }

  /** Accepts long frames, once the store has proved that it is the run's; before, any program may be at the other end. */
  trust(): void {
    this.#reader.limit = RANK_BYTES;
    this.#beatAt = performance.now();
  }

  /** Sets the handler of frames that come only while ranks join; undefined ends that. */
  onJoining(handler: ((frame: Frame) => void) | undefined): void {
    this.#handler = handler;
  }

  /** Sends a frame while this rank joins. */
  say(kind: "hello" | "absent", ...fields: readonly (Uint8Array | number)[]): void {
    this.#writer.write(kind, ...fields);
    this.#send();
  }

  /** A new id for a group, the same on all its ranks, because they make their groups in one order. */
  idOf(name: string, worldRanks: readonly number[]): string {
    const key = `${name}/${worldRanks.join()}`;
    const count = this.#counts.get(key) ?? 0;
    this.#counts.set(key, count + 1);
    return sha256([`${key}/${count}`]).slice(0, 2 * ID_BYTES);
  }

  /**
   * Begins this rank's part in a group.
   *
   * @param followed world ranks whose blocks this rank receives whenever they change
   * @param headBytes first bytes of a block that all members receive when its owner leaves
   */
  open(replica: Replica, followed: readonly number[] = [], headBytes: number = 0): void {
    const { id, byteLength, worldRanks } = replica;
    this.#groups.set(id, replica);
    const lists = [worldRanks, followed].map(listField);
    this.#writer.write("open", Uint8Array.fromHex(id), byteLength, headBytes, ...lists);
    this.publish(replica);
  }

  /** From now on this rank receives a world rank's block whenever it changes. */
  follow({ id }: Replica, worldRank: number): void {
    if (!this.#isOpen) return;
    this.#writer.write("follow", Uint8Array.fromHex(id), listField([worldRank]));
    this.#send();
  }

  /**
   * Brings the first bytes of all blocks of a group to the state that their owners have published, and waits for that.
   *
   * @returns false if the stream has ended, or the store does not answer
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

  /** Sends the changes of this rank's block, and that this rank has stopped all if it has. */
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

  /** Reads what has come; if nothing has, waits for something, at most `timeoutMs`. */
  pump(timeoutMs: number): void {
    const begun = performance.now();
    const end = begun + timeoutMs;
    this.#beat(begun);
    let isFirst = true;
    while (this.#isOpen) {
      const took = this.#receive();
      const left = end - performance.now();
      if (took || (!isFirst && left <= 0) || timeoutMs <= 0 || !this.#isOpen) return;
      isFirst = false;
      this.#sockets.poll([{ descriptor: this.#descriptor, wantsOutput: false }], Math.max(0, left));
    }
    // Without a stream there is nothing to wait for, but the caller expects time to pass.
    if (isFirst && timeoutMs > 0) blockFor(timeoutMs);
  }

  /** Calls the functions that check others' parts. */
  look(): void {
    for (const look of this.looks.values()) look();
  }

  /**
   * Sends `bye`, and ends the stream when the store has: closing it earlier, with unread bytes, would reset the stream and
   * lose what this rank sent last.
   */
  close(): void {
    if (!this.#isOpen) return;
    this.#writer.write("bye");
    this.#isLeaving = true;
    this.#send(FAREWELL_MS);
    this.#pumpUntil(() => false, FAREWELL_MS);
    this.end();
  }

  /** Ends the stream without `bye`. */
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

  /** Reads frames until `holds()`, or the stream ends, at most `longestMs`. */
  #pumpUntil(holds: () => boolean, longestMs: number): void {
    const end = performance.now() + longestMs;
    while (this.#isOpen && !holds() && performance.now() < end) this.pump(50);
  }

  /** Writes that this rank has stopped all, unless the store knows of an abort; returns true if it wrote. */
  #tellAbort(): boolean {
    if (this.#hasSentAbort || this.abort.cause === undefined) return false;
    this.#hasSentAbort = true;
    this.#writer.write("abort", new Uint8Array(this.#abortWords.buffer));
    return true;
  }

  /** Sends all pending bytes. The store reads them at once, unless it is busy or gone. */
  #send(longestMs: number = SILENCE_SECONDS * 1000): void {
    const end = performance.now() + longestMs;
    while (this.#isOpen && this.#writer.length > 0) {
      const moved = this.#sockets.send(this.#descriptor, this.#writer.pending);
      if ("end" in moved) return this.#lose(moved);
      this.#writer.sent(moved.count);
      this.#silence.sent(moved.count);
      if (moved.count > 0) continue;
      if (performance.now() > end) return this.#lose({ end: `it took nothing for ${longestMs / 1000} s` });
      this.#sockets.poll([{ descriptor: this.#descriptor, wantsOutput: true }], 50);
      this.#receive();
    }
  }

  /** Reads the bytes that have come; false if there were none. */
  #receive(): boolean {
    let took = false;
    while (this.#isOpen) {
      const moved = this.#sockets.receive(this.#descriptor, this.#reader.room);
      if ("end" in moved) {
        this.#lose(moved);
        return true;
      }
      if (moved.count === 0) return took;
      took = true;
      this.#reader.received(moved.count);
      try {
        for (let frame = this.#reader.next(); frame !== undefined; frame = this.#reader.next()) this.#take(frame);
      } catch (error) {
        if (!(error instanceof FrameError)) throw error;
        this.#lose({ end: `it sent ${error.message}` });
      }
    }
    return took;
  }

  #take(frame: Frame): void {
    const { kind, body } = frame;
    if (kind === "update") this.#update(body);
    else if (kind === "answer") this.#answered = body.number();
    else if (kind === "gone") this.#gone.set(body.number(), body.number() === 1 ? UNREACHABLE : DIED);
    else if (kind === "abort") this.#stop(body.bytes());
    else if (this.#handler !== undefined) this.#handler(frame);
    else if (kind !== "beat") throw new FrameError(`'${kind}' after all ranks have joined`);
  }

  #update(body: Fields): void {
    const [id, worldRank] = [body.id(), body.number()];
    // Updates of a group may still come after this rank has left it.
    const group = this.#groups.get(id);
    while (group !== undefined && !body.isEmpty) group.apply(worldRank, body.number(), body.bytes(body.number()));
  }

  /** Takes over the first abort, unless this rank has stopped all itself. */
  #stop(bytes: Uint8Array): void {
    if (bytes.length !== this.#abortWords.byteLength) throw new FrameError(`an abort of ${bytes.length} bytes`);
    if (this.abort.cause === undefined) new Uint8Array(this.#abortWords.buffer).set(bytes);
    this.#hasSentAbort = this.#isStopped = true;
  }

  /** Sends a sign of life, if one is due; a store that does not answer any more is lost. */
  #beat(now: number): void {
    if (now - this.#beatAt < BEAT_MS || this.#isLeaving || !this.#isOpen) return;
    this.#beatAt = now;
    const next = this.#silence.next(this.#sockets, this.#descriptor);
    if (next === "lost") return this.#lose({ end: "its host does not answer any more", isUnreachable: true });
    if (next === "send" && this.#writer.length === 0) this.#writer.write("beat");
    this.#send();
  }

  #lose({ end: reason, isUnreachable = false }: StreamEnd): void {
    this.end();
    if (this.#isLeaving) return;
    this.#gone.set(0, isUnreachable ? UNREACHABLE : DIED);
    const where = `the stream to the store at ${this.#place}, which rank 0 serves, ended: ${reason}`;
    this.abort.set(0, `${where}. Rank 0 has died or left, or its host cannot be reached any more`, {
      dead: 0,
      isLate: false,
    });
    this.#hasSentAbort = true;
  }
}

function changeFields({ offset, bytes }: Change): readonly (Uint8Array | number)[] {
  return [offset, bytes.length, bytes];
}

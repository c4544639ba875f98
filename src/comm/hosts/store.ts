/**
 * The store of a run, which the process of rank 0 serves to the ranks of all hosts. It keeps the newest contents of every
 * rank's block in every group, and sends changes to the ranks that follow the block. A rank that reads slowly gets the
 * newest contents later, so no queue grows. The store does not interpret blocks.
 *
 * Note [Limits of the store]
 * - A stream has {@link STRANGER_SECONDS} to prove that it knows the run's token, in a frame of at most `STRANGER_BYTES`.
 *   There are at most {@link MAX_STRANGERS} such streams; the oldest is closed for a new one.
 * - A rank's frames have at most {@link RANK_BYTES}, and the groups of all ranks {@link MAX_BYTES}.
 * - A stream that sends anything else is closed. If it is a rank's, all ranks stop.
 *
 * @module
 */
import type { Sockets } from "../../ffi/sockets.ts";
import { equalCodes, hmacSha256 } from "../../runtime/checksum.ts";
import { shownName } from "../../words.ts";
import { ABORT_WORDS, AbortArea } from "../control/abort.ts";
import { BEAT_MS } from "./beats.ts";
import { codePieces, type Fields, type Frame, FrameError, NUMBER_BYTES, RANK_BYTES, VERSION } from "./frames.ts";
import { StoreStream } from "./store_stream.ts";
import { type GroupShape, StoredGroup } from "./stored_group.ts";

/** Seconds until a stream must have proved its rank. */
const STRANGER_SECONDS = 5;
/** Largest number of streams that have not proved their rank. */
const MAX_STRANGERS = 64;
/** Largest number of bytes of all groups. */
export const MAX_BYTES: number = 2 ** 30;
/** Bytes that are prepared for a stream at a time. */
const BATCH_BYTES: number = 2 ** 18;
/** Time that the store serves remaining ranks after rank 0 has left. */
const LINGER_MS = 10_000;
/** Time that it goes on if rank 0 gave up before all have joined, to give late ranks the reason. */
const GIVEN_UP_MS = 1500;
const POLL_MS = 250;
/** Time between two rolls while ranks are missing, and the largest number of ranks that a roll names. */
const ROLL_MS = 200;
const MOST_NAMED = 64;

export interface StoreOptions {
  /** Descriptor of the listener, which the store closes at its end. */
  readonly listener: number;
  readonly worldSize: number;
  /** Secret of the run's ranks. */
  readonly token: string;
}

/** Serves a run until its ranks have left. */
export class Store {
  readonly #sockets: Sockets;
  readonly #options: StoreOptions;
  readonly #streams = new Set<StoreStream>();
  readonly #ranks = new Map<number, StoreStream>();
  readonly #groups = new Map<string, StoredGroup>();
  /** Refused streams, in words, for the ranks that wait for others. */
  readonly #refusals: string[] = [];
  readonly #missing: Set<number>;
  /** Missing ranks in whose place a stand-in has joined: nobody waits for them. */
  readonly #ended = new Set<number>();
  #abort: Uint8Array | undefined;
  #bytes = 0;
  #clock = 0;
  #mainLeft: number | undefined;
  #isRollDue = false;
  #rolledAt = -Infinity;
  #beatAt = -Infinity;

  constructor(sockets: Sockets, options: StoreOptions) {
    this.#sockets = sockets;
    this.#options = options;
    this.#missing = new Set(Array.from({ length: options.worldSize }, (_, rank) => rank));
  }

  /** Serves until rank 0 and all others have left, or for a while after rank 0 has left. */
  serve(): void {
    const { listener } = this.#options;
    // After an error, open streams would leave the ranks waiting.
    using end = new DisposableStack();
    end.defer(() => {
      for (const { descriptor } of this.#streams) this.#sockets.close(descriptor);
      this.#sockets.close(listener);
    });
    while (!this.#isOver) {
      const streams = [...this.#streams];
      const watched = [{ descriptor: listener, wantsOutput: false }, ...streams];
      const [first, ...ready] = this.#sockets.poll(watched, POLL_MS);
      if (first?.input === true) this.#accept(listener);
      for (const [index, stream] of streams.entries()) if (ready[index]?.input === true) this.#receive(stream);
      this.#dropStrangers();
      this.#spreadRoll();
      this.#beat();
      for (const stream of this.#streams) if (!stream.isIdle) this.#send(stream);
    }
  }

  get #isOver(): boolean {
    if (this.#mainLeft === undefined) return false;
    const lingers = this.#missing.size > 0 ? GIVEN_UP_MS : LINGER_MS;
    return (this.#ranks.size === 0 && this.#missing.size === this.#ended.size) ||
      performance.now() - this.#mainLeft > lingers;
  }

  #accept(listener: number): void {
    for (let taken = this.#sockets.accept(listener); taken !== undefined; taken = this.#sockets.accept(listener)) {
      if (this.#streams.size - this.#ranks.size >= MAX_STRANGERS) {
        // A rank answers at once, so the stream that has been silent longest is most likely not a rank.
        const oldest = this.#streams.values().find(({ rank }) => rank === undefined);
        if (oldest !== undefined) this.#drop(oldest);
      }
      const stream = new StoreStream(taken);
      stream.writer.write("challenge", stream.challenge);
      this.#streams.add(stream);
    }
  }

  /** Closes streams that have not proved their rank in time. See Note [Limits of the store]. */
  #dropStrangers(): void {
    const late = performance.now() - STRANGER_SECONDS * 1000;
    for (const stream of this.#streams) {
      if (stream.rank !== undefined || stream.since > late) continue;
      if (!stream.isEnding) this.#note(stream, `said nothing of use for ${STRANGER_SECONDS} s`);
      this.#drop(stream);
    }
  }

  #receive(stream: StoreStream): void {
    const moved = this.#sockets.receive(stream.descriptor, stream.reader.room);
    if ("end" in moved) return this.#drop(stream, moved.isUnreachable);
    stream.reader.received(moved.count);
    // Frames of a refused stream are ignored.
    if (stream.isEnding) return;
    try {
      while (!stream.isEnding && this.#streams.has(stream)) {
        const frame = stream.reader.next();
        if (frame === undefined) return;
        if (stream.rank === undefined) this.#meet(stream, frame);
        else this.#take(stream, stream.rank, frame);
      }
    } catch (error) {
      if (!(error instanceof FrameError)) throw error;
      if (stream.rank === undefined) this.#note(stream, `sent ${error.message}`);
      else this.#stop(stream.rank, `rank ${stream.rank} sent the store ${error.message}`);
      this.#drop(stream);
    }
  }

  #meet(stream: StoreStream, { kind, body }: Frame): void {
    const { worldSize, token } = this.#options;
    if (kind !== "hello" && kind !== "absent") throw new FrameError(`'${kind}' before it said who it is`);
    const [rank, size, number, code] = [
      body.number(),
      body.number(),
      body.bytes(NUMBER_BYTES),
      body.bytes(NUMBER_BYTES),
    ];
    const version = body.text();
    const who = `it says that it is rank ${rank}`;
    if (version !== VERSION) {
      return this.#refuse(stream, `it speaks '${shownName(version)}', rank 0 '${VERSION}': install one version`);
    }
    if (!equalCodes(code, hmacSha256(token, codePieces("rank", stream.challenge, number)))) {
      return this.#refuse(stream, `its FULLYSHARD_TOKEN is not rank 0's (${who})`);
    }
    if (size !== worldSize) {
      const reason = `ranks disagree: rank 0 was started with a world size of ${worldSize}, rank ${rank} with ${size}`;
      this.#stop(rank, reason);
      return this.#refuse(stream, `${reason}. Give all ranks the same WORLD_SIZE`);
    }
    if (rank >= worldSize) return this.#refuse(stream, `there is no rank ${rank} of ${worldSize}`);
    if (!this.#missing.has(rank)) {
      return this.#refuse(
        stream,
        `rank ${rank} of this run has joined already. Start each rank once, and give runs that ` +
          "should not meet different MASTER_PORTs or FULLYSHARD_TOKENs",
      );
    }
    stream.rank = rank;
    stream.reader.limit = RANK_BYTES;
    this.#ranks.set(rank, stream);
    // A rank that has ended stays missing, so that no rank sees all as joined before the reason arrives.
    if (kind === "hello") {
      this.#missing.delete(rank);
      this.#ended.delete(rank);
    } else {
      stream.isStandIn = true;
      this.#ended.add(rank);
    }
    stream.writer.write("welcome", hmacSha256(token, codePieces("store", number, stream.challenge)));
    if (this.#abort !== undefined) stream.writer.write("abort", this.#abort);
    this.#callRoll();
  }

  #take(stream: StoreStream, rank: number, { kind, body }: Frame): void {
    if (kind === "update") this.#update(stream, rank, body);
    else if (kind === "open") this.#open(stream, rank, body);
    else if (kind === "follow") this.#follow(stream, this.#groupOf(rank, body), rank, body.numbers());
    else if (kind === "ask") this.#ask(stream, this.#groupOf(rank, body), rank, body);
    else if (kind === "leave") this.#leave(rank, body.id());
    else if (kind === "abort") this.#spread(body.bytes().slice());
    else if (kind === "bye") this.#dismiss(stream);
    else if (kind !== "beat") throw new FrameError(`'${kind}', which only the store says`);
  }

  #open(stream: StoreStream, rank: number, body: Fields): void {
    const [id, blockBytes, headBytes] = [body.id(), body.number(), body.number()];
    const shape = { worldRanks: body.numbers(), blockBytes, headBytes };
    this.#checkShape(rank, shape);
    let group = this.#groups.get(id);
    if (group === undefined) {
      const byteLength = StoredGroup.byteLengthOf(shape);
      if (this.#bytes + byteLength > MAX_BYTES) throw new FrameError(`groups of more than ${MAX_BYTES} bytes`);
      this.#bytes += byteLength;
      group = new StoredGroup(id, shape);
      this.#groups.set(id, group);
    } else if (!group.isOf(shape)) throw new FrameError("a group that others have opened otherwise");
    group.open(rank);
    this.#follow(stream, group, rank, body.numbers());
  }

  /** Refuses a shape that cannot be a group, before memory is allocated for it. */
  #checkShape(rank: number, { worldRanks, blockBytes, headBytes }: GroupShape): void {
    if (!worldRanks.includes(rank)) throw new FrameError("a group without itself");
    if (worldRanks.some((one, i) => one >= this.#options.worldSize || one <= (worldRanks[i - 1] ?? -1))) {
      throw new FrameError("a group of ranks that are no ascending ranks of the world");
    }
    if (blockBytes > RANK_BYTES / 2) throw new FrameError(`a group with blocks of ${blockBytes} bytes`);
    if (headBytes > blockBytes) throw new FrameError(`a group with heads of ${headBytes} bytes`);
  }

  /** The group that a frame names first. */
  #groupOf(rank: number, body: Fields): StoredGroup {
    const group = this.#groups.get(body.id());
    if (group?.openedBy.has(rank) !== true) throw new FrameError("a frame about a group that it is not in");
    return group;
  }

  #follow(stream: StoreStream, group: StoredGroup, rank: number, others: readonly number[]): void {
    for (const block of group.follow(rank, others)) stream.changed.add(block);
  }

  #ask(stream: StoreStream, group: StoredGroup, rank: number, body: Fields): void {
    const [question, byteLength] = [body.number(), body.number()];
    for (const block of group.blocks) if (block.rank !== rank) stream.show(rank, block, byteLength);
    stream.asked = question;
  }

  #update(stream: StoreStream, rank: number, body: Fields): void {
    const block = this.#groupOf(rank, body).blockOf(rank);
    if (block === undefined) throw new FrameError("an update of a group that it is not in");
    const time = ++this.#clock;
    while (!body.isEmpty) block.change(time, body.number(), body.bytes(body.number()));
    for (const follower of block.followers) {
      const other = this.#ranks.get(follower);
      if (other !== undefined && other !== stream) other.changed.add(block);
    }
  }

  #leave(rank: number, id: string): void {
    const group = this.#groups.get(id);
    if (group === undefined) return;
    const block = group.blockOf(rank);
    const isLast = group.leave(rank);
    for (const member of block === undefined || isLast ? [] : group.openedBy) {
      if (block !== undefined) this.#ranks.get(member)?.show(member, block, group.headBytes);
    }
    if (!isLast) return;
    this.#groups.delete(id);
    this.#bytes -= group.byteLength;
    for (const stream of this.#ranks.values()) for (const one of group.blocks) stream.forget(one);
  }

  #refuse(stream: StoreStream, reason: string): void {
    this.#note(stream, reason);
    stream.writer.write("refused", reason);
    stream.isEnding = true;
  }

  /** Keeps a refusal for the ranks that wait for others. */
  #note({ from }: StoreStream, what: string): void {
    this.#refusals.push(`${from} (${what})`);
    this.#refusals.splice(0, this.#refusals.length - 4);
    if (this.#missing.size > 0) this.#callRoll();
  }

  #callRoll(): void {
    this.#isRollDue = true;
  }

  /** Sends the roll to all ranks, at once if all have joined; before, so seldom that many ranks do not drown in rolls. */
  #spreadRoll(): void {
    const now = performance.now();
    if (!this.#isRollDue || (this.#missing.size > 0 && now - this.#rolledAt < ROLL_MS)) return;
    this.#isRollDue = false;
    this.#rolledAt = now;
    for (const stream of this.#ranks.values()) stream.needsRoll = true;
  }

  /** Closes the stream of a rank that leaves, and waits for that. */
  #dismiss(stream: StoreStream): void {
    stream.hasSaidBye = true;
    this.#drop(stream);
  }

  /** Stops all ranks, because of a rank's death or its frames. */
  #stop(rank: number, reason: string): void {
    const words = new Int32Array(ABORT_WORDS);
    new AbortArea(words).set(rank, reason);
    this.#spread(new Uint8Array(words.buffer));
  }

  /** Sends an abort to all ranks; the first abort stays. */
  #spread(words: Uint8Array): void {
    if (words.length !== ABORT_WORDS * 4) throw new FrameError(`an abort of ${words.length} bytes`);
    if (words.every((byte) => byte === 0)) throw new FrameError("an abort by nobody");
    if (this.#abort !== undefined) return;
    this.#abort = words;
    for (const stream of this.#ranks.values()) stream.writer.write("abort", words);
  }

  /** Sends each rank a sign of life, unless it has other bytes to take first, and drops the ranks of hosts that do not answer: see Note [Beats]. */
  #beat(): void {
    const now = performance.now();
    if (now - this.#beatAt < BEAT_MS) return;
    this.#beatAt = now;
    for (const stream of this.#ranks.values()) {
      const next = stream.silence.next(this.#sockets, stream.descriptor);
      if (next === "lost") this.#drop(stream, true);
      else if (next === "send" && stream.writer.length === 0) stream.writer.write("beat");
    }
  }

  /** @param isUnreachable true if the rank may live on, on a host that does not answer */
  #drop(stream: StoreStream, isUnreachable: boolean = false): void {
    this.#streams.delete(stream);
    this.#sockets.close(stream.descriptor);
    const { rank } = stream;
    if (rank === undefined || this.#ranks.get(rank) !== stream) return;
    this.#ranks.delete(rank);
    for (const id of [...this.#groups.keys()]) this.#leave(rank, id);
    if (rank === 0) this.#mainLeft = performance.now();
    if (stream.hasSaidBye || stream.isStandIn) return;
    if (this.#missing.size > 0) {
      this.#stop(
        rank,
        `rank ${rank} ${isUnreachable ? "could not be reached any more" : "died"} while the ranks were joining`,
      );
    }
    for (const other of this.#ranks.values()) {
      // The dead rank's earlier changes are sent first.
      this.#prepare(other, Infinity);
      other.writer.write("gone", rank, Number(isUnreachable));
    }
  }

  #send(stream: StoreStream): void {
    for (;;) {
      if (stream.writer.length === 0) this.#prepare(stream, BATCH_BYTES);
      const { pending } = stream.writer;
      if (pending.length === 0) break;
      const moved = this.#sockets.send(stream.descriptor, pending);
      if ("end" in moved) return this.#drop(stream, moved.isUnreachable);
      if (moved.count === 0) return;
      stream.writer.sent(moved.count);
      stream.silence.sent(moved.count);
    }
    if (stream.isEnding) this.#drop(stream);
  }

  #prepare(stream: StoreStream, longest: number): void {
    stream.prepare(longest, this.#clock, () => ({
      missing: this.#missing.size,
      named: this.#missing.values().take(MOST_NAMED).toArray(),
      refusals: this.#refusals.join(", "),
    }));
  }
}

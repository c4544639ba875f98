/**
 * The store of a run: the process of rank 0 serves it, and the ranks of all hosts meet there. It keeps the newest contents
 * of every rank's block in every group and passes on what changes; a rank that is slow to take it gets the newest contents
 * later, so nothing is ever queued. It knows nothing of what blocks mean.
 *
 * Note [What the store takes]: a stream has {@link STRANGER_SECONDS} to prove that it knows the run's token, in a frame of
 * at most {@link STRANGER_BYTES}; of such streams there are at most {@link MAX_STRANGERS}. A rank's frames have at most
 * {@link RANK_BYTES}, its groups {@link MAX_BYTES} in all. Whoever sends anything else is cut off; if he is a rank, all stop.
 *
 * @module
 */
import type { Sockets } from "../../../ffi/sockets.ts";
import { equalCodes, hmacSha256 } from "../../runtime/checksum.ts";
import { ABORT_WORDS, AbortArea } from "../control/abort.ts";
import {
  codePieces,
  type Fields,
  type Frame,
  FrameError,
  FrameReader,
  FrameWriter,
  listField,
  NUMBER_BYTES,
  RANK_BYTES,
  STRANGER_BYTES,
  VERSION,
} from "./frames.ts";
import { type StoredBlock, StoredGroup } from "./stored_group.ts";

/** Seconds that a stream has to say who it is. */
const STRANGER_SECONDS = 5;
/** Streams at once that have not said who they are. */
const MAX_STRANGERS = 64;
/** Bytes of all groups. */
const MAX_BYTES: number = 2 ** 30;
/** Bytes that are prepared for a stream at a time. */
const BATCH_BYTES: number = 2 ** 18;
/** How long the store goes on when rank 0 has left, for those that have not. */
const LINGER_MS = 10_000;
/** How long it goes on when rank 0 gave up before all have joined, to tell who comes next. */
const GIVEN_UP_MS = 1500;
const POLL_MS = 250;

/** What a store is told. */
export interface StoreOptions {
  /** Descriptor of the listener, which the store closes in the end. */
  readonly listener: number;
  readonly worldSize: number;
  /** What all ranks of the run know, and nobody else. */
  readonly token: string;
}

/** One stream. */
interface Stream {
  readonly descriptor: number;
  readonly from: string;
  readonly since: number;
  readonly challenge: Uint8Array;
  readonly reader: FrameReader;
  readonly writer: FrameWriter;
  /** Blocks that have changed since it was told. */
  readonly changed: Set<StoredBlock>;
  /** Up to which change it was told of a block. */
  readonly told: Map<StoredBlock, number>;
  rank: number | undefined;
  /** Whether it is to be told who is missing. */
  needsRoll: boolean;
  /** Whether it ends when all was sent. */
  isEnding: boolean;
  hasSaidBye: boolean;
}

/** Serves a run until its ranks have left. */
export class Store {
  readonly #sockets: Sockets;
  readonly #options: StoreOptions;
  readonly #streams = new Set<Stream>();
  readonly #ranks = new Map<number, Stream>();
  readonly #groups = new Map<string, StoredGroup>();
  /** Refusals of which ranks are told that wait for others. */
  readonly #refusals: string[] = [];
  readonly #missing: Set<number>;
  #abort: Uint8Array | undefined;
  #bytes = 0;
  #clock = 0;
  #mainLeft: number | undefined;

  constructor(sockets: Sockets, options: StoreOptions) {
    this.#sockets = sockets;
    this.#options = options;
    this.#missing = new Set(Array.from({ length: options.worldSize }, (_, rank) => rank));
  }

  /** Serves until rank 0 has left and nobody is there any more, or for a while after. */
  serve(): void {
    const { listener } = this.#options;
    while (!this.#isOver) {
      const streams = [...this.#streams];
      const [first, ...ready] = this.#sockets.poll([
        { descriptor: listener, wantsOutput: false },
        ...streams.map(({ descriptor, writer }) => ({ descriptor, wantsOutput: writer.pending.length > 0 })),
      ], POLL_MS);
      if (first?.input === true) this.#accept(listener);
      for (const [index, stream] of streams.entries()) if (ready[index]?.input === true) this.#receive(stream);
      this.#dropStrangers();
      for (const stream of this.#streams) this.#send(stream);
    }
    for (const { descriptor } of this.#streams) this.#sockets.close(descriptor);
    this.#sockets.close(listener);
  }

  get #isOver(): boolean {
    if (this.#mainLeft === undefined) return false;
    const lingers = this.#missing.size > 0 ? GIVEN_UP_MS : LINGER_MS;
    return (this.#ranks.size === 0 && this.#missing.size === 0) || performance.now() - this.#mainLeft > lingers;
  }

  #accept(listener: number): void {
    for (let taken = this.#sockets.accept(listener); taken !== undefined; taken = this.#sockets.accept(listener)) {
      if (this.#streams.size - this.#ranks.size >= MAX_STRANGERS) {
        this.#sockets.close(taken.descriptor);
        continue;
      }
      const stream: Stream = {
        ...taken,
        since: performance.now(),
        challenge: crypto.getRandomValues(new Uint8Array(NUMBER_BYTES)),
        reader: new FrameReader(STRANGER_BYTES),
        writer: new FrameWriter(),
        changed: new Set(),
        told: new Map(),
        rank: undefined,
        needsRoll: false,
        isEnding: false,
        hasSaidBye: false,
      };
      stream.writer.write("challenge", stream.challenge);
      this.#streams.add(stream);
    }
  }

  /** See Note [What the store takes]. */
  #dropStrangers(): void {
    const late = performance.now() - STRANGER_SECONDS * 1000;
    for (const stream of this.#streams) {
      if (stream.rank !== undefined || stream.since > late) continue;
      if (!stream.isEnding) this.#note(stream, `said nothing of use for ${STRANGER_SECONDS} s`);
      this.#drop(stream);
    }
  }

  #receive(stream: Stream): void {
    const moved = this.#sockets.receive(stream.descriptor, stream.reader.room);
    if ("end" in moved) return this.#drop(stream);
    stream.reader.received(moved.count);
    // Who was refused is not listened to any more.
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

  /** The first frame of a stream. */
  #meet(stream: Stream, { kind, body }: Frame): void {
    const { worldSize, token } = this.#options;
    if (kind !== "hello") throw new FrameError(`'${kind}' before it said who it is`);
    const [rank, size, number, code] = [
      body.number(),
      body.number(),
      body.bytes(NUMBER_BYTES),
      body.bytes(NUMBER_BYTES),
    ];
    const version = body.text();
    const who = `it says that it is rank ${rank}`;
    if (version !== VERSION) {
      return this.#refuse(stream, `it speaks '${version}', rank 0 '${VERSION}': install one version`);
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
    this.#missing.delete(rank);
    stream.writer.write("welcome", hmacSha256(token, codePieces("store", number, stream.challenge)));
    if (this.#abort !== undefined) stream.writer.write("abort", this.#abort);
    this.#callRoll();
  }

  #take(stream: Stream, rank: number, { kind, body }: Frame): void {
    if (kind === "update") this.#update(stream, rank, body);
    else if (kind === "open") this.#open(stream, rank, body);
    else if (kind === "leave") this.#leave(rank, body.id());
    else if (kind === "abort") this.#spread(body.bytes().slice());
    else if (kind === "bye") stream.hasSaidBye = true;
    else throw new FrameError(`'${kind}', which only the store says`);
  }

  #open(stream: Stream, rank: number, body: Fields): void {
    const [id, byteLength, worldRanks] = [body.id(), body.number(), body.numbers()];
    if (!worldRanks.includes(rank)) throw new FrameError("a group without itself");
    if (byteLength > RANK_BYTES / 2) throw new FrameError(`a group with blocks of ${byteLength} bytes`);
    let group = this.#groups.get(id);
    if (group === undefined) {
      group = new StoredGroup(id, worldRanks, byteLength);
      this.#bytes += group.byteLength;
      if (this.#bytes > MAX_BYTES) throw new FrameError(`groups of more than ${MAX_BYTES} bytes`);
      this.#groups.set(id, group);
    } else if (!group.isFor(worldRanks, byteLength)) throw new FrameError("a group that others have opened otherwise");
    for (const block of group.open(rank)) stream.changed.add(block);
  }

  #update(stream: Stream, rank: number, body: Fields): void {
    const group = this.#groups.get(body.id());
    const block = group?.blockOf(rank);
    if (group === undefined || block === undefined) throw new FrameError("an update of a group that it is not in");
    const time = ++this.#clock;
    while (!body.isEmpty) block.change(time, body.number(), body.bytes(body.number()));
    for (const member of group.openedBy) {
      const other = this.#ranks.get(member);
      if (other !== undefined && other !== stream) other.changed.add(block);
    }
  }

  #leave(rank: number, id: string): void {
    const group = this.#groups.get(id);
    if (group === undefined || !group.leave(rank)) return;
    this.#groups.delete(id);
    this.#bytes -= group.byteLength;
    for (const stream of this.#ranks.values()) {
      for (const block of group.blocks) {
        stream.changed.delete(block);
        stream.told.delete(block);
      }
    }
  }

  #refuse(stream: Stream, reason: string): void {
    this.#note(stream, reason);
    stream.writer.write("refused", reason);
    stream.isEnding = true;
  }

  /** Keeps a refusal for those who wait for somebody. */
  #note({ from }: Stream, what: string): void {
    this.#refusals.push(`${from} (${what})`);
    this.#refusals.splice(0, this.#refusals.length - 4);
    if (this.#missing.size > 0) this.#callRoll();
  }

  #callRoll(): void {
    for (const stream of this.#ranks.values()) stream.needsRoll = true;
  }

  /** Stops all ranks, as a rank's end or its frames make it necessary. */
  #stop(rank: number, reason: string): void {
    const words = new Int32Array(ABORT_WORDS);
    new AbortArea(words).set(rank, reason);
    this.#spread(new Uint8Array(words.buffer));
  }

  /** Tells all ranks that one has stopped them; the first stays. */
  #spread(words: Uint8Array): void {
    if (words.length !== ABORT_WORDS * 4) throw new FrameError(`an abort of ${words.length} bytes`);
    if (this.#abort !== undefined) return;
    this.#abort = words;
    for (const stream of this.#ranks.values()) stream.writer.write("abort", words);
  }

  #drop(stream: Stream): void {
    this.#streams.delete(stream);
    this.#sockets.close(stream.descriptor);
    const { rank } = stream;
    if (rank === undefined || this.#ranks.get(rank) !== stream) return;
    this.#ranks.delete(rank);
    for (const id of [...this.#groups.keys()]) this.#leave(rank, id);
    if (rank === 0) this.#mainLeft = performance.now();
    if (stream.hasSaidBye) return;
    if (this.#missing.size > 0) this.#stop(rank, `rank ${rank} died while the ranks were joining`);
    for (const other of this.#ranks.values()) {
      // What it has done before comes first.
      this.#prepare(other, Infinity);
      other.writer.write("gone", rank);
    }
  }

  #send(stream: Stream): void {
    for (;;) {
      if (stream.writer.pending.length === 0) this.#prepare(stream, BATCH_BYTES);
      const { pending } = stream.writer;
      if (pending.length === 0) break;
      const moved = this.#sockets.send(stream.descriptor, pending);
      if ("end" in moved) return this.#drop(stream);
      if (moved.count === 0) return;
      stream.writer.sent(moved.count);
    }
    if (stream.isEnding) this.#drop(stream);
  }

  /** Writes what a stream is to be told, some of it at a time. */
  #prepare(stream: Stream, longest: number): void {
    const { writer, changed, told } = stream;
    if (stream.needsRoll) {
      stream.needsRoll = false;
      writer.write("roll", listField([...this.#missing]), this.#refusals.join(", "));
    }
    for (const block of changed) {
      if (writer.pending.length > longest) return;
      changed.delete(block);
      const fields = block.since(told.get(block) ?? 0).flatMap(({ offset, bytes }) => [offset, bytes.length, bytes]);
      told.set(block, this.#clock);
      if (fields.length > 0) writer.write("update", block.group, block.rank, ...fields);
    }
  }
}

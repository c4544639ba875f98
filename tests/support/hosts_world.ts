/**
 * The ranks of several hosts in one process and one thread: each has its own stream to a store, whose Worker is real. What goes
 * over the streams is counted, but for beats, whose number is that of seconds.
 *
 * @module
 */
import assert from "node:assert/strict";
import { placeInWorld } from "../../src/comm/control_plane.ts";
import {
  codePieces,
  type FrameKind,
  FrameReader,
  NUMBER_BYTES,
  RANK_BYTES,
  VERSION,
} from "../../src/comm/hosts/frames.ts";
import { StoreLink } from "../../src/comm/hosts/link.ts";
import { HostsControlPlane } from "../../src/comm/hosts/plane.ts";
import { SOCKETS } from "../../src/ffi/bindings/sockets.ts";
import { openLibrary } from "../../src/ffi/mod.ts";
import { Sockets } from "../../src/ffi/sockets.ts";
import { startBackgroundWorker } from "../../src/runtime/background_worker.ts";
import { hmacSha256 } from "../../src/runtime/checksum.ts";

/** Ranks that join at a time, fewer than a store lets wait. */
const JOIN_TOGETHER = 32;
const TOKEN = "a secret of the tests";

/** Numbers of frames that ranks have received and sent, by kind. */
export interface Counts {
  readonly received: Map<FrameKind, number>;
  readonly sent: Map<FrameKind, number>;
}

/** Ranks that have joined. */
export interface HostsWorldOfOne extends Disposable {
  readonly links: readonly StoreLink[];
  /** The lines that were reported to each rank. */
  readonly said: readonly string[][];
  /** Counts since the last {@link reset}. */
  readonly counts: Counts;
  plane(rank: number): HostsControlPlane;
  /** Delivers all pending frames of the store to all ranks, until none has come for `quietMs`. */
  deliverAll(quietMs?: number): void;
  reset(): void;
}

/** Sockets that count the frames that go through them. */
class CountingSockets extends Sockets {
  counts: Counts = { received: new Map(), sent: new Map() };
  readonly #readers = new Map<string, FrameReader>();

  override receive(descriptor: number, into: Uint8Array): ReturnType<Sockets["receive"]> {
    const moved = super.receive(descriptor, into);
    if ("count" in moved) this.#take("received", descriptor, into.subarray(0, moved.count));
    return moved;
  }

  override send(descriptor: number, bytes: Uint8Array): ReturnType<Sockets["send"]> {
    const moved = super.send(descriptor, bytes);
    if ("count" in moved) this.#take("sent", descriptor, bytes.subarray(0, moved.count));
    return moved;
  }

  #take(way: keyof Counts, descriptor: number, bytes: Uint8Array): void {
    const key = `${way} ${descriptor}`;
    const reader = this.#readers.get(key) ?? new FrameReader(RANK_BYTES);
    this.#readers.set(key, reader);
    for (let begin = 0; begin < bytes.length;) {
      const { room } = reader;
      const count = Math.min(room.length, bytes.length - begin);
      room.set(bytes.subarray(begin, begin + count));
      reader.received(count);
      begin += count;
      for (let frame = reader.next(); frame !== undefined; frame = reader.next()) {
        if (frame.kind === "beat") continue;
        this.counts[way].set(frame.kind, (this.counts[way].get(frame.kind) ?? 0) + 1);
      }
    }
  }
}

const pause = (ms: number): Promise<void> => new Promise((resolve) => setTimeout(resolve, ms));

/** Joins ranks at a port of this host. */
export async function openHostsWorld(size: number, ranksPerHost: number, port: number): Promise<HostsWorldOfOne> {
  const sockets = new CountingSockets(await openLibrary(SOCKETS));
  const listener = sockets.listen("127.0.0.1", port) ?? assert.fail(`port ${port} is taken`);
  const worker = startBackgroundWorker(new URL("../../src/comm/hosts/store_worker.ts", import.meta.url), {
    listener,
    worldSize: size,
    token: TOKEN,
  });
  worker.ended.catch(() => {});
  const links: StoreLink[] = [];
  const join = async (rank: number): Promise<void> => {
    const descriptor = sockets.connect(sockets.resolve("127.0.0.1", port));
    assert.ok(typeof descriptor === "number");
    while (sockets.connected(descriptor) !== true) await pause(1);
    const link = links[rank] = new StoreLink(sockets, descriptor, "the test's store");
    await enter(link, rank, size);
  };
  for (let first = 0; first < size; first += JOIN_TOGETHER) {
    const together = Math.min(JOIN_TOGETHER, size - first);
    await Promise.all(Array.from({ length: together }, (_, place) => join(first + place)));
  }
  for (const link of links) link.onJoining(() => {});
  const said = links.map((): string[] => []);
  const deliverAll = (quietMs = 100): void => {
    for (let quiet = performance.now(); performance.now() - quiet < quietMs;) {
      const before = total(sockets.counts.received);
      for (const link of links) link.pump(0);
      if (total(sockets.counts.received) > before) quiet = performance.now();
    }
  };
  return {
    links,
    said,
    deliverAll,
    get counts() {
      return sockets.counts;
    },
    reset: () => void (sockets.counts = { received: new Map(), sent: new Map() }),
    plane(rank) {
      const link = links[rank] ?? assert.fail();
      const world = {
        abort: link.abort,
        deathOf: (peer: number) => link.gone.get(peer),
        options: { reportSeconds: 0.5, report: (text: string) => void said[rank]?.push(text) },
        spins: 1,
        ranksPerHost,
      };
      return new HostsControlPlane(link, placeInWorld(rank, size), world, 5);
    },
    [Symbol.dispose]: () => {
      for (const link of links.toReversed()) link.close();
    },
  };
}

/** Proves to be a rank, as one that joins does. */
async function enter(link: StoreLink, rank: number, size: number): Promise<void> {
  let isWelcome = false;
  link.onJoining(({ kind, body }) => {
    if (kind === "welcome") link.trust();
    isWelcome ||= kind === "welcome";
    if (kind !== "challenge") return;
    const number = crypto.getRandomValues(new Uint8Array(NUMBER_BYTES));
    const code = hmacSha256(TOKEN, codePieces("rank", body.bytes(NUMBER_BYTES), number));
    link.say("hello", rank, size, number, code, new TextEncoder().encode(VERSION));
  });
  for (let turn = 0; !isWelcome; turn++) {
    assert.ok(turn < 5000 && link.isOpen, "the store does not answer");
    link.pump(0);
    await pause(1);
  }
}

function total(counts: ReadonlyMap<FrameKind, number>): number {
  return counts.values().reduce((sum, count) => sum + count, 0);
}

/** Attacks of strangers and ranks on the store: it goes on, or stops all ranks and names the rank at fault. @module */
import assert from "node:assert/strict";
import { ABORT_WORDS } from "../../src/comm/control/abort.ts";
import {
  type Field,
  type FrameKind,
  FrameWriter,
  listField,
  NUMBER_BYTES,
  VERSION,
} from "../../src/comm/hosts/frames.ts";
import { joinHosts } from "../../src/comm/hosts/join.ts";
import { openSockets } from "../../src/ffi/sockets.ts";
import { sharedTest as test } from "../support/share.ts";
import { enter, openStream, pause, runOf, untilEnd } from "../support/store_streams.ts";

const TIMEOUT = { timeout: 120_000 };
const sockets = await openSockets();

function framesOf(...frames: readonly (readonly [FrameKind, ...Field[]])[]): Uint8Array {
  const writer = new FrameWriter();
  for (const [kind, ...fields] of frames) writer.write(kind, ...fields);
  return writer.pending.slice();
}

/** Sends all bytes, in as many pieces as the stream takes; gives how many it took in a time. */
async function sendAll(stream: number, bytes: Uint8Array, longestMs: number = 10_000): Promise<number> {
  let sent = 0;
  for (const end = performance.now() + longestMs; sent < bytes.length && performance.now() < end;) {
    const moved = sockets.send(stream, bytes.subarray(sent));
    if ("end" in moved) break;
    sent += moved.count;
    if (moved.count === 0) await pause(2);
  }
  return sent;
}

const ID = new Uint8Array(8).fill(3);
const open = (blockBytes: number, ranks: readonly number[], followed: readonly number[] = []) =>
  ["open", ID, blockBytes, 0, listField(ranks), listField(followed)] as const;

test("a rank that sends frames which cannot be is named, and all ranks stop", TIMEOUT, async () => {
  const many = Array.from({ length: 1_000_000 }, (_, rank) => rank);
  const zeros = new Uint8Array(ABORT_WORDS * 4);
  const attacks: readonly (readonly [bytes: Uint8Array, reason: RegExp])[] = [
    [
      framesOf([
        "open",
        ID,
        2 ** 21,
        0,
        new Uint8Array(Uint32Array.from([many.length, ...many]).buffer),
        listField([]),
      ]),
      /a group of ranks that are no ascending ranks of the world/,
    ],
    [framesOf(open(64, [1, 1])), /no ascending ranks/],
    [framesOf(open(64, [1, 0])), /no ascending ranks/],
    [framesOf(open(64, [0])), /a group without itself/],
    [framesOf(open(2 ** 31, [0, 1])), /a group with blocks of 2147483648 bytes/],
    [framesOf(["open", ID, 64, 128, listField([1]), listField([])]), /a group with heads of 128 bytes/],
    [framesOf(open(64, [0, 1], [1])), /follows rank 1 in a group/],
    [framesOf(open(64, [0, 1], [7])), /follows rank 7 in a group/],
    [framesOf(["follow", ID, listField([0])]), /a frame about a group that it is not in/],
    [framesOf(["ask", ID, 1, 64]), /a frame about a group that it is not in/],
    [framesOf(["update", ID, 0, 1, Uint8Array.of(1)]), /a frame about a group that it is not in/],
    [framesOf(open(64, [0, 1]), ["update", ID, 60, 8, new Uint8Array(8)]), /beyond the end of a block, at 60/],
    [framesOf(open(64, [0, 1]), ["update", ID, 0, 2 ** 31]), /ends within a field of 2147483648 bytes/],
    [
      framesOf(open(64, [0, 1]), ["open", ID, 128, 0, listField([0, 1]), listField([])]),
      /others have opened otherwise/,
    ],
    [framesOf(open(64, [0, 1]), ["follow", ID, 2 ** 30]), /ends within a field/],
    [framesOf(["abort", zeros]), /an abort by nobody/],
    [framesOf(["abort", new Uint8Array(9)]), /an abort of 9 bytes/],
    [framesOf(["gone", 0]), /'gone', which only the store says/],
    [framesOf(["hello", 1]), /'hello', which only the store says/],
  ];
  for (const [bytes, reason] of attacks) {
    const options = runOf(2);
    const joining = joinHosts(options(0));
    const stream = await openStream(sockets, options(0).port);
    assert.equal((await enter(sockets, stream, 1, 2))[0], "welcome");
    const plane = await joining;
    assert.equal(await sendAll(stream, bytes), bytes.length);
    await untilEnd(sockets, stream, new Uint8Array());
    const text = new RegExp(`rank 1 sent the store .*${reason.source}`);
    assert.throws(() => plane.wait(() => false, "waiting"), text);
    plane.dispose();
  }
});

test(
  "a rank that sends much, or half a frame, or never reads does not keep the others from going on",
  TIMEOUT,
  async () => {
    const options = runOf(3);
    const joining = [0, 2].map((rank) => joinHosts(options(rank)));
    const stream = await openStream(sockets, options(0).port);
    assert.equal((await enter(sockets, stream, 1, 3))[0], "welcome");
    const [first, second] = await Promise.all(joining);
    assert.ok(first !== undefined && second !== undefined);
    const block = 2 ** 20;
    const large = framesOf(["update", ID, 0, block, new Uint8Array(block).fill(9)]);
    await sendAll(stream, framesOf(open(block, [0, 1], [0])));
    for (let i = 0; i < 40; i++) assert.equal(await sendAll(stream, large), large.length);
    const asks = framesOf(...Array.from({ length: 20_000 }, (_, i) => ["ask", ID, i, block] as const));
    assert.equal(await sendAll(stream, asks), asks.length);
    const groups = framesOf(...Array.from({ length: 20_000 }, (_, i) => {
      const id = new Uint8Array(Uint32Array.of(i, 77).buffer);
      return ["open", id, 0, 0, listField([1]), listField([])] as const;
    }));
    assert.equal(await sendAll(stream, groups), groups.length);
    assert.equal(await sendAll(stream, large.subarray(0, 1000)), 1000);
    // Rank 2 hears of rank 0 all the same: what rank 0 announces comes to it by way of the store.
    const facts = { phase: undefined, dtype: undefined, count: 0, detail: 0, step: 0 };
    for (let sequence = 1; sequence < 20; sequence++) {
      first.announce({ ...facts, kind: "barrier", unit: `turn ${sequence}`, sequence });
      await pause(12);
    }
    const { ranks } = second.flightRecord();
    assert.ok((ranks[0]?.calls.length ?? 0) >= 18, JSON.stringify(ranks[0]));
    sockets.close(stream);
    assert.throws(() => second.wait(() => false, "waiting", 1), /rank 1 died/);
    for (const plane of [second, first]) plane.dispose();
  },
);

test(
  "ranks join while strangers come in hundreds, by single bytes, and with what others have said",
  TIMEOUT,
  async () => {
    const options = runOf(3, { joinTimeoutSeconds: 30 });
    const { port } = options(0);
    const first = joinHosts(options(0));
    const held: number[] = [];
    const slow = await openStream(sockets, port);
    const address = sockets.resolve("127.0.0.1", port);
    // An answer to an earlier challenge does not count.
    const replayed = await openStream(sockets, port);
    const [kind] = await enter(sockets, replayed, 1, 3, VERSION, new Uint8Array(NUMBER_BYTES));
    assert.equal(kind, "refused");
    sockets.close(replayed);
    let isFlooded = true;
    const flood = (async () => {
      for (let i = 0; isFlooded && i < 600; i++) {
        const stream = sockets.connect(address);
        if (typeof stream === "number") held.push(stream);
        if (i % 4 === 0 || i > 200) await pause(5);
      }
    })();
    const single = (async () => {
      const bytes = framesOf(["hello", 1, 3, new Uint8Array(NUMBER_BYTES), new Uint8Array(NUMBER_BYTES), VERSION]);
      for (const byte of bytes.subarray(0, 100)) {
        if (!isFlooded || "end" in sockets.send(slow, Uint8Array.of(byte))) return;
        await pause(20);
      }
    })();
    await pause(300);
    const begin = performance.now();
    const planes = await Promise.all([first, joinHosts(options(1)), joinHosts(options(2))]);
    // Sooner than strangers who say nothing are dropped for it.
    assert.ok(performance.now() - begin < 4500, `${performance.now() - begin} ms`);
    isFlooded = false;
    await Promise.all([flood, single]);
    for (const stream of [...held, slow]) sockets.close(stream);
    for (const plane of planes.toReversed()) plane.dispose();
  },
);

test("clocks that jump do not end the wait for a rank, nor make it longer", TIMEOUT, async () => {
  const { now } = Date;
  let turns = 0;
  Date.now = () => now() + (++turns % 2 === 0 ? 86_400_000 : -86_400_000);
  try {
    const options = runOf(2);
    const first = joinHosts(options(0));
    await pause(500);
    const planes = await Promise.all([first, joinHosts(options(1))]);
    for (const plane of planes.toReversed()) plane.dispose();
    const begin = performance.now();
    await assert.rejects(joinHosts(runOf(2, { joinTimeoutSeconds: 1 })(1)), /did not come within 1 s/);
    assert.ok(performance.now() - begin < 10_000);
  } finally {
    Date.now = now;
  }
});

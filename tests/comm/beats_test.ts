/** Streams whose other host does not answer, and those whose other end is only slow. @module */
import assert from "node:assert/strict";
import { Silence } from "../../src/comm/hosts/beats.ts";
import { StoreLink } from "../../src/comm/hosts/link.ts";
import { SOCKETS } from "../../src/ffi/bindings/sockets.ts";
import { openLibrary } from "../../src/ffi/mod.ts";
import { type Answers, Sockets } from "../../src/ffi/sockets.ts";
import { sharedTest as test } from "../support/share.ts";
import { pause } from "../support/store_streams.ts";

const TIMEOUT = { timeout: 30_000 };

/** Sockets of which the test says what the other host has acknowledged. */
class ToldSockets extends Sockets {
  told: Answers | undefined;

  override answers(descriptor: number): Answers {
    return this.told ?? super.answers(descriptor);
  }
}

/** A stream over the loopback, both ends of it. */
async function streamOf(sockets: Sockets): Promise<readonly [near: number, far: number]> {
  const listener = sockets.listen("127.0.0.1", 0) ?? assert.fail();
  const near = sockets.connect(sockets.resolve("127.0.0.1", sockets.portOf(listener)));
  assert.ok(typeof near === "number");
  for (let turn = 0; turn < 400; turn++) {
    const taken = sockets.accept(listener);
    if (taken !== undefined) {
      sockets.close(listener);
      return [near, taken.descriptor];
    }
    await pause(5);
  }
  assert.fail("the stream was not opened");
}

test("a peer that lives counts as there, also if it reads nothing until no more fits", TIMEOUT, async () => {
  const sockets = new Sockets(await openLibrary(SOCKETS));
  const [near, far] = await streamOf(sockets);
  const silence = new Silence();
  for (const end = performance.now() + 4000; performance.now() < end; await pause(100)) {
    const moved = sockets.send(near, new Uint8Array(2 ** 20));
    assert.ok("count" in moved);
    silence.sent(moved.count);
    // What was sent a moment ago may be under way.
    assert.notEqual(silence.next(sockets, near), "lost");
  }
  assert.ok(!sockets.answers(near).isUnderWay);
  for (const descriptor of [near, far]) sockets.close(descriptor);
});

test("bytes that were sent right before each beat are no sign of silence, older ones are", TIMEOUT, async () => {
  const sockets = new ToldSockets(await openLibrary(SOCKETS));
  const silence = new Silence();
  let bytes = 0;
  for (let beat = 0; beat < 10; beat++) {
    silence.sent(100); // by a rank that computed before, so nothing came for long
    sockets.told = { isUnderWay: true, silentMs: Infinity, bytes };
    assert.equal(silence.next(sockets, 0), "wait");
    bytes += 100;
  }
  sockets.told = { isUnderWay: true, silentMs: Infinity, bytes };
  const ends = [0, 1, 2].map(() => silence.next(sockets, 0));
  assert.deepEqual(ends, ["wait", "wait", "wait"], "all was acknowledged");
  silence.sent(5);
  assert.deepEqual([0, 1, 2].map(() => silence.next(sockets, 0)), ["wait", "wait", "lost"], "the last ones were not");
  sockets.told = { isUnderWay: true, silentMs: 0, bytes };
  assert.equal(silence.next(sockets, 0), "wait", "something was acknowledged again");
  sockets.told = { isUnderWay: false, silentMs: Infinity, bytes };
  assert.equal(silence.next(sockets, 0), "send");
});

test("a link loses a store whose host does not answer, and keeps one that is silent", TIMEOUT, async () => {
  const sockets = new ToldSockets(await openLibrary(SOCKETS));
  const [near, far] = await streamOf(sockets);
  const link = new StoreLink(sockets, near, "10.0.0.1:29500");
  const pumpFor = (ms: number): void => {
    for (const end = performance.now() + ms; performance.now() < end && link.isOpen;) link.pump(20);
  };
  link.trust();
  // Its end says nothing and reads nothing, as a process that computes.
  pumpFor(4500);
  assert.ok(link.isOpen);
  sockets.told = { isUnderWay: true, silentMs: Infinity, bytes: 0 };
  const begun = performance.now();
  pumpFor(8000);
  const seconds = (performance.now() - begun) / 1000;
  assert.ok(!link.isOpen && seconds > 0.9 && seconds < 4, `after ${seconds} s`);
  const { reason = "" } = link.abort.cause ?? {};
  assert.match(reason, /^the stream to the store at 10\.0\.0\.1:29500, .*does not answer any more/);
  assert.match(link.gone.get(0) ?? "", /^cannot be reached any more/);
  sockets.close(far);
});

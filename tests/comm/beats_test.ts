/** Streams whose other host does not answer, and those whose other end is only slow. @module */
import assert from "node:assert/strict";
import { StoreLink } from "../../src/comm/hosts/link.ts";
import { SOCKETS } from "../../src/ffi/bindings/sockets.ts";
import { openLibrary } from "../../src/ffi/mod.ts";
import { Sockets } from "../../src/ffi/sockets.ts";
import { sharedTest as test } from "../support/share.ts";
import { pause } from "../support/store_streams.ts";

const TIMEOUT = { timeout: 30_000 };

/** Sockets of a host that is cut off when the test says so: nothing that it sends is answered. */
class CutSockets extends Sockets {
  isCut = false;

  override isUnanswered(descriptor: number, ms: number): boolean {
    return this.isCut || super.isUnanswered(descriptor, ms);
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

test(
  "isUnanswered() is false for a peer that lives, also if it reads nothing until no more fits",
  TIMEOUT,
  async () => {
    const sockets = new Sockets(await openLibrary(SOCKETS));
    const [near, far] = await streamOf(sockets);
    sockets.send(near, new Uint8Array(5));
    await pause(300);
    assert.ok(!sockets.isUnanswered(near, 100));
    for (const end = performance.now() + 3000; performance.now() < end; await pause(100)) {
      sockets.send(near, new Uint8Array(2 ** 20));
      assert.ok(!sockets.isUnanswered(near, 900));
    }
    for (const descriptor of [near, far]) sockets.close(descriptor);
  },
);

test(
  "a link loses a store whose host does not answer, at the third beat, and keeps one that is silent",
  TIMEOUT,
  async () => {
    const sockets = new CutSockets(await openLibrary(SOCKETS));
    const [near, far] = await streamOf(sockets);
    const link = new StoreLink(sockets, near, "10.0.0.1:29500");
    const pumpFor = (ms: number): void => {
      for (const end = performance.now() + ms; performance.now() < end && link.isOpen;) link.pump(20);
    };
    link.trust();
    // Its end says nothing and reads nothing, as a process that computes.
    pumpFor(4500);
    assert.ok(link.isOpen);
    sockets.isCut = true;
    const begun = performance.now();
    pumpFor(8000);
    const seconds = (performance.now() - begun) / 1000;
    assert.ok(!link.isOpen && seconds > 1.9 && seconds < 4, `after ${seconds} s`);
    assert.match(
      link.abort.cause?.reason ?? "",
      /^the stream to the store at 10\.0\.0\.1:29500, .*does not answer any more/,
    );
    assert.match(link.gone.get(0) ?? "", /^cannot be reached any more/);
    sockets.close(far);
  },
);

/** Ranks of several hosts meeting at a store: who is let in, who is missed, and what is not taken. @module */
import assert from "node:assert/strict";
import { FrameWriter, NUMBER_BYTES } from "../../src/comm/hosts/frames.ts";
import { joinHosts } from "../../src/comm/hosts/join.ts";
import type { HostsControlPlane } from "../../src/comm/hosts/plane.ts";
import { openSockets } from "../../src/ffi/sockets.ts";
import { shown } from "../../src/words.ts";
import { longTest, sharedTest as test } from "../support/share.ts";
import { enter, errorsOf, openStream, pause, runOf, untilEnd } from "../support/store_streams.ts";

const TIMEOUT = { timeout: 60_000 };

longTest(
  "what strangers say comes into messages without what a terminal would obey, and not at length",
  TIMEOUT,
  async () => {
    const sockets = await openSockets();
    const options = runOf(2, { joinTimeoutSeconds: 4 });
    const first = errorsOf([options(0)]);
    const stream = await openStream(sockets, options(0).port);
    const version = `\u001b[2J\u009b1m\r\nfullyshard: all is well\u202e ${"x".repeat(100)}`;
    const [kind, text = ""] = await enter(sockets, stream, 1, 2, version);
    sockets.close(stream);
    assert.equal(kind, "refused");
    const [error = ""] = await first;
    for (const said of [text, error]) {
      assert.match(said, /it speaks '\\u001b\[2J\\u009b1m\\u000d\\nfullyshard: all is well\\u202e x+…', rank 0/);
      assert.ok(shown(said) === said);
    }

    // A program that answers on the port may be no store at all.
    for (const length of [100, 900, 1_000_000]) {
      const { port } = runOf(2)(0);
      const listener = sockets.listen("127.0.0.1", port) ?? assert.fail("the test's port is taken");
      const joining = errorsOf([{ ...runOf(2, { joinTimeoutSeconds: 2 })(1), port }]);
      const writer = new FrameWriter();
      writer.write("challenge", new Uint8Array(NUMBER_BYTES));
      writer.write("refused", `\u001b]0;title\u0007\n${"y".repeat(length)}`);
      const streams: number[] = [];
      for (const end = performance.now() + 2500; performance.now() < end;) {
        const taken = sockets.accept(listener);
        if (taken !== undefined) {
          sockets.send(taken.descriptor, writer.pending);
          streams.push(taken.descriptor);
        }
        await pause(10);
      }
      const [refused = ""] = await joining;
      for (const one of [...streams, listener]) sockets.close(one);
      assert.ok(refused.length < 2500 && shown(refused) === refused, refused);
      assert.match(
        refused,
        length < 1000
          ? /refused rank 1: \\u001b\]0;title\\u0007\\ny+/
          : /did not come within 2 s .*(a frame of \d+ bytes, where 1 to 1024|answers nothing)/,
      );
    }
  },
);

longTest(
  "joinHosts() names the ranks that never come, their host, and how long they were awaited",
  TIMEOUT,
  async () => {
    const options = runOf(4, { joinTimeoutSeconds: 8 });
    const errors = await errorsOf([options(0), options(2)]);
    const pattern = /Rank 1, 3 of 4 \(host 0, 1\) did not come within 8 s to the store of rank 0 at 127\.0\.0\.1:\d+/;
    // Whoever's time is over first tells the other.
    assert.ok(errors.some((error) => pattern.test(error ?? "")), String(errors));
    for (const error of errors) assert.match(error ?? "", /RendezvousError.*Rank 1, 3 of 4/);
    const [alone] = await errorsOf([runOf(4, { joinTimeoutSeconds: 1 })(1)]);
    assert.match(
      alone ?? "",
      /Rank 0 of 4 \(host 0\) did not come within 1 s .*last attempt to reach it: ECONNREFUSED/,
    );
  },
);

test("joinHosts() lets nobody in who does not know the token", TIMEOUT, async () => {
  const options = runOf(2, { joinTimeoutSeconds: 8 });
  const [first, second] = await errorsOf([options(0), { ...options(1), token: "guessed" }]);
  assert.match(second ?? "", /refused rank 1: its FULLYSHARD_TOKEN is not rank 0's/);
  assert.match(
    first ?? "",
    /Rank 1 of 2 .* did not come within 8 s .*refused meanwhile: 127\.0\.0\.1:\d+ \(its FULLYSHARD_TOKEN/,
  );
});

test(
  "joinHosts() refuses a port that another process has, a rank that comes twice, and another world",
  TIMEOUT,
  async () => {
    const sockets = await openSockets();
    const taken = runOf(2)(0);
    const listener = sockets.listen("127.0.0.1", taken.port) ?? assert.fail("the test's port is taken");
    const [inUse] = await errorsOf([taken]);
    sockets.close(listener);
    assert.match(inUse ?? "", /cannot serve the store at port \d+, which another process .*another MASTER_PORT/);

    const twice = runOf(3, { joinTimeoutSeconds: 8 });
    const errors = await errorsOf([twice(0), twice(1), twice(1)]);
    assert.match(
      errors.find((error) => error?.includes("refused rank 1")) ?? "",
      /rank 1 of this run has joined already/,
    );

    const [main, other] = await errorsOf([runOf(2)(0)].flatMap((one) => [one, { ...one, rank: 1, worldSize: 3 }]));
    assert.match(other ?? "", /ranks disagree: rank 0 was started with a world size of 2, rank 1 with 3/);
    assert.match(main ?? "", /Rank 1 gave up joining: ranks disagree/);
  },
);

test("the store ends streams of strangers, and ranks join beside them", TIMEOUT, async () => {
  const sockets = await openSockets();
  const options = runOf(2);
  const first = joinHosts(options(0));
  const { port } = options(0);
  const send = async (bytes: Uint8Array): Promise<number> => {
    const [, seconds] = await untilEnd(sockets, await openStream(sockets, port), bytes);
    return seconds;
  };
  const abort = new FrameWriter();
  abort.write("abort", new Uint8Array(100));
  const garbage = [
    new TextEncoder().encode("GET / HTTP/1.1\r\nHost: store\r\n\r\n"),
    new Uint8Array(Uint32Array.of(2 ** 31, 1).buffer),
    abort.pending.slice(),
  ];
  for (const bytes of garbage) assert.ok(await send(bytes) < 4);
  // As many as the store lets wait, and none of them says anything.
  const address = sockets.resolve("127.0.0.1", port);
  const silent = Array.from({ length: 64 }, () => sockets.connect(address));
  await pause(200);
  const [one, other] = await Promise.all([first, joinHosts(options(1))]);
  for (const stream of silent) if (typeof stream === "number") sockets.close(stream);
  assert.deepEqual([one.size, other.rank], [2, 1]);
  other.dispose();
  one.dispose();
});

test("the store cuts off a rank that sends what it does not take, and stops the others", TIMEOUT, async () => {
  const sockets = await openSockets();
  for (
    const [bytes, reason] of [
      [
        new Uint8Array(Uint32Array.of(2 ** 31).buffer),
        /rank 1 sent the store a frame of 2147483648 bytes, where 1 to 4194304/,
      ],
      [Uint8Array.of(1, 0, 0, 0, 99), /rank 1 sent the store a frame of the unknown kind 99/],
      [Uint8Array.of(3, 0, 0, 0, 7, 1, 2), /rank 1 sent the store a frame that ends within a field/],
    ] as const
  ) {
    const options = runOf(2);
    const joining = joinHosts(options(0));
    const stream = await openStream(sockets, options(0).port);
    assert.equal((await enter(sockets, stream, 1, 2))[0], "welcome");
    const plane: HostsControlPlane = await joining;
    await untilEnd(sockets, stream, bytes);
    assert.throws(() => plane.wait(() => false, "waiting"), reason);
    plane.dispose();
  }
});

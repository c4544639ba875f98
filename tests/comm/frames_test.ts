/** What a frame's length and numbers cannot hold. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { Fields, FrameReader, FrameWriter } from "../../src/comm/hosts/frames.ts";

test("FrameWriter refuses what 32 bits do not hold, and writes nothing of it", () => {
  const writer = new FrameWriter();
  for (const number of [2 ** 32, -1, 0.5, NaN]) {
    assert.throws(() => writer.write("update", number), { name: "UnsupportedError", message: /in a frame 'update'/ });
  }
  // Not a byte of these arrays is touched, so they take no memory.
  const half = new Uint8Array(2 ** 31);
  assert.throws(() => writer.write("update", half, half), {
    name: "UnsupportedError",
    message: "Cannot send a frame 'update' of 4294967297 bytes: its length has 32 bits, at most 4294967295",
  });
  assert.equal(writer.pending.length, 0);
  writer.write("update", 2 ** 32 - 1);
  const reader = new FrameReader(64);
  reader.room.set(writer.pending);
  reader.received(writer.pending.length);
  const frame = reader.next();
  assert.equal(frame?.kind, "update");
  assert.ok(frame.body instanceof Fields);
  assert.equal(frame.body.number(), 2 ** 32 - 1);
});

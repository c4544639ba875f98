/** The bytes that each rank reads of a checkpoint's files, and the damage that it finds in them. @module */
import assert from "node:assert/strict";
import * as fs from "node:fs";
import { test } from "node:test";
import { openVerified, PIECE_BYTES } from "../../src/checkpoint/format/pieces.ts";
import { writeSafetensors } from "../../src/checkpoint/format/safetensors.ts";
import { uint8 } from "../../src/dtype.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { errorsOf, valuesOf, world } from "../support/world.ts";
import { load, save } from "./range_reads_ranks.ts";

test("loadCheckpoint() reads on each rank the ranges that it holds, and the rest of the pieces at both ends", async () => {
  using temporary = temporaryDirectory();
  const { path } = temporary;
  valuesOf(await world(2, save, { data: path }));
  for (const size of [1, 3]) {
    for (const { held, bytesRead, fileBytesRead, tensors } of valuesOf(await world(size, load, { data: path }))) {
      assert.equal(bytesRead, held);
      // A tensor of one rank lies in at most two files of the two that saved, and each may have a header of its own.
      const most = held + 2 * tensors * 3 * PIECE_BYTES;
      assert.ok(fileBytesRead >= held && fileBytesRead <= most, `${fileBytesRead} bytes for ${held}`);
      if (size === 3) assert.ok(fileBytesRead < 18 * PIECE_BYTES, "no rank reads all");
    }
  }
});

test("loadCheckpoint() finds a damaged piece where a rank reads it, and names the bytes", async () => {
  using temporary = temporaryDirectory();
  const [checkpoint] = valuesOf(await world(2, save, { data: temporary.path }));
  const file = `${checkpoint}/shard-00001-model-00001-of-00001.safetensors`;
  const bytes = fs.readFileSync(file);
  const at = PIECE_BYTES + 5;
  bytes[at] = (bytes[at] ?? 0) ^ 1;
  fs.writeFileSync(file, bytes);
  for (const error of errorsOf(await world(3, load, { data: temporary.path }))) {
    assert.match(
      error,
      /^CheckpointError: .*got none:\n.*checkpoint-1: shard-00001-.*: Bytes 1048576 to 2097152 should have checksum \w{8}, got \w{8}: it is damaged\. The model holds some of its values by now: load a whole one, or initialize it$/,
    );
  }
});

test("openVerified() gives any range of what was written, and refuses others", async () => {
  using temporary = temporaryDirectory();
  const path = temporary.file("a.safetensors");
  const data = Uint8Array.from({ length: 2 * PIECE_BYTES + 700 }, (_, i) => (i * 7919) >> 3);
  const spec = { name: "a", shape: [data.length], dtype: uint8 };
  const written = await writeSafetensors(path, [spec], {}, () => [data.subarray(0, 3), data.subarray(3)]);
  const whole = fs.readFileSync(path);
  using file = openVerified(path, written);
  for (
    const [from, length] of [[0, 8], [PIECE_BYTES - 3, 6], [100, 2 * PIECE_BYTES], [whole.length - 1, 1], [
      5,
      0,
    ]] as const
  ) {
    const into = new Uint8Array(length);
    file.read(from, into);
    assert.ok(whole.subarray(from, from + length).equals(into), `${length} bytes from ${from}`);
  }
  assert.throws(
    () => file.read(whole.length - 1, new Uint8Array(2)),
    /ends at byte \d+, but bytes up to \d+ are wanted/,
  );
  fs.truncateSync(path, 1000);
  assert.throws(() => openVerified(path, written), /Expected \d+ bytes, got 1000: it is cut off or changed/);
});

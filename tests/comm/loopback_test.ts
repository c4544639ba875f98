/** The suite over Workers. @module */
import { test } from "node:test";
import assert from "node:assert/strict";
import { createLoopbackWorld, openLoopback } from "../../src/comm/data/loopback.ts";
import { runLoopback } from "../../src/comm/loopback_workers.ts";
import { conformPlanes } from "../conformance/planes.ts";
import { openCommDevice } from "../support/comm_device.ts";
import { shareOf, usualFirst } from "../support/share.ts";

for (
  const [name, size, stagingBytes] of shareOf([
    ...usualFirst([1, 2, 3, 4], (place) => place === 1).map((size) => ["loopback", size, 2 ** 23] as const),
    // Staging so small that everything takes many rounds.
    ["loopback with little staging", 3, 16384] as const,
  ])
) conformPlanes(name, [size], { planes: { stagingBytes } });

test("runLoopback() names a rank that fails", async () => {
  const url = new URL("../ddp/rank.ts", import.meta.url);
  await assert.rejects(runLoopback(2, url, "nonsense"), /Rank [01]: no width/);
});

test("createLoopbackWorld() refuses sizes that make no sense", () => {
  for (const size of [0, -1, 1.5, 5000]) assert.throws(() => createLoopbackWorld(size), { name: "ArgumentError" });
});

test("openLoopback() refuses ranks that are not there, and staging that is too small", async () => {
  const device = await openCommDevice(2 ** 24);
  assert.throws(
    () => openLoopback(createLoopbackWorld(2), 2, device),
    /This thread is rank 2, which is not in a group of 2/,
  );
  assert.throws(
    () => openLoopback(createLoopbackWorld(2, { stagingBytes: 1000 }), 0, device),
    /Cannot stage 2 ranks with 256 bytes a rank: 'stagingBytes' must be at least 4096/,
  );
});

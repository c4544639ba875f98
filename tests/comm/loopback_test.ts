/** The transport suite over `loopback`, and what is particular to it. @module */
import { test } from "node:test";
import assert from "node:assert/strict";
import { ProcessGroup } from "../../src/comm/process_group.ts";
import { createLoopbackWorld, openLoopback } from "../../src/comm/transports/loopback.ts";
import { runLoopback } from "../../src/comm/transports/loopback_workers.ts";
import { conformTransport, runScenarios } from "../conformance/transport.ts";
import { TOO_LARGE } from "../conformance/transport_scenarios.ts";
import type { Outcome, Runner } from "../conformance/transport.ts";
import { openCommDevice } from "../support/comm_device.ts";
import type { Batch } from "./loopback_rank.ts";

const RANK = new URL("./loopback_rank.ts", import.meta.url);

function inWorkers(apertureBytes: number, recorded: boolean): Runner {
  return async (size, scenarios) => {
    const options = { apertureBytes, arenaBytes: 2 ** 25 };
    const batch: Batch = { scenarios, worlds: scenarios.map(() => createLoopbackWorld(size, options)), recorded };
    return await runLoopback(size, RANK, batch) as readonly (readonly Outcome[])[];
  };
}

conformTransport("loopback", [2, 3, 4], inWorkers(2 ** 23, false));
// An aperture so small that everything takes many rounds.
conformTransport("loopback with a small aperture", [3], inWorkers(16384, false));
conformTransport("recorded loopback", [2], inWorkers(2 ** 20, true));
// A rank alone needs no Worker.
conformTransport("loopback", [1], async (_size, scenarios) => {
  const device = await openCommDevice();
  const open = (): ProcessGroup => new ProcessGroup(openLoopback(createLoopbackWorld(1), 0, device));
  return [await runScenarios(scenarios, device, open)];
});

test("runLoopback() names a rank that fails", async () => {
  await assert.rejects(runLoopback(2, RANK, "nonsense"), /Rank [01]: rank [01] was told 'nonsense'/);
});

test("createLoopbackWorld() refuses sizes that make no sense", () => {
  for (const size of [0, -1, 1.5, 5000]) assert.throws(() => createLoopbackWorld(size), { name: "ArgumentError" });
});

test("openWindow() beyond the arena names bytes asked, free, and the option", async () => {
  const batch: Batch = {
    scenarios: [TOO_LARGE],
    worlds: [createLoopbackWorld(2, { arenaBytes: 2 ** 20, apertureBytes: 16384 })],
    recorded: false,
  };
  const [first, second] = await runLoopback(2, RANK, batch) as [Outcome[], Outcome[]];
  assert.match(
    first[0]?.text ?? "",
    /OutOfMemoryError: Out of memory on the loopback arena: asked for 4000256 bytes.* bytes are free\. Raise 'arenaBytes'/,
  );
  assert.match(
    second[0]?.text ?? "",
    /CollectiveError: .*rank 0 could not allocate 4000256 bytes for window 'embedding'/,
  );
});

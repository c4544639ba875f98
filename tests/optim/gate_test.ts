/**
 * A fault that one rank meets keeps all ranks from updating, though none waits for the host to know of it.
 *
 * @module
 */
import assert from "node:assert/strict";
import { runLoopback } from "../../doors/testing.ts";
import type { GateReport } from "./gate_rank.ts";
import { sharedTest as test } from "../support/share.ts";

function isReport(value: unknown): value is GateReport {
  return typeof value === "object" && value !== null && "told" in value;
}

for (const [maxNorm, worlds] of [[1, [2, 3]], [undefined, [2]]] as const) {
  for (const world of worlds) {
    test(`Optimizer.step() on ${world} ranks, ${maxNorm === undefined ? "not " : ""}clipped, skips a step with a fault on one`, async () => {
      const reports = await runLoopback(world, new URL("./gate_rank.ts", import.meta.url), maxNorm);
      assert.equal(reports.length, world);
      for (const [rank, report] of reports.entries()) {
        assert.ok(isReport(report));
        const [first, second, third] = report.weights;
        assert.equal(second, first, `rank ${rank} was updated`);
        assert.notEqual(third, second, `rank ${rank} was not updated any more`);
        assert.deepEqual(report.steps, [1, 1, 2]);
        const told = rank === world - 1 ? "ArgumentError: Cannot look up id 32 at place 3: the table has 32 rows" : "";
        assert.equal(report.told, told);
      }
    });
  }
}

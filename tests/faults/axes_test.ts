/** Ranks of each axis of a mesh that die, do something else or stall: the axis, its ranks and the call are named. @module */
import assert from "node:assert/strict";
import { AXIS_FAULTS, ordered } from "../../scripts/faults/faults.ts";
import { sharedTest as test, usualFirst } from "../support/share.ts";

for (const fault of usualFirst(AXIS_FAULTS, (place) => place === 0 || place === 7)) {
  test(`${fault.name}: the other rank of the axis names it, the axis and the call`, { timeout: 60_000 }, async () => {
    const { named, wrong } = await ordered(fault);
    assert.deepEqual(wrong, []);
    assert.notEqual(named, "");
  });
}

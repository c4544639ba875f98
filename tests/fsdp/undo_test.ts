/** Calls that shard or replicate and fail in the middle: nothing has changed, and the next call goes well. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import { sharedTest as it } from "../support/share.ts";
import { valuesOf, world } from "../support/world.ts";
import { type Attempt, undo, undoThrown } from "./undo_ranks.ts";

const POLICIES = ["float32", "bfloat16", "frozen", "placed", "offloaded"] as const;

for (const how of ["fullyShard", "merge", "shardModel", "replicate"] as const) {
  describe(`${how === "merge" ? "fullyShard() of a module that uses a unit's weight" : `${how}()`} whose memory runs out`, () => {
    for (
      const policy of POLICIES.filter((policy) => {
        if (how === "replicate") return policy !== "placed" && policy !== "offloaded";
        return how !== "shardModel" || policy !== "placed"; // which has no option of that
      })
    ) {
      for (const hasValues of [false, true]) {
        for (const [size, victim] of [[1, undefined], [2, undefined], [3, 1]] as const) {
          const where = victim === undefined ? "" : `, on rank ${victim} alone`;
          it(`changes nothing on ${size} ranks${where}: ${policy}, ${hasValues ? "with" : "without"} values`, async () => {
            const data: Attempt = { how, policy, hasValues, victim };
            for (const { failures, faults, same } of valuesOf(await world(size, undo, { data }))) {
              assert.deepEqual(faults, []);
              assert.ok(failures > 0 || how === "replicate" && policy === "float32", `${failures} failures`);
              assert.ok(same, "a retry trains to other bits");
            }
          });
        }
      }
    }
  });
}

describe("a function of the user that throws on one rank", () => {
  for (const which of ["shardPlacement", "gatherExtension", "isUnit"] as const) {
    it(`stops the call on all ranks and changes nothing: ${which}`, async () => {
      for (const { failures, faults, same } of valuesOf(await world(2, undoThrown, { data: which }))) {
        assert.deepEqual(faults, []);
        assert.ok(failures > 2, `${failures} failures`);
        assert.ok(same, "a retry trains to other bits");
      }
    });
  }
});

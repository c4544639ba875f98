/** State dicts whose memory runs out on a rank: all ranks say so, none keeps memory, and the next call goes well. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { valuesOf, world } from "../support/world.ts";
import { failStateDict, type StateDictFailure } from "./state_dict_memory_ranks.ts";

describe("a whole state dict without memory for its pieces", () => {
  for (const call of ["get, to all ranks", "get, to rank 0", "set from rank 0"] as const) {
    for (const victim of [undefined, 0, 1]) {
      it(`fails on all ranks alike and keeps nothing: ${call}, rank ${victim ?? "0 and 1"}`, async () => {
        const data: StateDictFailure = { call, victim };
        for (const [failures, faults] of valuesOf(await world(2, failStateDict, { data }))) {
          assert.deepEqual(faults, []);
          assert.ok(failures > 0);
        }
      });
    }
  }
});

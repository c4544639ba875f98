/** Units that ranks write or dispose in an order of their own. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import { errorsOf, valuesOf, world } from "../support/world.ts";
import { disposeInOtherOrder, stepInOtherOrder } from "./order_ranks.ts";
import { sharedTest as it } from "../support/share.ts";

for (const over of ["shm", "loopback"] as const) {
  describe(`fullyShard() over ${over}`, () => {
    it("names units that ranks write in another order, at once and by their names", { timeout: 60_000 }, async () => {
      for (const error of errorsOf(await world(2, stepInOtherOrder, { over }))) {
        assert.match(error, /^Error: at once: CollectiveError: .*ranks make different calls/);
        assert.match(error, /rank 0 calls write 'layers\.0.*rank 1 calls write 'layers\.2/);
      }
    });

    it("lets ranks dispose in another order and goes on", { timeout: 60_000 }, async () => {
      for (const { losses, bytes } of valuesOf(await world(2, disposeInOtherOrder, { over }))) {
        assert.equal(losses.length, 9);
        assert.deepEqual(losses.slice(3, 6), losses.slice(0, 3));
        assert.deepEqual(losses.slice(6), losses.slice(0, 3));
        assert.equal(bytes, 0);
      }
    });
  });
}

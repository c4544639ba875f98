/**
 * The public API as a program sees it: the values and signatures of each door. `doors_test.ts` runs this where JSR answers, from
 * which `@std/testing` comes. After a change that is meant, `take_snapshots.ts` writes them anywhere.
 *
 * @module
 */
import { describe, it } from "@std/testing/bdd";
import { assertSnapshot } from "@std/testing/snapshot";
import { doors, signaturesOf, valuesOfDoor } from "./doors.ts";

for (const [name, door] of doors()) {
  describe(name, () => {
    it("exports these values", async (context) => {
      await assertSnapshot(context, await valuesOfDoor(door));
    });

    it("has these signatures", async (context) => {
      await assertSnapshot(context, signaturesOf(door));
    });
  });
}

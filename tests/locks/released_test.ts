/** A folder is free again where another rank fails while rank 0 takes it: its process may take another place in the run. @module */
import assert from "node:assert/strict";
import { startRank } from "../support/rank_process.ts";
import { sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { valuesOf, world } from "../support/world.ts";
import { type Saving, stopWhileLocked } from "./released_ranks.ts";

for (const saving of ["saveCheckpoint", "asyncSave", "saveHfDirectory"] as const satisfies readonly Saving[]) {
  test(`${saving}() gives its folder up where another rank stops all as it takes it`, async () => {
    using folder = temporaryDirectory();
    const data: readonly [Saving, string] = [saving, folder.file("out")];
    const [first] = valuesOf(await world(2, stopWhileLocked, { data }));
    assert.match(first?.error ?? "", /^CollectiveError: .*rank 1 stops/);
    assert.equal(first?.isHeld, false);
  });
}

test("a save that is given up holds its folder until its Worker has ended, and then nothing keeps the process", {
  timeout: 40_000,
}, async () => {
  using folder = temporaryDirectory();
  const rank = startRank(new URL("give_up.ts", import.meta.url), [folder.file("out")]);
  assert.equal(await rank.ended, 0, rank.stderr);
  assert.equal(rank.stdout, "held: true\nended: true\nheld: false\n");
});

/** A folder is free again where another rank fails while rank 0 takes it: its process may take another place in the run. @module */
import assert from "node:assert/strict";
import { existsSync } from "node:fs";
import { asyncSave, CheckpointStager } from "../../doors/checkpoint.ts";
import { launch, openModel } from "../../mod.ts";
import { givenUpSavesEnd } from "../../src/checkpoint/sharded/pending.ts";
import { LOCK_FILE } from "../../src/locks/folder_lock.ts";
import { TINY_LLAMA } from "../checkpoint/bed.ts";
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

test("a save that is given up holds its folder until its Worker has ended, which givenUpSavesEnd() waits for", async () => {
  using folder = temporaryDirectory();
  await using run = await launch({ memoryBytes: 2 ** 26 });
  const model = await openModel(run, TINY_LLAMA);
  await model.load();
  using stager = new CheckpointStager(run.device);
  const directory = folder.file("out");
  asyncSave({ directory, step: 1, model, group: run.group, state: {}, stager })[Symbol.dispose]();
  assert.equal(existsSync(`${directory}/${LOCK_FILE}`), true, "its Worker has had no turn of the event loop");
  assert.equal(await givenUpSavesEnd(), true);
  assert.equal(existsSync(`${directory}/${LOCK_FILE}`), false);
});

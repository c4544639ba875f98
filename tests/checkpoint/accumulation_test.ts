/** Saves between the micro-batches of a step: they change nothing in it, and hold the values before it. @module */
import assert from "node:assert/strict";
import { sharedTest as test, usualFirst } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { valuesOf, world } from "../support/world.ts";
import { interrupt, type Interruption } from "./accumulation_ranks.ts";

const WORLDS = [["plain", 1, "loopback"], ["fsdp", 1, "loopback"], ["fsdp", 2, "shm"], ["fsdp", 3, "loopback"], [
  "ddp",
  2,
  "loopback",
], ["fsdp", 4, "loopback"]] as const;

for (const [mode, size, over] of usualFirst(WORLDS, (place) => place === 2)) {
  test(`saves in the middle of an accumulation change nothing, ${mode} on ${size} ranks over ${over}`, async () => {
    const run = async (what: Interruption["what"]): Promise<readonly string[]> => {
      using folder = temporaryDirectory();
      const data = { mode, what, directory: folder.file("run") };
      const reports = valuesOf(await world(size, interrupt, { over, data }));
      assert.ok(reports.every(({ saved }) => saved), `${what}: other values were saved`);
      return reports.map(({ end }) => end);
    };
    const expected = await run("nothing");
    for (const what of ["checkpoint", "async", "folder"] as const) assert.deepEqual(await run(what), expected, what);
  });
}

/** A folder is free again where another rank fails while rank 0 takes it: its process may take another place in the run. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { fileURLToPath } from "node:url";
import { programOf, RUNTIME } from "../support/rank_process.ts";
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

test("a save that is given up holds its folder until its Worker has ended, and then nothing keeps the process", () => {
  using folder = temporaryDirectory();
  const script = fileURLToPath(new URL("give_up.ts", import.meta.url));
  const program = [programOf(RUNTIME) ?? RUNTIME, ...RUNTIME === "deno" ? ["run", "-A", "--no-check"] : []];
  const [file = "", ...args] = [...program, script, folder.file("out")];
  const { status, stdout, stderr } = spawnSync(file, args, { encoding: "utf8", timeout: 40_000 });
  assert.deepEqual([status, stdout], [0, "held: true\nended: true\nheld: false\n"], stderr);
});

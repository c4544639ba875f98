/** A run whose ranks are killed again and again, at moments of chance, beside the same numbers of ranks by hand. @module */
import assert from "node:assert/strict";
import { killRanks } from "../../scripts/elastic/kills.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { sharedTest as test } from "../support/share.ts";

test(
  "a run with thirty kills, in steps and in saves, has the bits of the run by hand",
  { timeout: 400_000 },
  async () => {
    const { kills, wrong } = await killRanks(30, 0, RUNTIME, true);
    assert.deepEqual([kills, wrong], [30, []]);
  },
);

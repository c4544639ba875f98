/** Every family over stages against one rank, and with FSDP or copies inside of stages against these alone. @module */
import assert from "node:assert/strict";
import { ZOO, zooModels } from "../../scripts/zoo/families.ts";
import { onlyInAll, sharedTest as test, usualFirst } from "../support/share.ts";
import { ALONE, assertAsAlone, bitsOf, train } from "./staged.ts";

/** Families whose blocks hand on more than hidden states, or whose parts have other places. */
const USUAL: readonly string[] = ["glm_moe_dsa", "mixtral"];
/** Has routers be balanced by a loss over all blocks, where a family has such a loss. */
const BALANCED: Readonly<Record<string, unknown>> = { output_router_logits: true };

for (const [place, family] of usualFirst(ZOO, (place) => USUAL.includes(ZOO[place] ?? "")).entries()) {
  const models = zooModels(family);
  const usual = place % models.length;
  const others = onlyInAll(models.toSpliced(usual, 1));
  for (const { tied, hfConfig } of [...models.slice(usual, usual + 1), ...others]) {
    test(`${family}, ${tied ? "tied" : "untied"}, over stages trains as on one rank`, async () => {
      const config = { ...hfConfig, ..."output_router_logits" in hfConfig ? BALANCED : {} };
      const [alone = assert.fail()] = await train({ config, ...ALONE });
      const all = await train({ config, axes: { pipeline: 2 }, stages: {} });
      assertAsAlone(all, alone, "2 stages");
      assert.equal(all[0]?.losses[0], alone.losses[0], "an evaluation has the bits of one rank");
      if (!tied) { for (const found of all) assert.deepEqual(bitsOf(found), bitsOf(alone)); }
      if (others.some((other) => other.tied === tied)) return;
      for (const mode of onlyInAll([place % 2 === 0 ? "fsdp" : "ddp"] as const)) {
        // The loss that balances routers is of a rank's own rows: beside ranks with as many rows each.
        const [sharded = assert.fail()] = await train({ config, axes: { shard: 2 }, stages: {} });
        const both = await train({ config, axes: { pipeline: 2, shard: 2 }, stages: {}, mode });
        assertAsAlone(both, sharded, `2 stages of 2 ranks, ${mode}`);
        if (!tied) { for (const found of both) assert.deepEqual(bitsOf(found), bitsOf(sharded)); }
      }
    });
  }
}

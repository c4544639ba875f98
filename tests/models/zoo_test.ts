/** Families of models under plans, on two ranks against DDP: see `scripts/zoo`. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { ZOO, zooModels } from "../../scripts/zoo/families.ts";
import { checkFamily } from "../../scripts/zoo/items.ts";
import { FAMILIES } from "../../src/models/registry.ts";
import { usualFirst } from "../support/share.ts";

const built = ZOO.filter((name) => {
  return FAMILIES.some(({ modelType }) =>
    zooModels(name).every(({ hfConfig }) => hfConfig["model_type"] === modelType)
  );
});

/** Families that have, between them: sinks, a mixture, latent rows and an indexer, a convolution. */
const OF_EACH_KIND = ["gpt_oss", "glm_moe_dsa", "lfm2"];

describe("the zoo", () => {
  it("has every family", () => assert.equal(built.length, FAMILIES.length));

  for (const family of usualFirst(built, (place) => OF_EACH_KIND.includes(built[place] ?? ""))) {
    it(`trains ${family} by plans as DDP does, and saves and loads it`, { timeout: 240_000 }, async () => {
      const items = await checkFamily(family, { cpuMath: "wasm", steps: 4 });
      assert.equal(items.length, 7);
      assert.deepEqual(items.filter(({ status }) => status !== "pass"), []);
    });
  }
});

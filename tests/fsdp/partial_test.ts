/** Resharding to fewer ranks after a forward. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import { casesOf } from "../../scripts/parity/traces.ts";
import { trainAlike } from "../support/parity.ts";
import { dryRun, fullyShard, scope } from "../../mod.ts";
import { initializeParameters, zeros } from "../../doors/nn.ts";
import { valuesOf, world } from "../support/world.ts";
import { Stack } from "./modules.ts";
import { keepParts, refusals } from "./partial_ranks.ts";
import { longTest, sharedTest as it } from "../support/share.ts";

const WIDTH = 64;

describe("reshardAfterForward: n", () => {
  it("gathers from all ranks in the forward and from n neighbours in the backward", async () => {
    const whole = 4 * 4 * Math.ceil((WIDTH * WIDTH + WIDTH) / 4 / 64) * 64;
    for (const { calls, keptBytes, left } of valuesOf(await world(4, keepParts, { data: 2 }))) {
      assert.deepEqual(calls, [
        ...["gather Stack world", "gather layers.0 world", "gather layers.1 world"],
        ...["all-gather layers.1 world by 2", "reduce-scatter layers.1 world"],
        ...["all-gather layers.0 world by 2", "reduce-scatter layers.0 world"],
        "reduce-scatter Stack world",
      ]);
      assert.equal(keptBytes, 2 * whole / 2, "each block keeps half of itself");
      assert.equal(left, 0);
    }
  });

  it("is false for 1, and true for all ranks", async () => {
    for (const [n, choice] of [[1, false], [4, true]] as const) {
      const [ofNumber, ofChoice] = [
        await world(4, keepParts, { data: n }),
        await world(4, keepParts, { data: choice }),
      ];
      assert.deepEqual(valuesOf(ofNumber), valuesOf(ofChoice));
    }
  });

  it("refuses what does not divide the ranks, by unit, with the remedy", async () => {
    for (const errors of valuesOf(await world(4, refusals))) {
      assert.equal(errors.length, 4);
      for (const error of errors) {
        assert.match(
          error,
          /ArgumentError: Cannot reshard '(Layer|Stack|layers\.0)' to (3|0|1\.5|8) ranks after its forward: give a number that divides the 4/,
        );
      }
    }
  });

  it("keeps what the dry run says, between one reshard and none", async () => {
    const gathered = async (reshardAfterForward: boolean | number): Promise<number> => {
      const run = await dryRun(({ device, mesh }) => {
        const model = new Stack(device, WIDTH, 8);
        for (const layer of model.layers) fullyShard(layer, { mesh, reshardAfterForward });
        fullyShard(model, { mesh });
        initializeParameters(model, 0);
        return () => {
          using _step = scope();
          model.zeroGrad();
          model.call(zeros(device, [1, WIDTH])).sum().backward();
        };
      }, { worldSize: 8 });
      return run.terms.gathered;
    };
    const unit = 4 * 8 * Math.ceil((WIDTH * WIDTH + WIDTH) / 8 / 64) * 64;
    const [freed, quarter, kept] = [await gathered(true), await gathered(4), await gathered(false)];
    assert.deepEqual([freed, kept], [2 * unit, 9 * unit]);
    assert.equal(quarter, 2 * unit + 7 * unit / 4, "the root, the last block, and a quarter of each other one");
  });

  longTest("gives the same bits as keeping all", { timeout: 60_000 }, async () => {
    const cases = casesOf(4, { tied: true, steps: 3 });
    const chosen = ["keep", "reshard to 2"].flatMap((word) => cases.filter(({ name }) => name.includes(word)));
    assert.equal(chosen.length, 2);
    await trainAlike(chosen);
  });
});

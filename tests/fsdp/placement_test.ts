/** Parameters that are cut along a dim, and those that are gathered in a form of their own. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import { longTest, sharedTest as it } from "../support/share.ts";
import { valuesOf, world } from "../support/world.ts";
import { extend, extendUnevenly, type PlacementCase, type PlacementReport, refuse, train } from "./placement_ranks.ts";

async function run(ranks: number, data: PlacementCase): Promise<readonly PlacementReport[]> {
  return valuesOf(await world(ranks, train, { data }));
}

function assertClose(actual: readonly number[], expected: readonly number[], bound: number): void {
  assert.equal(actual.length, expected.length);
  for (const [i, value] of expected.entries()) {
    assert.ok(Math.abs((actual[i] ?? NaN) - value) <= bound * (1 + Math.abs(value)), `${actual[i]} is not ${value}`);
  }
}

describe("shardPlacement", () => {
  for (
    const [ranks, data] of [[2, { up: 1 }], [3, { up: -1 }], [2, { up: 0, others: 0 }], [4, {
      up: 1,
      others: 0,
    }]] as const
  ) {
    it(`trains as the flat cut does on ${ranks} ranks, ${JSON.stringify(data)}`, async () => {
      const [flat, placed] = [await run(ranks, {}), await run(ranks, data)];
      for (const report of placed) {
        assert.deepEqual(report.losses, flat[0]?.losses, "sums take the ranks in the same order");
        assert.deepEqual(report.weights, flat[0]?.weights);
        assertClose(report.norms, flat[0]?.norms ?? [], 1e-6);
        assert.deepEqual(report.norms, placed[0]?.norms);
      }
    });
  }

  it("gives each rank its chunk of the dim, and the last ones less or nothing", async () => {
    const reports = await run(4, { up: 1, others: 0 });
    const boxesOf = (parameter: number): unknown[] => reports.map(({ boxes }) => boxes[parameter]);
    assert.deepEqual(boxesOf(0), [0, 3, 6, 9].map((begin) => [[0, begin, 5, 3]]), "columns of [5, 12]");
    assert.deepEqual(boxesOf(1), [[[0, 2]], [[2, 2]], [[4, 1]], []], "chunks of 5");
    assert.deepEqual(boxesOf(2), [[[0, 0, 1, 5]], [[1, 0, 1, 5]], [], []], "rows of [2, 5]");
    assert.deepEqual(reports[0]?.padding, [0, 3, 10]);
  });

  longTest("computes in bfloat16, and reshards to fewer ranks, as the flat cut does", async () => {
    for (const shared of [{ bfloat16: true }, { reshardAfterForward: 2 }, { reshardAfterForward: true }] as const) {
      const [flat, placed] = [await run(4, shared), await run(4, { ...shared, up: 1, others: 0 })];
      assert.deepEqual(placed[0]?.weights, flat[0]?.weights);
    }
  });

  it("refuses dims that there are not, and uneven ones behind the first, by FQN and before anything is sharded", async () => {
    for (const { errors, kinds } of valuesOf(await world(5, refuse))) {
      assert.deepEqual(kinds, ["plain", "plain", "plain"]);
      const [uneven, beyond, before, bias] = errors;
      assert.match(
        uneven ?? "",
        /ArgumentError: Cannot shard 'up\.weight' \[5, 12\] along dim 1 over 5 ranks: 12 is no multiple of 5; shard another/,
      );
      assert.match(beyond ?? "", /Cannot shard 'up\.weight' \[5, 12\] along dim 2: give a dim from -2 to 1, or none/);
      assert.match(before ?? "", /along dim -3: give a dim from -2 to 1/);
      assert.match(bias ?? "", /Cannot shard 'up\.bias' \[5\] along dim 1: give a dim from -1 to 0/);
    }
  });
});

describe("gatherExtension", () => {
  for (const [ranks, rows, replicas] of [[2, 6, 1], [3, 7, 1], [4, 2, 1], [4, 5, 2]] as const) {
    const mesh = `${replicas === 1 ? "" : `${replicas} x `}${ranks / replicas}`;
    it(`gathers ${rows} rows over ${mesh} ranks as bytes, near their masters, which an optimizer moves`, async () => {
      const chunk = 4 * Math.ceil(rows / (ranks / replicas));
      for (
        const { gathered, error, moved, numel } of valuesOf(await world(ranks, extend, { data: { rows, replicas } }))
      ) {
        const own = ["weight", "input"].every((word) => gathered.some((call) => call.includes(word)));
        assert.ok(own, gathered.join("\n"));
        const bytes = gathered.filter((call) => call.startsWith("all-gather")).map((call) =>
          Number(call.split(" ").at(-1))
        );
        assert.deepEqual(bytes, [chunk, 4, chunk, 4, chunk, 4], "by hand, for the forward, and for the backward");
        assert.ok(error <= 0.51, `${error} steps`);
        assert.ok(moved && numel <= chunk);
      }
    });
  }

  it("that gives ranks unequal sizes is found out on all ranks, with both", async () => {
    const ends = await world(2, extendUnevenly);
    const said = ends.map(({ value, error }) => value ?? error ?? "");
    assert.equal(said.length, 2);
    for (const text of said) {
      assert.match(text, /CollectiveError: .*\(weight\) input 0/s);
      assert.match(text, /8 bytes/);
      assert.match(text, /7 bytes/);
    }
  });
});

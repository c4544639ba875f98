/** State dicts as objects: sharded, whole on rank 0 or everywhere, and back. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import { valuesOf, world } from "../support/world.ts";
import { type Cut, get, keep, move, partly, type Plain, refuse, type Way, WIDTH } from "./state_dict_ranks.ts";
import { sharedTest as it } from "../support/share.ts";

const NUMEL = 3 * (WIDTH * WIDTH + WIDTH);

function valuesIn(state: Plain): number {
  return Object.values(state).reduce((sum, { values }) => sum + values.length, 0);
}

describe("getModelStateDict()", () => {
  for (
    const [cut, size] of [["units", 1], ["units", 2], ["units", 3], ["units", 5], ["replicas", 2], [
      "replicas of shards",
      4,
    ]] as const
  ) {
    it(`gives each rank its own, rank 0 all, or every rank all: ${cut} on ${size}`, async () => {
      const ranks = valuesOf(await world(size, get, { data: cut }));
      for (const [rank, { expected, sharded, onRank0, everywhere, calls, mostBytes, bytesLeft }] of ranks.entries()) {
        assert.deepEqual(everywhere, expected, "every rank has what a model in no parallelism holds");
        assert.deepEqual(onRank0, rank === 0 ? expected : {});
        assert.deepEqual(Object.keys(sharded), Object.keys(expected));
        for (const [name, { shape, boxes, values }] of Object.entries(sharded)) {
          let next = 0;
          for (const { offsets, sizes } of boxes) {
            const [rows, columns] = shape.length === 2 ? [sizes[0] ?? 0, sizes[1] ?? 0] : [1, sizes[0] ?? 0];
            for (let i = 0; i < rows * columns; i++) {
              const [row, column] = [Math.floor(i / columns), i % columns];
              const at = shape.length === 2
                ? ((offsets[0] ?? 0) + row) * (shape[1] ?? 0) + (offsets[1] ?? 0) + column
                : (offsets[0] ?? 0) + column;
              assert.equal(values[next++], expected[name]?.values[at], `${name} at ${at}`);
            }
          }
          assert.equal(values.length, next);
        }
        assert.deepEqual(calls[0], [], "a sharded state dict takes no communication");
        assert.ok(mostBytes <= 100, `${mostBytes} bytes were sent at once`);
        assert.equal(mostBytes > 0, size > 1);
        assert.equal(bytesLeft, 0);
      }
      const copies = cut === "replicas" ? size : cut === "replicas of shards" ? 2 : 1;
      assert.equal(ranks.reduce((sum, { sharded }) => sum + valuesIn(sharded), 0), copies * NUMEL);
      for (const { calls } of ranks.slice(1)) {
        assert.ok(!calls[1]?.includes("broadcast"), "messages go to rank 0 alone");
      }
    });
  }

  it("is the model's memory: kept over steps it shows what they made, and a copy does not", async () => {
    for (const { before, cached, fresh, snapshot, optimizer, stale } of valuesOf(await world(2, keep))) {
      assert.deepEqual(cached, fresh);
      assert.notDeepEqual(cached, before);
      assert.deepEqual(snapshot, before);
      assert.notDeepEqual(optimizer.cached, optimizer.before);
      assert.match(stale[0] ?? "", /^ArgumentError: What was 'layers\.0\.linear\.weight' lies elsewhere since/);
      assert.match(stale[1] ?? "", /^UseAfterDisposeError: /);
    }
  });
});

describe("setModelStateDict() and setOptimizerStateDict()", () => {
  const cases: readonly (readonly [Cut, Cut, Way, number])[] = [
    ["units", "units", "sharded", 3],
    ["units", "root", "full", 2],
    ["units", "root", "from rank 0", 3],
    ["root", "replicas", "from rank 0", 2],
    ["replicas", "units", "full", 2],
    ["replicas of shards", "units", "from rank 0", 4],
    ["units", "replicas of shards", "full", 4],
    ["units", "units", "from rank 0", 1],
  ];
  for (const [from, to, way, size] of cases) {
    it(`take a trained model's state from ${from} to ${to}, ${way}, on ${size}`, async () => {
      for (
        const { from: first, to: second, steps, reports } of valuesOf(
          await world(size, move, { data: [from, to, way] }),
        )
      ) {
        assert.equal(valuesIn(first), 3 * NUMEL, "the parameters and two states of each");
        assert.deepEqual(second, first);
        assert.deepEqual(steps, Array.from({ length: 6 }, () => [3, 3]));
        const none = { missing: [], unexpected: [] };
        assert.deepEqual(reports, [none, { ...none, changes: [] }]);
      }
    });
  }

  it("refuse on every rank what one refuses, with all that does not fit, before anything is written", async () => {
    const [first, second] = valuesOf(await world(2, refuse));
    assert.ok(first !== undefined && second !== undefined);
    for (const said of [first, second]) {
      assert.equal(said["changed"], "");
      assert.match(
        said["alone"] ?? "",
        /^ArgumentError: Cannot set 'layers\.0\.linear\.weight' alone as it is sharded/,
      );
      assert.match(said["wholeAlone"] ?? "", /^ArgumentError: Cannot make '.*' whole: this rank holds \d+ of its 169 /);
      assert.match(said["shardedBroadcast"] ?? "", /^ArgumentError: broadcastFromRank0 needs fullStateDict: true/);
      assert.match(said["broadcastAlone"] ?? "", /^ArgumentError: broadcastFromRank0 needs the group/);
      assert.match(said["names"] ?? "", /^CheckpointError: .*do not fit the model, 3 problems:/);
      for (
        const line of [
          /missing: 'head\.bias' \[13\]/,
          /unexpected: 'tail'/,
          /shape: 'head\.weight' expected \[13, 13\], got \[3\]/,
        ]
      ) {
        assert.match(said["names"] ?? "", line);
      }
      assert.match(
        said["otherCut"] ?? "",
        /^CheckpointError: .*tensor '.*': Expected \d+ elements that this rank holds, got/,
      );
      assert.match(
        said["short"] ?? "",
        /^CheckpointError: .*tensor 'head\.bias': Expected the 13 elements of its boxes, got 1/,
      );
      assert.match(said["noValues"] ?? "", /^ArgumentError: 'head\.bias' is missing and has no values to keep/);
      assert.match(said["smallBuffer"] ?? "", /^ArgumentError: bufferBytes must hold an element of 4 bytes, got 3/);
      assert.match(said["optimizer"] ?? "", /^CheckpointError: .*do not fit the optimizer, 12 problems/);
      assert.match(said["otherModel"] ?? "", /^ArgumentError: Cannot name the states of .* another model/);
    }
    assert.match(
      first["onOneRank"] ?? "",
      /^CollectiveError: .*rank 1 failed: CheckpointError: .*missing: 'head\.bias'/s,
    );
    assert.match(second["onOneRank"] ?? "", /^CheckpointError: .*missing: 'head\.bias'/s);
    assert.match(first["onRank0"] ?? "", /^CheckpointError: .*missing: 'head\.bias'/s);
    assert.match(second["onRank0"] ?? "", /^CollectiveError: .*rank 0 failed: CheckpointError/);
  });

  it("load a part by choice, and report the rest", async () => {
    for (const { trained, model, optimizer, steps, before, source, after } of valuesOf(await world(2, partly))) {
      assert.deepEqual(trained, ["layers.0.linear.bias", "layers.1.linear.bias", "head.weight", "head.bias"]);
      assert.deepEqual(model, { missing: ["head.weight"], unexpected: ["tail"] });
      assert.deepEqual(after["head.weight"], before["head.weight"]);
      assert.deepEqual(after["head.bias"], source["head.bias"]);
      assert.deepEqual(optimizer.missing, ["head.bias.exp_avg", "head.bias.exp_avg_sq"]);
      assert.ok(optimizer.unexpected.includes("layers.0.linear.weight.exp_avg"), "of parameters that are frozen here");
      assert.match(optimizer.changes.join(), /learningRate was 7, is 0\.1/);
      assert.deepEqual([steps["head.bias"], steps["head.weight"]], [0, 1]);
    }
  });
});

/** Parallelisms that would train different models on different ranks are refused by name. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { valuesOf, world } from "../support/world.ts";
import { leaveOut, mix, shardAxis } from "./mixed_ranks.ts";

test("fullyShard() and replicate() refuse the bare group of an axis of a larger mesh, and do not recommend one", async () => {
  for (const [size, shape] of [[2, { replicate: 2, shard: 1 }], [4, { replicate: 2, shard: 2 }]] as const) {
    for (const errors of valuesOf(await world(size, shardAxis, { data: shape }))) {
      assert.equal(errors.length, 2);
      for (const error of errors) {
        assert.match(
          error,
          /^UnsupportedError: .* over the group of axis 'shard' of a mesh of replicate × shard: .* train different/,
        );
        assert.doesNotMatch(error, /mesh\.axis/);
      }
    }
  }
});

test("an axis over all ranks is their group", async () => {
  assert.deepEqual(valuesOf(await world(2, shardAxis, { data: { replicate: 1, shard: 2 } })), [[], []]);
});

test("parameters that require a gradient and that nobody reduces are refused beside sharded ones, by FQN", async () => {
  for (const { errors } of valuesOf(await world(2, mix, { data: "plain" }))) {
    assert.equal(errors.length, 3);
    for (const error of errors) {
      assert.match(error, /^ArgumentError: .*'head\.weight' over ranks, while 'body\.weight' is/);
    }
  }
});

test("frozen parameters beside sharded ones are fine", async () => {
  const [first, second] = valuesOf(await world(2, mix, { data: "frozen" }));
  assert.ok(first !== undefined && first.norm > 0);
  assert.equal(first.norm, second?.norm);
});

test("replicated parameters beside sharded ones count once in the norm, alike on all ranks", async () => {
  const [first, second] = valuesOf(await world(2, mix, { data: "replicated" }));
  const [alone] = valuesOf(await world(1, mix, { data: "replicated" }));
  assert.ok(first !== undefined && alone !== undefined && first.clipped.length === 16);
  assert.deepEqual(first, second);
  assert.deepEqual(first, alone); // the mean of two equal gradients is either of them
});

for (const mode of ["fsdp", "ddp"] as const) {
  test(`parameters that no rank used have no gradient in ${mode}, told once by FQN on one rank`, async () => {
    const ends = await world(2, leaveOut, { data: mode });
    assert.deepEqual(valuesOf(ends), [true, true]);
    assert.deepEqual(ends.map(({ said }) => said.filter((line) => line.includes("No rank has used")).length), [1, 0]);
    assert.match(ends[0]?.said.join() ?? "", /No rank has used 'head\.weight' in this backward/);
  });
}

/** Pipeline parallelism against one rank: values, losses, norms, gradients, evaluations, checkpoints; and what is refused by name. @module */
import assert from "node:assert/strict";
import { test as always } from "node:test";
import type { FamilyReport } from "../../scripts/axes/training.ts";
import type { MeshOrders, MeshReport } from "../../scripts/mesh/training.ts";
import { zooModels } from "../../scripts/zoo/families.ts";
import { onlyInAll, sharedTest as test, usualFirst } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { valuesOf, world } from "../support/world.ts";
import { mistakes, trainOnMesh, trainParts } from "./pipeline_ranks.ts";
import { ALONE, assertAsAlone, bitsOf, type Laid, sizeOf, train } from "./staged.ts";

const MESHES: readonly Laid[] = [
  { axes: { pipeline: 4 }, stages: {} },
  { axes: { pipeline: 2 }, stages: { schedule: "interleaved" } },
  ...onlyInAll<Laid>([
    { axes: { pipeline: 2 }, stages: { split: [1, 3] } },
    { axes: { pipeline: 2, shard: 2 }, stages: { schedule: "interleaved" } },
  ]),
];

for (const [i, { tied, hfConfig }] of zooModels("llama").entries()) {
  test(`llama over stages, ${tied ? "tied" : "untied"}, trains as on one rank, and alike by all schedules`, async () => {
    const config = { ...hfConfig, num_hidden_layers: 4 };
    const [alone = assert.fail()] = await train({ config, ...ALONE });
    assert.ok(alone.norms.some((norm) => norm > 0.1), "clipping is active");
    const reports: FamilyReport[] = [];
    for (const laid of MESHES) {
      const all = await train({ config, ...laid, checkpointing: i === 0 });
      assertAsAlone(all, alone, JSON.stringify(laid));
      assert.equal(all[0]?.losses[0], alone.losses[0], "an evaluation has the bits of one rank");
      if (laid.axes["shard"] === undefined) reports.push(...all);
    }
    // Gradients of a tied weight are added in another order than on one rank, and in the same by all divisions.
    const expected = tied ? reports[0] ?? assert.fail() : alone;
    for (const found of reports) assert.deepEqual(bitsOf(found), bitsOf(expected));
  });
}

test("FSDP inside of stages has the bits of FSDP alone, and a tied weight the same on both of its stages", async () => {
  for (const { tied, hfConfig: config } of usualFirst(zooModels("gpt2"), (place) => place === 0)) {
    const both: Laid = { axes: { pipeline: 2, shard: 2 }, stages: {} };
    const all = await train({ config, ...both });
    if (tied) {
      const [alone = assert.fail()] = await train({ config, ...ALONE });
      assertAsAlone(all, alone, "tied");
      continue;
    }
    const [sharded = assert.fail()] = await train({ config, axes: { shard: 2 }, stages: {} });
    for (const found of all) assert.deepEqual(bitsOf(found), bitsOf(sharded));
  }
});

test("frozen stages send no gradients, and the others train as on one rank", async () => {
  const config = zooModels("llama")[0]?.hfConfig ?? assert.fail();
  const [alone = assert.fail()] = valuesOf(await world(1, trainParts, { data: { config, ...ALONE } }));
  const all = valuesOf(await world(2, trainParts, { data: { config, axes: { pipeline: 2 }, stages: {} } }));
  for (const found of all) {
    assert.deepEqual(found.map(({ figures }) => figures), alone.map(({ figures }) => figures));
    // 4 rows in 3 steps: forwards, and backwards where a stage before trains something; those that pass side by side are one call.
    const [first = NaN, second = NaN, third = NaN] = found.map(({ messages }) => messages);
    assert.equal(first, 12);
    assert.ok(second > 12);
    assert.equal(third, 12);
    assert.deepEqual(found.map(({ left }) => left), [0, 0, 0]);
  }
});

test("checkpoints know no stages: weights and optimizer states go from any number to any other, to the bit", async () => {
  using folder = temporaryDirectory();
  const config = zooModels("llama")[1]?.hfConfig ?? assert.fail();
  const on = async (orders: Omit<MeshOrders, "config">): Promise<MeshReport> => {
    const reports = valuesOf<MeshReport>(await world(sizeOf(orders), trainOnMesh, { data: { config, ...orders } }));
    const [first = assert.fail()] = reports;
    for (const one of reports) assert.deepEqual(one, first);
    return first;
  };
  const staged: Laid = { axes: { pipeline: 2, shard: 2 }, stages: {} };
  const saved = await on({ ...staged, to: folder.file("staged") });
  const alone = await on({ ...ALONE, from: folder.file("staged"), to: folder.file("alone") });
  const back = await on({ ...staged, from: folder.file("alone") });
  for (const { weights, states, losses } of [alone, back]) {
    assert.deepEqual({ weights, states }, { weights: saved.weights, states: saved.states });
    for (const [i, loss] of losses.entries()) assert.ok(Math.abs(loss / (saved.losses[i] ?? NaN) - 1) < 1e-6);
  }
  assert.deepEqual(back, saved);
});

always("what stages cannot be is refused by every rank in the same words, before any memory is taken", async () => {
  const config = zooModels("llama")[0]?.hfConfig ?? assert.fail();
  const all = valuesOf(await world(2, mistakes, { data: config }));
  for (
    const [few, one, two, adapted, twice, other, cut, bytes, rows, full, differing, whole, valued, hooked, peak] of all
  ) {
    assert.match(
      few ?? "",
      /^ArgumentError: Cannot divide 2 blocks into 4 stages: each stage needs a block; give fewer/,
    );
    assert.match(one ?? "", /^ArgumentError: Cannot give 2 ranks 2 stages each: it must be 1 by the schedule 1f1b/);
    assert.match(
      two ?? "",
      /^ArgumentError: Cannot give 2 ranks 1 stages each: it must be at least 2 by .* interleaved/,
    );
    assert.match(
      adapted ?? "",
      /^UnsupportedError: Cannot divide \S+ into stages over 2 ranks: '\S+' has an adapter, and/,
    );
    assert.match(
      twice ?? "",
      /^ArgumentError: Cannot divide the model into stages: its ranks have stages of it already/,
    );
    assert.match(
      other ?? "",
      /^ArgumentError: Cannot shard \S+: other stages of the pipeline keep all of its parameters/,
    );
    assert.match(cut ?? "", /^$/); // an axis of one rank cuts nothing
    assert.equal(bytes, "0");
    assert.match(
      rows ?? "",
      /^ArgumentError: Cannot run 1 micro-batch .* on 2 ranks by '1f1b': give each rank at least 2/,
    );
    assert.match(full ?? "", /^ArgumentError: Cannot run a forward of the full model: this rank has some stages of it/);
    assert.match(
      differing ?? "",
      /^ArgumentError: Cannot run stages: ranks 0 and 1 of one pipeline axis read other rows/,
    );
    assert.match(
      whole ?? "",
      /^ArgumentError: Cannot run a backward: ranks 0, 1 of the run are to have stages .* no ranks have/,
    );
    assert.match(
      valued ?? "",
      /^ArgumentError: Cannot divide '\S+' among stages: it has values; divide the model before/,
    );
    assert.match(
      hooked ?? "",
      /^ArgumentError: Cannot run a backward in stages: a hook on the gradient of '\S+' would see one/,
    );
    assert.match(peak ?? "", /^ArgumentError: Cannot predict the peak of .*: other axes .* among stages; use dryRun/);
  }
});

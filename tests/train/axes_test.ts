/** The axes of a run: the rows of each rank, the ranks over which losses and gradients are added, and what is refused. @module */
import assert from "node:assert/strict";
import { createLoopbackWorld, openLoopback } from "../../src/comm/data/loopback.ts";
import { Run } from "../../src/train/run.ts";
import { openCommDevice } from "../support/comm_device.ts";
import { longTest, sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { valuesOf, world } from "../support/world.ts";
import { type AxesOrders, type AxesReport, computeAll, shardOver, trainOnText } from "./axes_ranks.ts";

const TEXT = Array.from({ length: 40 }, (_, i) => `line ${i * i} of some text`).join("\n");

async function trained(size: number, orders: Omit<AxesOrders, "text">): Promise<readonly AxesReport[]> {
  using folder = temporaryDirectory();
  const data = { ...orders, text: folder.write("text.txt", TEXT) };
  return valuesOf<AxesReport>(await world(size, trainOnText, { data }));
}

longTest(
  "Run.data leaves out tensor axes: their ranks read the same rows, and training has the bits of a run without",
  async () => {
    const alone = await trained(2, { axes: { shard: 2 }, shard: "shard" });
    assert.notDeepEqual(alone[0]?.tokens, alone[1]?.tokens);
    for (const axes of [{ shard: 2, tensor: 2 }, { tp: 2, dp_shard: 2 }]) {
      const isOuter = Object.keys(axes)[0] === "tp";
      const all = await trained(4, { axes, shard: isOuter ? "dp_shard" : "shard" });
      for (const [rank, { data, ...found }] of all.entries()) {
        const place = isOuter ? rank % 2 : Math.floor(rank / 2);
        assert.deepEqual(data, isOuter ? [rank - rank % 2, rank - rank % 2 + 1] : [rank % 2, rank % 2 + 2]);
        assert.deepEqual(found.samples, { rank: place, size: 2 });
        const { data: _, ...expected } = alone[place] ?? assert.fail();
        assert.deepEqual(found, expected, `rank ${rank}`);
      }
    }
  },
);

test("Run.data of tensor axes alone is this rank, beside an axis of one rank to shard over", async () => {
  const [alone] = await trained(1, { axes: { shard: 1 }, shard: "shard" });
  const all = await trained(2, { axes: { tensor: 2 }, shard: "shard" });
  for (const [rank, found] of all.entries()) assert.deepEqual(found, { ...alone, data: [rank] });
});

test("Run.data is all ranks over axes that carry data, which may be sharded over as one", async () => {
  const [flat] = await trained(4, { axes: { shard: 4 }, shard: "shard" });
  const [both] = await trained(4, { axes: { replicate: 2, shard: 2 }, shard: ["replicate", "shard"] });
  assert.deepEqual(both, flat);
});

test("Run.backward() refuses gradients that are added over other ranks than the loss", async () => {
  for (const [over, ranks] of [["shard", "0"], ["all", "0, 1, 2, 3"]] as const) {
    const [[error = ""] = []] = valuesOf(await world(4, shardOver, { data: over }));
    assert.match(error, /^ArgumentError: Cannot run a backward: the gradient of 'model.embed_tokens.weight' is added/);
    assert.ok(error.includes(`over ranks ${ranks}, and the loss over ranks 0, 2; give`), error);
  }
  for (const over of ["both", "flat"]) {
    for (const errors of valuesOf(await world(4, shardOver, { data: over }))) assert.deepEqual(errors, [""]);
  }
});

test("Run.backward() refuses a context axis whose ranks compute all positions", async () => {
  for (const error of valuesOf(await world(2, computeAll))) {
    assert.match(
      error,
      /^ArgumentError: Cannot run a backward: ranks 0, 1 of the run are to share .* shared by no ranks; call parallelizeContext/,
    );
  }
});

test("a run refuses axes that it does not know, with the nearest name", async () => {
  const device = await openCommDevice(2 ** 24);
  using group = openLoopback(createLoopbackWorld(1), 0, device);
  assert.throws(() => new Run({ device, group, axes: { tensr: 1 }, print: () => undefined }), {
    name: "ArgumentError",
    message: /A run has no axis 'tensr': there are replicate, shard, .*Did you mean 'tensor'\?; for other names/,
  });
  assert.throws(() => new Run({ device, group, axes: { shard: -1, tensor: 2 }, print: () => undefined }), {
    name: "ArgumentError",
    message:
      /Axes { shard: -1, tensor: 2 } leave no whole number of 1 ranks to one axis of -1: give lengths whose product/,
  });
  assert.deepEqual(new Run({ device, group, axes: { shard: -1, tensor: 1 }, print: () => undefined }).mesh.shape, [
    1,
    1,
  ]);
});

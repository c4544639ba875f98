/** Expert parallelism against one rank: losses, norms, gradients; what each rank keeps; and what is refused by name. @module */
import assert from "node:assert/strict";
import type { MeshShape } from "../../doors/comm.ts";
import { bitFaults, distanceOf } from "../../scripts/axes/distance.ts";
import { DIVISIBLE, MIXTURES } from "../../scripts/axes/parity.ts";
import type { FamilyOrders, FamilyReport } from "../../scripts/axes/training.ts";
import type { MeshOrders, MeshReport } from "../../scripts/mesh/training.ts";
import { zooModels } from "../../scripts/zoo/families.ts";
import { onlyInAll, sharedTest as test, usualFirst } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { valuesOf, world } from "../support/world.ts";
import { crowd, evaluateRows, mistakes, trainOnMesh, trainParts } from "./experts_ranks.ts";
import { trainFamily } from "./families_ranks.ts";

const sizeOf = (axes: MeshShape): number => Object.values(axes).reduce((all, length) => all * length, 1);

async function train(orders: FamilyOrders): Promise<readonly FamilyReport[]> {
  return valuesOf<FamilyReport>(await world(sizeOf(orders.axes), trainFamily, { data: orders }));
}

const MESHES: readonly MeshShape[] = [
  { shard: 1, expert: 2 },
  { shard: 2, expert: 2 },
  { shard: 1, expert: 4 },
  { replicate: 2, shard: 1, expert: 2 },
];

/** Meshes on which further axes divide the experts' widths, or the positions of their rows. */
const BESIDE: readonly MeshShape[] = [
  { shard: 1, expert: 2, tensor: 2 },
  { shard: 1, expert: 2, context: 2 },
];

/** Meshes whose tensor axis divides the experts by their number. */
const OVER_TENSOR: readonly MeshShape[] = [{ shard: 2, tensor: 2 }, { shard: 1, expert: 2, tensor: 2 }];

function assertAsAlone(all: readonly FamilyReport[], alone: FamilyReport, tensor: number): void {
  assert.deepEqual(bitFaults(all, alone, tensor), []);
  const { loss, norm, gradient, worst } = distanceOf(all, alone);
  assert.ok(loss <= 1 && norm <= 1 && gradient <= 1, JSON.stringify({ loss, norm, gradient, worst }));
}

for (const [place, family] of MIXTURES.entries()) {
  const [usual = assert.fail()] = [MESHES[place % MESHES.length]];
  for (const axes of [...usualFirst([usual], () => place < 3), ...onlyInAll(MESHES.filter((mesh) => mesh !== usual))]) {
    test(`${family} over ${JSON.stringify(axes)} trains as on one rank, with clipping`, async () => {
      const config = zooModels(family)[0]?.hfConfig ?? assert.fail();
      const [alone = assert.fail()] = await train({ config, axes: { shard: 1 } });
      const all = await train({ config, axes, checkpointing: place % 2 === 0 });
      assertAsAlone(all, alone, 1);
      assert.ok(
        all.every(({ cut }) => cut.length > 0 && cut.every((name) => name.includes("experts"))),
        "experts alone are cut",
      );
    });
  }
  const isUsual = family === "qwen3_moe" || family === "gpt_oss";
  for (const [i, axes] of [...(isUsual ? BESIDE : onlyInAll(BESIDE))].entries()) {
    if (axes["context"] !== undefined && !DIVISIBLE.includes(family)) continue;
    test(`${family} over ${JSON.stringify(axes)} trains as on one rank, with clipping`, async () => {
      const { tensor = 1 } = axes;
      // Of models with gates and ups that come in turn, and in packs, each once over each mesh.
      const sequenceParallel = tensor > 1 && family !== "gpt_oss";
      const config = zooModels(family)[0]?.hfConfig ?? assert.fail();
      const [alone = assert.fail()] = await train({ config, axes: { shard: 1 } });
      assertAsAlone(await train({ config, axes, sequenceParallel, checkpointing: i % 2 === 0 }), alone, tensor);
    });
  }
}

for (const [place, family] of MIXTURES.entries()) {
  const isUsual = family === "deepseek_v2" || family === "gpt_oss";
  for (const [i, axes] of [...(isUsual ? OVER_TENSOR : onlyInAll(OVER_TENSOR))].entries()) {
    test(`${family} whose experts a tensor axis of ${JSON.stringify(axes)} divides trains as on one rank`, async () => {
      const config = zooModels(family)[0]?.hfConfig ?? assert.fail();
      const [alone = assert.fail()] = await train({ config, axes: { shard: 1 } });
      const laid = { axes, expertParallel: true, sequenceParallel: place % 2 === 1, checkpointing: i % 2 === 0 };
      const all = await train({ config, ...laid });
      assertAsAlone(all, alone, 2);
      const experts = all[0]?.cut.filter((name) => name.includes("experts.")) ?? [];
      assert.deepEqual(experts, Object.keys(alone.gradients).filter((name) => name.includes("experts.")));
    });
  }
}

test("an evaluation whose last rows not all ranks have gives one rank's loss", async () => {
  const config = zooModels("qwen3_moe")[0]?.hfConfig ?? assert.fail();
  const [[expected, count] = assert.fail()] = valuesOf(
    await world(1, evaluateRows, { data: { config, axes: { shard: 1 } } }),
  );
  for (
    const [loss, tokens] of valuesOf(await world(2, evaluateRows, { data: { config, axes: { shard: 1, expert: 2 } } }))
  ) {
    assert.ok(Math.abs(loss - expected) <= 2e-6 * expected, `${loss}, ${expected}`);
    assert.equal(tokens, count);
  }
});

test("routers that choose one rank's experts for all tokens train, in the memory that a dry run states", async () => {
  // One expert for each token: so one rank gets all rows, on each mesh.
  const config = { ...zooModels("mixtral")[0]?.hfConfig ?? assert.fail(), num_experts_per_tok: 1 };
  const [{ loss: expected } = assert.fail()] = valuesOf(
    await world(1, crowd, { data: { config, axes: { shard: 1 } } }),
  );
  const laid: readonly Omit<FamilyOrders, "config">[] = [
    { axes: { shard: 1, expert: 2 } },
    ...usualFirst(BESIDE, (place) => place === 0).map((axes) => ({ axes })),
    { axes: { tensor: 2 }, expertParallel: true },
    { axes: { shard: 1, expert: 2, tensor: 2 }, expertParallel: true },
  ];
  for (const { axes, ...more } of laid) {
    const all = valuesOf(await world(sizeOf(axes), crowd, { data: { config, axes, ...more } }));
    const { stated = NaN } = all[0] ?? {};
    for (const found of all) {
      assert.ok(Math.abs(found.loss - expected) <= 2e-6 * expected, `${found.loss}, ${expected}`);
      assert.equal(found.stated, stated);
    }
    const peaks = all.map(({ peak }) => peak);
    assert.equal(Math.max(...peaks), stated, JSON.stringify(axes));
    assert.ok(Math.min(...peaks) < stated, "ranks with some experts have all rows");
  }
});

test("checkpoints of experts divided beside other axes are loaded bit for bit over others", async () => {
  using folder = temporaryDirectory();
  const config = zooModels("mixtral")[0]?.hfConfig ?? assert.fail();
  const on = async (orders: Omit<MeshOrders, "config">): Promise<MeshReport> => {
    const [first = assert.fail(), ...others] = valuesOf<MeshReport>(
      await world(sizeOf(orders.axes), trainOnMesh, { data: { config, ...orders } }),
    );
    for (const one of others) assert.deepEqual(one, first);
    return first;
  };
  const [beside = {}, other = {}] = BESIDE;
  const divided = { axes: beside, expertParallel: true };
  const saved = await on({ axes: beside, to: folder.file("tensor") });
  const moved = await on({ axes: other, from: folder.file("tensor"), to: folder.file("context") });
  const over = await on({ ...divided, from: folder.file("context"), to: folder.file("experts") });
  const back = await on({ axes: beside, from: folder.file("experts") });
  assert.deepEqual(back, saved, "the same bits go on as if never saved");
  for (const { weights, states, losses } of [moved, over]) {
    assert.deepEqual([weights, states], [saved.weights, saved.states]);
    for (const [i, loss] of losses.entries()) assert.ok(Math.abs(loss / (saved.losses[i] ?? NaN) - 1) < 1e-6);
  }
});

test("frozen experts and routers, and a rank without rows, train as on one rank", async () => {
  const config = zooModels("mixtral")[0]?.hfConfig ?? assert.fail();
  const [alone = assert.fail()] = valuesOf(await world(1, trainParts, { data: { config, axes: { shard: 1 } } }));
  for (const found of valuesOf(await world(2, trainParts, { data: { config, axes: { shard: 1, expert: 2 } } }))) {
    for (const [i, [loss = NaN, norm = NaN]] of found.entries()) {
      const [expected = NaN, of = NaN] = alone[i] ?? [];
      assert.ok(Math.abs(loss - expected) <= 2e-6 * expected, `loss ${i}: ${loss}, ${expected}`);
      assert.ok(Math.abs(norm - of) <= 2e-5 * of, `norm ${i}: ${norm}, ${of}`);
    }
  }
});

test("experts that the ranks do not divide, and gradients over too few ranks, are refused by name", async () => {
  const mixture = zooModels("mixtral")[0]?.hfConfig ?? assert.fail();
  const dense = zooModels("llama")[0]?.hfConfig ?? assert.fail();
  for (
    const said of valuesOf(
      await world(3, mistakes, {
        data: [dense, { ...mixture, num_local_experts: 4 }, { ...mixture, num_local_experts: 6 }],
      }),
    )
  ) {
    const [none = "", odd = "", fits = "", twice = "", over = "", copied = ""] = said;
    assert.match(none, /^ArgumentError: Cannot divide the experts of \S+: it has none/);
    assert.match(
      odd,
      /Cannot divide the 4 experts of 'model.layers.0.\S+' over 3 ranks: give an axis whose size divides them/,
    );
    assert.equal(fits, "");
    assert.match(twice, /Cannot divide the experts of 'model.layers.0.\S+': axis 'expert' divides them already/);
    assert.match(
      over,
      /Cannot shard '\S+experts\S+' over ranks 0, 1, 2: it is cut over axis 'expert' of ranks 0, 1, 2/,
    );
    assert.match(copied, /the gradient of '\S+experts\S+' is added over ranks \d, and the loss over ranks 0, 1, 2/);
  }
});

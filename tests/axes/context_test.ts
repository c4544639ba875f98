/** Context parallelism against one rank: losses, norms, gradients, evaluations to the bit; and the models that are refused by name. @module */
import assert from "node:assert/strict";
import type { MeshShape } from "../../doors/comm.ts";
import { bitFaults, distanceOf } from "../../scripts/axes/distance.ts";
import { DIVISIBLE, mostContext } from "../../scripts/axes/parity.ts";
import type { FamilyOrders, FamilyReport } from "../../scripts/axes/training.ts";
import { zooModels } from "../../scripts/zoo/families.ts";
import { takePositions } from "../../src/axes/positions.ts";
import { onlyInAll, sharedTest as test, usualFirst } from "../support/share.ts";
import { valuesOf, world } from "../support/world.ts";
import {
  activationBytes,
  callItself,
  drawInTraining,
  evaluateRows,
  mistakes,
  refuse,
  type RowOrders,
  scoreTexts,
} from "./context_ranks.ts";
import { trainFamily } from "./families_ranks.ts";

const sizeOf = (axes: MeshShape): number => Object.values(axes).reduce((all, length) => all * length, 1);

async function train(orders: FamilyOrders): Promise<readonly FamilyReport[]> {
  return valuesOf<FamilyReport>(await world(sizeOf(orders.axes), trainFamily, { data: orders }));
}

const MESHES: readonly MeshShape[] = [
  { shard: 2, context: 2 },
  { shard: 1, context: 4 },
  { replicate: 2, shard: 1, context: 2 },
  { shard: 1, context: 2, tensor: 2 },
];

for (const [place, family] of DIVISIBLE.entries()) {
  const [usual = assert.fail()] = [MESHES[place % MESHES.length]];
  for (const axes of [...usualFirst([usual], () => place < 4), ...onlyInAll(MESHES.filter((mesh) => mesh !== usual))]) {
    if ((axes["context"] ?? 1) > mostContext(family)) continue;
    test(`${family} over ${JSON.stringify(axes)} trains as on one rank, with clipping`, async () => {
      const config = zooModels(family)[0]?.hfConfig ?? assert.fail();
      const [alone = assert.fail()] = await train({ config, axes: { shard: 1 } });
      const all = await train({ config, axes, checkpointing: place % 2 === 0 });
      assert.deepEqual(bitFaults(all, alone, axes["tensor"] ?? 1), []);
      const { loss, norm, gradient, worst } = distanceOf(all, alone);
      assert.ok(loss <= 1 && norm <= 1 && gradient <= 1, JSON.stringify({ loss, norm, gradient, worst }));
    });
  }
}

test("copies of a model over shards and positions have the bits of shards", async () => {
  const config = zooModels("llama")[0]?.hfConfig ?? assert.fail();
  const axes = { shard: 2, context: 2 };
  const [sharded, copied] = [await train({ config, axes }), await train({ config, axes, mode: "ddp" })];
  const bitsOf = (all: readonly FamilyReport[]): unknown => all.map(({ losses, norms, last }) => [losses, norms, last]);
  assert.deepEqual(bitsOf(copied), bitsOf(sharded));
});

// The rows that an expert gets, and so the order in which it sums, depend on all tokens of a rank: models here have no experts.
for (
  const [family, more] of usualFirst(
    [
      ["mistral", {}],
      ["deepseek_v2", { first_k_dense_replace: 99 }],
      ["qwen3_5", {}],
      ["lfm2", {}],
      ["gpt2", {}],
    ] as const,
    (place) => place % 2 === 0 && place < 3,
  )
) {
  test(`an evaluation of ${family} has the bits of one rank, and documents hear nothing of each other`, async () => {
    const config = { ...zooModels(family)[0]?.hfConfig, ...more };
    const measure = async (axes: MeshShape, more: Omit<RowOrders, "config" | "axes">): Promise<unknown> => {
      const all = valuesOf(await world(sizeOf(axes), evaluateRows, { data: { config, axes, ...more } }));
      for (const found of all) assert.deepEqual(found, all[0]);
      return all[0];
    };
    for (const axes of MESHES.slice(0, 2).filter(({ context = 1 }) => context <= mostContext(family))) {
      for (const hasDocuments of [false, true]) {
        assert.deepEqual(await measure(axes, { hasDocuments }), await measure({ shard: 1 }, { hasDocuments }));
      }
      const second = { hasDocuments: true, countsSecond: true };
      assert.deepEqual(await measure(axes, { ...second, changedAt: 3 }), await measure(axes, second));
      const joined = { hasDocuments: false, countsSecond: true };
      assert.notDeepEqual(await measure(axes, { ...joined, changedAt: 3 }), await measure(axes, joined));
    }
  });
}

test("texts are as likely as on one rank, to the bit, where ranks share positions", async () => {
  const [llama = assert.fail()] = zooModels("llama");
  const [mixtral = assert.fail()] = zooModels("mixtral");
  const { hfConfig: config } = llama;
  const measure = async (orders: FamilyOrders): Promise<readonly (readonly number[])[]> =>
    valuesOf<readonly number[]>(await world(sizeOf(orders.axes), scoreTexts, { data: orders }));
  const [alone = assert.fail()] = await measure({ config, axes: { shard: 1 } });
  for (const commStrategy of ["allgather", "ulysses"] as const) {
    const all = await measure({ config, axes: { shard: 1, context: 2 }, commStrategy });
    assert.deepEqual(all, [alone, alone], commStrategy);
  }
  const [single = assert.fail()] = await measure({ config: mixtral.hfConfig, axes: { shard: 1 } });
  for (const found of await measure({ config: mixtral.hfConfig, axes: { shard: 2, context: 2 } })) {
    for (const [i, value] of found.entries()) assert.ok(Math.abs(value / (single[i] ?? NaN) - 1) < 1e-6, `text ${i}`);
  }
});

test("angles of longrope are those of the full row", async () => {
  const rope = { rope_type: "longrope", rope_theta: 10000, partial_rotary_factor: 1 };
  const factors = { short_factor: [1, 1.1, 1.2, 1.3], long_factor: [2, 3, 4, 5] };
  // Rows of 13 tokens are long, and a rank's 8 or 4 of them would not be.
  const sizes = { original_max_position_embeddings: 10, rope_parameters: { ...rope, ...factors } };
  const config = { ...zooModels("phi3")[0]?.hfConfig, ...sizes };
  const measure = async (axes: MeshShape): Promise<unknown> =>
    valuesOf(await world(sizeOf(axes), evaluateRows, { data: { config, axes, hasDocuments: false } }))[0];
  for (const axes of usualFirst(MESHES.slice(0, 2), (place) => place === 1)) {
    assert.deepEqual(await measure(axes), await measure({ shard: 1 }));
  }
});

test("models whose positions cannot be shared are refused by the module's name", async () => {
  for (
    const [family, more, message] of [
      [
        "qwen3_next",
        { linear_num_key_heads: 1 },
        /the 1 heads of keys of 'model\.layers\.0\.linear_attn' are no multiple of 2 ranks, which exchange them for positions/,
      ],
      ["glm_moe_dsa", {}, /\(Indexer\) chooses keys of all positions/],
      ["phi", { resid_pdrop: 0.1 }, /drops out by places in a row/],
      ["phi", { attention_dropout: 0.1 }, /'model\.layers\.0\.self_attn' drops out by places in a row/],
      ["mixtral", { output_router_logits: true, router_aux_loss_coef: 0.5 }, /set router_aux_loss_coef to 0/],
    ] as const
  ) {
    const config = { ...zooModels(family)[0]?.hfConfig, ...more };
    for (const found of valuesOf(await world(2, refuse, { data: config }))) {
      assert.match(found, /^(Unsupported|Argument)Error: Cannot share positions over a context axis: /);
      assert.match(found, message);
    }
  }
});

test("numbers that are drawn by the place in a row are refused in the forward, also by routers", async () => {
  const config = zooModels("phimoe")[0]?.hfConfig ?? assert.fail();
  for (const said of valuesOf(await world(2, drawInTraining, { data: { config, axes: { shard: 1, context: 2 } } }))) {
    assert.match(
      said,
      /^UnsupportedError: Cannot draw the .* of 'model\.layers\.0\..*': it is drawn by the place in a row/,
    );
  }
});

test("other rows on ranks of an axis, parts of rows, and positions of another axis are refused", async () => {
  const config = zooModels("llama")[0]?.hfConfig ?? assert.fail();
  for (const [other, parts, short, axis] of valuesOf(await world(2, mistakes, { data: config }))) {
    assert.match(
      other ?? "",
      /^ArgumentError: Cannot share positions: ranks 0 and 1 of one context axis read other rows/,
    );
    assert.match(parts ?? "", /^ArgumentError: Cannot divide the positions .* a part of its rows already/);
    assert.match(
      short ?? "",
      /^ArgumentError: Cannot run a micro-batch with such labels: expected 1 × 4 numbers, got 3/,
    );
    assert.match(
      axis ?? "",
      /^ArgumentError: Cannot run a backward: no ranks .*, and the model's are shared by ranks 0, 1/,
    );
  }
});

test("full rows in a forward of one's own are refused, and generation takes full texts", async () => {
  const config = zooModels("llama")[0]?.hfConfig ?? assert.fail();
  for (
    const [said, ids] of valuesOf(await world(2, callItself, { data: { config, axes: { context: 2 } } }))
  ) {
    assert.match(
      said,
      /^ArgumentError: Cannot run a forward without 'positionIds' and 'rowLength': .* run\.backward or evaluate/,
    );
    assert.equal(ids.length, 3);
  }
});

test("activations fall with the ranks of a context axis", async () => {
  const sizes = { hidden_size: 64, intermediate_size: 256, num_hidden_layers: 2, max_position_embeddings: 512 };
  const config = { ...zooModels("llama")[0]?.hfConfig, ...sizes, vocab_size: 512 };
  const bytesOver = async (context: number): Promise<number> => {
    const axes = { shard: 1, context };
    const all = valuesOf(await world(context, activationBytes, { data: { config, axes, mode: "ddp" } }));
    return Math.max(...all);
  };
  const [one, two, four] = [await bytesOver(1), await bytesOver(2), await bytesOver(4)];
  assert.ok(two <= 0.6 * one && four <= 0.36 * one, `${one}, ${two}, ${four} bytes`);
});

test("takePositions() gives each rank two parts of a row, with places and padding", () => {
  const row = {
    inputIds: Int32Array.of(10, 11, 12, 13, 14, 15, 16),
    labels: Int32Array.of(11, 12, 13, 14, 15, 16, -100),
    documentStarts: Int32Array.of(0, 0, 0, 3, 3, 3, 3),
    ...{ batch: 1, seq: 7 },
  };
  assert.deepEqual(takePositions(row, { rank: 0, size: 2 }), {
    inputIds: Int32Array.of(10, 11, 16, 0),
    labels: Int32Array.of(11, 12, -100, -100),
    documentStarts: Int32Array.of(0, 0, 3, 3),
    part: { positionIds: Int32Array.of(0, 1, 3, 0), rowLength: 7 },
    ...{ batch: 1, seq: 4, random: undefined },
  });
  assert.deepEqual(takePositions(row, { rank: 1, size: 2 }).inputIds, Int32Array.of(12, 13, 14, 15));
});

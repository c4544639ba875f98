/** Tensor parallelism of every family, by its plan, against one rank: values, losses, norms, gradients, generated ids. @module */
import assert from "node:assert/strict";
import type { MeshShape } from "../../doors/comm.ts";
import { bitFaults, distanceOf } from "../../scripts/axes/distance.ts";
import type { FamilyOrders, FamilyReport } from "../../scripts/axes/training.ts";
import { ZOO, zooModels } from "../../scripts/zoo/families.ts";
import { onlyInAll, sharedTest as test, usualFirst } from "../support/share.ts";
import { valuesOf, world } from "../support/world.ts";
import { outOfVocabulary, trainFamily } from "./families_ranks.ts";

async function train(orders: FamilyOrders): Promise<readonly FamilyReport[]> {
  const size = Object.values(orders.axes).reduce((all, length) => all * length, 1);
  return valuesOf<FamilyReport>(await world(size, trainFamily, { data: orders }));
}

/** Fails unless ranks have what one rank has, within rounding, and each other's bits. */
function assertAsAlone(all: readonly FamilyReport[], alone: FamilyReport, tensor: number, where: string): void {
  assert.deepEqual(bitFaults(all, alone, tensor), [], where);
  const { loss, norm, gradient, worst } = distanceOf(all, alone);
  assert.ok(loss <= 1 && norm <= 1 && gradient <= 1, `${where}: ${JSON.stringify({ loss, norm, gradient, worst })}`);
}

const MESHES: readonly (MeshShape & { readonly tensor: number })[] = [{ shard: 2, tensor: 2 }, { tensor: 4 }];

/** Families whose plans have a style that no other has, or that compute something alike on all ranks. */
const MOST_CUT = ["deepseek_v2", "gpt2", "gpt_oss", "llama", "mixtral", "modernbert-decoder", "phi3", "qwen3_next"];

for (const [place, family] of ZOO.entries()) {
  // Tied and untied weights by turns.
  const models = zooModels(family);
  const usual = place % models.length;
  const isUsual = MOST_CUT.includes(family);
  const first = [models[usual] ?? assert.fail()];
  for (
    const { tied, hfConfig: config } of [
      ...isUsual ? first : onlyInAll(first),
      ...onlyInAll(models.toSpliced(usual, 1)),
    ]
  ) {
    const [mesh = assert.fail()] = tied ? MESHES.slice(1) : MESHES;
    test(`${family}, ${tied ? "tied" : "untied"}, over axes trains as on one rank, with clipping`, async () => {
      const [alone = assert.fail()] = await train({ config, axes: { shard: 1 } });
      assert.ok(alone.norms.some((norm) => norm > 0.1), "clipping is active");
      const checkpointing = !tied;
      assertAsAlone(await train({ config, axes: mesh, checkpointing }), alone, mesh.tensor, JSON.stringify(mesh));
      for (const axes of onlyInAll([...MESHES, { tensor: 2 }, { replicate: 2, shard: 1, tensor: 2 }])) {
        assertAsAlone(await train({ config, axes }), alone, axes.tensor, JSON.stringify(axes));
      }
      for (const axes of onlyInAll([{ shard: 2, tensor: 2 }])) {
        assertAsAlone(await train({ config, axes, mode: "ddp" }), alone, axes.tensor, "copies");
      }
    });
  }
}

test("dropout has the masks of one rank where a plan gathers", async () => {
  const config = { ...zooModels("gpt2")[0]?.hfConfig, attn_pdrop: 0.2, resid_pdrop: 0.1, embd_pdrop: 0.1 };
  const [alone = assert.fail()] = await train({ config, axes: { shard: 1 } });
  for (const axes of usualFirst(MESHES, (place) => place === 0)) {
    assertAsAlone(await train({ config, axes }), alone, axes.tensor, JSON.stringify(axes));
  }
});

test("heads of keys and values that are fewer than ranks are computed by several of them", async () => {
  for (const family of ["llama", ...onlyInAll(["qwen3", "phi"])]) {
    const heads = { num_attention_heads: 8, num_key_value_heads: 2, hidden_size: 64, head_dim: 8 };
    const config = { ...zooModels(family)[0]?.hfConfig, ...heads };
    const [alone = assert.fail()] = await train({ config, axes: { shard: 1 } });
    for (const checkpointing of [family === "phi"]) {
      assertAsAlone(await train({ config, axes: { tensor: 4 }, checkpointing }), alone, 4, `${family} over 4 ranks`);
    }
  }
});

test("a vocabulary whose parts are uneven is looked up and scored as on one rank", async () => {
  for (const family of ["llama", ...onlyInAll(["phi", "lfm2", "gpt2", "granite"])]) {
    for (const { hfConfig } of zooModels(family)) {
      const config = { ...hfConfig, vocab_size: 101 };
      const [alone = assert.fail()] = await train({ config, axes: { shard: 1 } });
      const all = await train({ config, axes: { tensor: 4 } });
      assertAsAlone(all, alone, 4, `${family} with 101 ids`);
    }
  }
});

test("ids and labels out of the vocabulary are refused by every rank", async () => {
  const config = { ...zooModels("lfm2")[0]?.hfConfig, vocab_size: 64 };
  for (const [place, id] of [["inputIds", 64], ["inputIds", -1], ["labels", 64], ["labels", -7]] as const) {
    for (const found of valuesOf(await world(2, outOfVocabulary, { data: [config, place, id] }))) {
      assert.match(found, new RegExp(`Cannot look up id ${id} at place 5: the table has 64 rows`), place);
    }
  }
});

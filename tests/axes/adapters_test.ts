/** LoRA under tensor parallelism, against one rank: steps, files and merged weights; with shared heads of keys, and dropout. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { bitFaults, distanceOf } from "../../scripts/axes/distance.ts";
import type { FamilyOrders, FamilyReport } from "../../scripts/axes/training.ts";
import { zooModels } from "../../scripts/zoo/families.ts";
import { sharedTest as test, usualFirst } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { valuesOf, world } from "../support/world.ts";
import { dropOut, loadFrom, saveAndMerge } from "./adapters_ranks.ts";
import { trainFamily } from "./families_ranks.ts";
import { LLAMA } from "./llama_ranks.ts";

const sizeOf = ({ axes }: FamilyOrders): number => Object.values(axes).reduce((all, length) => all * length, 1);

async function train(orders: FamilyOrders): Promise<readonly FamilyReport[]> {
  return valuesOf<FamilyReport>(await world(sizeOf(orders), trainFamily, { data: { ...orders, lora: true } }));
}

const configOf = (family: string): FamilyOrders["config"] => zooModels(family)[0]?.hfConfig ?? assert.fail();

for (
  const [what, config, orders] of usualFirst(
    [
      ["fewer heads of keys than ranks", { ...LLAMA, num_key_value_heads: 2 }, { axes: { tensor: 4 } }],
      ["weights [in, out]", configOf("gpt2"), { axes: { shard: 2, tensor: 2 } }],
      ["latent attention", configOf("deepseek_v2"), { axes: { shard: 2, tensor: 2 }, sequenceParallel: true }],
      ["gates and ups side by side", configOf("phi3"), { axes: { shard: 2, tensor: 2 }, mode: "ddp" as const }],
      ["a mixture, checkpointed", configOf("qwen2_moe"), { axes: { tensor: 2 }, checkpointing: true }],
    ] as const,
    (place) => place === 0 || place === 2,
  )
) {
  test(`adapters over a tensor axis train as on one rank: ${what}`, async () => {
    const [alone = assert.fail()] = await train({ config, axes: { shard: 1 } });
    const all = await train({ config, ...orders });
    assert.deepEqual(bitFaults(all, alone, orders.axes.tensor), []);
    const { cut } = all[0] ?? assert.fail();
    // Of a layer that is cut by columns the second factor is cut, by rows the first one.
    for (const name of cut.filter((name) => name.includes("lora"))) {
      assert.match(name, /(o_proj|down_proj|c_proj|dense|fc2)\.lora_A|(?<!o_proj|down_proj|c_proj|dense|fc2)\.lora_B/);
    }
    // With gates and ups side by side the plan gathers columns' outputs and splits rows' inputs: each rank has all of the factors.
    const kinds = ["lora_A", "lora_B"].filter((kind) => cut.some((name) => name.includes(kind)));
    assert.deepEqual(kinds, what === "gates and ups side by side" ? [] : ["lora_A", "lora_B"]);
    const { loss, norm, gradient, worst } = distanceOf(all, alone);
    assert.ok(loss <= 1 && norm <= 1 && gradient <= 1, JSON.stringify({ loss, norm, gradient, worst }));
  });
}

test("adapters over a tensor axis have one rank's files, and give one rank's merged weights, to the bit", async () => {
  using folder = temporaryDirectory();
  const found: (readonly [string, number, number])[] = [];
  const files: Uint8Array[] = [];
  for (const [name, axes] of [["alone", { shard: 1 }], ["cut", { shard: 1, tensor: 2 }]] as const) {
    const orders = { config: LLAMA, axes, folder: folder.file(name) };
    found.push(...valuesOf(await world(sizeOf(orders), saveAndMerge, { data: orders })));
    files.push(readFileSync(folder.file(`${name}/adapter_model.safetensors`)));
  }
  assert.deepEqual(files[1], files[0]);
  const [[merged = "", before = NaN] = []] = found;
  for (const [digest, own, after] of found) {
    assert.equal(digest, merged);
    assert.ok(Math.abs(own - before) <= 2e-6 * before && Math.abs(after - before) <= 2e-6 * before, `${own}, ${after}`);
  }
  const loads = { config: LLAMA, folder: folder.file("cut") };
  const [alone] = valuesOf(await world(1, loadFrom, { data: { ...loads, axes: { shard: 1 } } }));
  const cut = valuesOf(
    await world(2, loadFrom, { data: { ...loads, folder: folder.file("alone"), axes: { tensor: 2 } } }),
  );
  assert.deepEqual(cut, [alone, alone]);
  assert.notEqual(alone, merged);
});

test("adapters of columns drop out the elements that one rank does", async () => {
  const [alone = assert.fail()] = valuesOf(
    await world(1, dropOut, { data: { config: LLAMA, axes: { shard: 1 } } }),
  );
  for (const losses of valuesOf(await world(2, dropOut, { data: { config: LLAMA, axes: { tensor: 2 } } }))) {
    for (const [i, loss] of losses.entries()) {
      const expected = alone[i] ?? NaN;
      assert.ok(Math.abs(loss - expected) <= 2e-6 * expected, `${i}: ${loss}, ${expected}`);
    }
  }
});

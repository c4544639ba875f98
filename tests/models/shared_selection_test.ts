/**
 * GLM MoE DSA where layers reuse the keys that the indexer of an earlier layer selected. `reference_test.ts` and `generate_test.ts`
 * compare such models with transformers; here are the types of layers, misuse, and activation checkpointing.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../doors/device.ts";
import { ArgumentError, ConfigError } from "../../doors/errors.ts";
import { buildModel, initializeParameters } from "../../doors/nn.ts";
import { applyActivationCheckpointing, int32, scope, tensor } from "../../mod.ts";
import { resolveGlmMoeDsaConfig } from "../../src/models/glm_moe_dsa/config.ts";

const SIZES = {
  model_type: "glm_moe_dsa",
  ...{ vocab_size: 32, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 4, num_attention_heads: 2 },
  ...{ num_key_value_heads: 2, max_position_embeddings: 32, q_lora_rank: 6, kv_lora_rank: 8, qk_nope_head_dim: 4 },
  ...{ qk_rope_head_dim: 4, v_head_dim: 6, n_routed_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 8 },
  ...{ first_k_dense_replace: 1, index_topk: 3, index_head_dim: 6, index_n_heads: 3 },
};
const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 27 });

test("the types of indexers follow indexer_types, index_topk_pattern, or the schedule, as in transformers", () => {
  const typesOf = (keys: object): string =>
    (resolveGlmMoeDsaConfig({ ...SIZES, ...keys }).keySelections ?? assert.fail())
      .map((selection) => selection.type === "shared" ? "s" : selection.isShared ? "F" : "f").join("");
  assert.equal(typesOf({}), "ffff");
  assert.equal(typesOf({ indexer_types: ["full", "shared", "shared", "full"] }), "Fssf");
  assert.equal(typesOf({ index_topk_pattern: "FSFS" }), "FsFs");
  assert.equal(typesOf({ index_topk_pattern: ["full", "full", "shared", "full"] }), "fFsf");
  assert.equal(typesOf({ indexer_types: null, index_topk_freq: 2 }), "fFsf");
  assert.equal(typesOf({ index_topk_freq: 3, index_skip_topk_offset: 1 }), "Fssf");
  assert.equal(typesOf({ index_topk_freq: 0, index_skip_topk_offset: 0 }), "ffff");
  assert.equal(typesOf({ indexer_types: ["full", "full", "full", "full"], index_topk_pattern: "FSSS" }), "ffff");
  const refused: readonly (readonly [keys: object, message: RegExp])[] = [
    [{ indexer_types: ["shared", "full", "full", "full"] }, /indexer_types: .*first layer.*'shared'/],
    [{ index_topk_freq: 2, index_skip_topk_offset: 0 }, /index_skip_topk_offset: .*first layer.*0/],
    [{ indexer_types: ["full", "shared"] }, /indexer_types: .*each of 4 layers.*2/],
    [{ index_topk_pattern: "FSFSF" }, /index_topk_pattern: .*each of 4 layers.*5/],
    [{ index_topk_pattern: "FSXS" }, /index_topk_pattern/],
    [{ indexer_types: ["full", "sparse", "full", "full"] }, /indexer_types\.1: expected/],
  ];
  for (const [keys, message] of refused) {
    assert.throws(() => typesOf(keys), (error) => {
      assert.ok(error instanceof ConfigError, String(error));
      assert.match(error.message, message);
      return true;
    });
  }
});

test("layers that share a selection have no indexer, and none runs without a selection", () => {
  using _frame = scope();
  const model = buildModel(device, { ...SIZES, index_topk_pattern: "FSSF" });
  initializeParameters(model, 1);
  const names = [...model.namedParameters()].map(([name]) => name).filter((name) => name.includes("indexer.wk"));
  assert.deepEqual(names, [0, 3].map((layer) => `model.layers.${layer}.self_attn.indexer.wk.weight`));
  const [, shared = assert.fail()] = model.layers;
  const hidden = tensor(device, new Float32Array(32), { shape: [1, 2, 16] });
  assert.throws(() => shared.call(hidden, {}), (error) => {
    assert.ok(error instanceof ArgumentError, String(error));
    assert.match(error.message, /'model\.layers\.1\.self_attn' reuses the keys .* no 'selectedKeys'/);
    return true;
  });
});

test("activation checkpointing keeps the bits where layers share a selection, and frees all memory", () => {
  const trained = (
    checkpointed: readonly number[],
    saveOps: readonly ("attention" | "linear")[] = [],
  ): readonly number[] => {
    const before = device.allocator.stats.inUse;
    const model = buildModel(device, { ...SIZES, index_topk_pattern: "FSSF" });
    initializeParameters(model, 3);
    const blocks = checkpointed.map((layer) => model.layers[layer] ?? assert.fail());
    applyActivationCheckpointing(blocks, { saveOps });
    const values: number[] = [];
    {
      using _frame = scope();
      const ids = tensor(device, [...Array(20).keys()].map((i) => (i * 7) % 32), { shape: [2, 10], dtype: int32 });
      const { loss = assert.fail() } = model.call({ inputIds: ids, labels: ids });
      loss.backward();
      values.push(loss.item());
      for (const parameter of model.parameters()) values.push(...parameter.grad?.toArray() ?? []);
    }
    model.zeroGrad();
    for (const parameter of model.parameters()) parameter.dispose();
    for (const [, buffer] of model.namedBuffers()) buffer.dispose();
    assert.ok(device.allocator.stats.inUse - before < 4096, "what is left are tables of positions");
    return values;
  };
  const plain = trained([]);
  assert.ok(plain.length > 1000);
  for (const checkpointed of [[0, 1, 2, 3], [0], [1, 2], [2]]) assert.deepEqual(trained(checkpointed), plain);
  assert.deepEqual(trained([0, 1, 2, 3], ["attention", "linear"]), plain);
});

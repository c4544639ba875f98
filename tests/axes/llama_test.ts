/** Tensor parallelism of Llama under FSDP and DDP, against one rank; and what is refused by name. @module */
import assert from "node:assert/strict";
import type { MeshShape } from "../../doors/comm.ts";
import { onlyInAll, sharedTest as test, usualFirst } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { valuesOf, world } from "../support/world.ts";
import {
  LLAMA,
  type LlamaOrders,
  type LlamaReport,
  PLAN,
  refuseAdapters,
  refusePlan,
  trainLlama,
} from "./llama_ranks.ts";

async function train(orders: LlamaOrders): Promise<readonly LlamaReport[]> {
  const size = Object.values(orders.axes).reduce((all, length) => all * length, 1);
  return valuesOf<LlamaReport>(await world(size, trainLlama, { data: orders }));
}

function assertNear(found: readonly number[], expected: readonly number[], most: number, what: string): void {
  assert.equal(found.length, expected.length);
  for (const [i, value] of found.entries()) {
    const wanted = expected[i] ?? NaN;
    assert.ok(Math.abs(value - wanted) <= most * Math.abs(wanted), `${what} ${i}: ${value}, on one rank ${wanted}`);
  }
}

const CONFIGS: readonly (readonly [string, LlamaOrders["config"]])[] = [
  ["plain", {}],
  ["tied and uneven", { tie_word_embeddings: true, intermediate_size: 53 }],
  ["with biases", { attention_bias: true, mlp_bias: true }],
];

for (const [what, config = {}] of CONFIGS) {
  test(`parallelizeModule() of Llama, ${what}, under FSDP and DDP trains as on one rank, with clipping`, async () => {
    const [alone] = await train({ axes: { shard: 1 }, config, steps: 5 });
    assert.ok(alone?.norms.every((norm) => norm > 0.2), "clipping is active");
    for (
      const orders of usualFirst([
        { axes: { shard: 2, tensor: 2 } },
        { axes: { tensor: 2 } },
        { axes: { shard: 1, tensor: 4 } },
        { axes: { shard: 2, tensor: 2 }, mode: "ddp" as const },
        { axes: { replicate: 2, shard: 1, tensor: 2 } },
        { axes: { shard: 2, tensor: 2 }, checkpointing: true },
      ], (place) => place === CONFIGS.length + CONFIGS.findIndex(([name]) => name === what))
    ) {
      const where = JSON.stringify(orders);
      const all = await train({ ...orders, config, steps: 5 });
      const { tensor } = orders.axes;
      for (const [rank, found] of all.entries()) {
        assert.equal(found.first, alone?.first, where);
        assertNear(found.losses, alone?.losses ?? [], 1e-5, `loss of ${where}`);
        assertNear(found.norms, alone?.norms ?? [], 5e-5, `norm of ${where}`);
        assertNear([found.evaluated], [alone?.evaluated ?? NaN], 1e-5, `evaluation of ${where}`);
        assert.deepEqual(found.generated, alone?.generated);
        const { losses, norms, last } = all[0] ?? assert.fail();
        assert.deepEqual([found.losses, found.norms, found.last], [losses, norms, last]);
        assert.equal(found.uncut, all[rank - rank % tensor]?.uncut, `copies on rank ${rank} of ${where}`);
        assert.equal(new Set(found.inUse.slice(1)).size, 1, `memory stays as it is: ${found.inUse}`);
      }
    }
  });
}

test("a tensor axis of one rank has the bits of a run without", async () => {
  for (const shard of [2, ...onlyInAll([1])]) {
    const [without, beside] = await Promise.all(
      [{ shard }, { shard, tensor: 1 }].map((axes: MeshShape) => train({ axes, steps: 3 })),
    );
    // An axis of one rank shares its group with others, so calls over it are no sums over a tensor axis.
    assert.deepEqual(beside?.map((report) => ({ ...report, calls: [] })), without);
  }
});

test("FSDP and DDP on the data axes of a mesh with a tensor axis have the same bits", async () => {
  const fsdp = await train({ axes: { shard: 2, tensor: 2 }, steps: 3 });
  const ddp = await train({ axes: { shard: 2, tensor: 2 }, steps: 3, mode: "ddp" });
  assert.deepEqual(
    fsdp.map(({ losses, norms, last }) => [losses, norms, last]),
    ddp.map(({ losses, norms, last }) => [
      losses,
      norms,
      last,
    ]),
  );
});

test("a step sums over the tensor axis twice a block in each direction, and once for the norm", async () => {
  const [{ calls } = assert.fail()] = await train({ axes: { shard: 1, tensor: 2 }, steps: 2 });
  const block = (i: number): string[] => [
    `output of 'model.layers.${i}.self_attn.o_proj'`,
    `output of 'model.layers.${i}.mlp.down_proj'`,
  ];
  const back = (i: number): string[] => [
    `gradient of the input of 'model.layers.${i}.mlp'`,
    `gradient of the input of 'model.layers.${i}.self_attn'`,
  ];
  assert.deepEqual(calls, [...block(0), ...block(1), ...back(1), ...back(0), "gradient norm"]);
});

test("Hugging Face folders of Llama go from any mesh to any other to the bit", async () => {
  using folder = temporaryDirectory();
  const [saved] = await train({ axes: { shard: 2, tensor: 2 }, steps: 2, to: folder.path });
  for (const axes of [{ shard: 1 }, { shard: 1, tensor: 4 }, { shard: 4 }, { shard: 1, tensor: 2 }]) {
    const [loaded] = await train({ axes, steps: 0, from: folder.path });
    assert.equal(loaded?.first, saved?.last);
  }
});

const MIXTRAL = { ...LLAMA, model_type: "mixtral", num_local_experts: 4, num_experts_per_tok: 2 };
const { "model.layers.*.mlp.down_proj": _, ...withoutDown } = PLAN;

for (
  const [what, size, config, plan, pattern] of [
    [
      "heads of keys and values that neither divide the ranks nor are divided by them",
      ...[2, { ...LLAMA, hidden_size: 48, num_attention_heads: 6, num_key_value_heads: 3 }, PLAN] as const,
      /ArgumentError: Cannot cut 'model.layers.0.self_attn': its 3 heads of keys and values cannot be divided over 2 ranks/,
    ],
    [
      "heads that ranks do not divide",
      ...[2, { ...LLAMA, hidden_size: 36, num_attention_heads: 9, num_key_value_heads: 3, head_dim: 4 }, PLAN] as const,
      /ArgumentError: Cannot cut 'model.layers.0.self_attn': its 9 heads cannot be divided over 2 ranks/,
    ],
    [
      "dropout of attention",
      ...[2, { ...LLAMA, attention_dropout: 0.1 }, PLAN] as const,
      /UnsupportedError: .*not implemented for masks of attention dropout over a part of the heads \(set it to 0, or /,
    ],
    [
      "norms of heads",
      ...[2, { ...LLAMA, model_type: "qwen3", head_dim: 4 }, PLAN] as const,
      /ArgumentError: .*the plan must have all of .* '.*q_norm' replicated_with_grad_allreduce, '.*k_norm' replicated/,
    ],
    [
      "parts of unequal width in one projection of queries, keys and values",
      ...[2, { ...LLAMA, model_type: "phi3", pad_token_id: 0 }, {
        "model.layers.*.self_attn.qkv_proj": "colwise",
        "model.layers.*.self_attn.o_proj": "rowwise",
      }] as const,
      /ArgumentError: Cannot cut '.*qkv_proj' colwise: parts of unequal width lie side by side .*; cut it colwise_gather_output/,
    ],
    [
      "a plan that leaves layers out",
      ...[2, LLAMA, withoutDown] as const,
      /ArgumentError: Cannot cut 'model.layers.0.mlp': the plan must have all of '.*gate_proj' colwise, .* '.*down_proj' rowwise/,
    ],
    [
      "a style that a head cannot have",
      ...[2, LLAMA, { lm_head: "colwise" }] as const,
      /ArgumentError: Cannot cut 'lm_head' colwise: no LanguageModelHead is cut so/,
    ],
    [
      "a name that there is not",
      ...[2, LLAMA, { "model.layers.*.mlp.upp_proj": "colwise" }] as const,
      /ArgumentError: The plan's 'model.layers.\*.mlp.upp_proj' fits no module/,
    ],
    [
      "a style that there is not",
      ...[2, LLAMA, { "model.layers.*.mlp.up_proj": "colwize" }] as const,
      /ArgumentError: Cannot cut '.*up_proj' colwize: styles are colwise, rowwise, .*\. Did you mean 'colwise'\?/,
    ],
    [
      "a style of transformers that is not implemented yet",
      ...[2, LLAMA, { "model.layers.*.mlp.up_proj": "local_colwise" }] as const,
      /UnsupportedError: Cannot cut '.*up_proj' local_colwise: that is not implemented yet; styles are colwise/,
    ],
    [
      "experts whose parts nobody adds up",
      ...[2, MIXTRAL, { "model.layers.*.mlp.experts.gate_up_proj": "packed_colwise" }] as const,
      /ArgumentError: Cannot cut weights of '.*mlp\.experts': the plan must say moe_tp_experts of '.*mlp\.experts', or ep/,
    ],
    [
      "a part of the experts' weights",
      ...[2, MIXTRAL, {
        "model.layers.*.mlp.experts.gate_up_proj": "packed_colwise",
        "model.layers.*.mlp.experts": "moe_tp_experts",
      }] as const,
      /ArgumentError: .*the plan must have all of '.*gate_up_proj' packed_colwise, '.*down_proj' rowwise/,
    ],
    [
      "experts without their weights, of which all ranks have all",
      ...[2, MIXTRAL, { "model.layers.*.mlp.experts": "moe_tp_experts" }] as const,
      /ArgumentError: .*the plan must have all of '.*gate_up_proj' packed_colwise, '.*down_proj' rowwise/,
    ],
    [
      "experts that are divided, with weights that are cut otherwise",
      ...[2, MIXTRAL, {
        "model.layers.*.mlp.experts.gate_up_proj": "grouped_gemm",
        "model.layers.*.mlp.experts.down_proj": "rowwise",
        "model.layers.*.mlp.experts": "ep_dispatch_experts",
      }] as const,
      /ArgumentError: .*the plan must have all of '.*gate_up_proj' grouped_gemm, '.*down_proj' grouped_gemm/,
    ],
    [
      "norms over all heads, cut by heads",
      ...[2, { ...LLAMA, model_type: "olmo3", pad_token_id: 0 }, PLAN] as const,
      /ArgumentError: Cannot cut '.*' by heads: its norms go over all heads together; cut queries, .* colwise_gather_output/,
    ],
    [
      "two styles for a layer",
      ...[2, LLAMA, { ...PLAN, "model.layers.0.mlp.up_proj": "rowwise" }] as const,
      /ArgumentError: Cannot cut 'model.layers.0.mlp.up_proj' rowwise: the plan says colwise as well/,
    ],
  ] as const
) {
  test(`parallelizeModule() refuses ${what}, and changes nothing`, async () => {
    for (const found of valuesOf(await world(size, refusePlan, { data: [config, plan] }))) {
      assert.match(found, pattern);
      assert.doesNotMatch(found, /CHANGED/);
    }
  });
}

test("adapters that drop out parts of inputs are not cut, and layers that are cut take none", async () => {
  for (const [cut, adapter] of valuesOf(await world(2, refuseAdapters, { data: PLAN }))) {
    assert.match(
      cut,
      /Cannot cut 'model\.layers\.0\.mlp' over 2 ranks: not implemented for masks of an adapter's dropout over a part of the inputs of '\S+down_proj' \(set it to 0\)/,
    );
    assert.match(
      adapter,
      /Cannot add an adapter: '\S+weight' is cut over an axis; call addLora before parallelizeModule/,
    );
  }
});

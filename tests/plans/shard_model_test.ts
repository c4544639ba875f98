/** Models that were sharded by a plan: they learn what replicated ones do to the bit, and are described. @module */
import assert from "node:assert/strict";
import { describe } from "node:test";
import { describeSharding, openModel, shardModel } from "../../mod.ts";
import { openRank } from "../fsdp/run.ts";
import { startRank } from "../support/rank_process.ts";
import { sharedTest as it, usualFirst } from "../support/share.ts";
import { type PlanCase, type PlanReport, SIZES } from "./plan_ranks.ts";
import { run, whole, WORLD } from "./trained.ts";

const manual = {
  mode: "manual",
  modules: {
    "model.layers.*": ["free_full_weight"],
    "model.norm": ["keep_full_weight"],
    "lm_head": ["keep_full_weight"],
  },
} as const;
const cases: Readonly<Record<string, PlanCase>> = {
  auto: { fsdpPlan: "auto" },
  "auto, nothing freed": { fsdpPlan: "auto", reshardAfterForward: false },
  "auto, prefetching": { fsdpPlan: "auto", forwardPrefetch: true, backwardPrefetch: true },
  transformer: { fsdpPlan: "transformer" },
  classes: { fsdpPlan: { mode: "transformer", classes: ["LlamaMLP", "LlamaAttention"] } },
  size: { fsdpPlan: { mode: "size", minNumParams: 1000 } },
  none: { fsdpPlan: "none" },
  manual: { fsdpPlan: manual },
  "auto, a block checkpointed": { fsdpPlan: "auto", checkpointed: true },
  "auto, offloaded": { fsdpPlan: { mode: "auto", options: ["cpu_offload"] } },
  "manual, a part offloaded": {
    fsdpPlan: { mode: "manual", modules: { "model.layers.*": ["cpu_offload"], "model.embed_tokens": [] } },
  },
};

/** Each plan with and without tied weights, of which a runtime takes one, by turns. */
const plans = Object.entries(cases).flatMap(([name, data], i) =>
  [i % 2 === 0, i % 2 === 1].map((tied) => ({ name, data, tied }))
);

for (const tied of [false, true]) {
  describe(`shardModel() of ${tied ? "tied" : "untied"} weights`, () => {
    let ddp: Promise<readonly PlanReport[]> | undefined;
    for (const { name, data } of plans.filter((plan) => plan.tied === tied)) {
      it(`learns by plan '${name}' what DDP learns`, async () => {
        const [reference] = await (ddp ??= run({ tied }));
        const reports = await run({ ...data, tied });
        for (const report of reports) {
          assert.deepEqual(report.losses, reference?.losses);
          assert.deepEqual(report.norms, reference?.norms);
          assert.deepEqual(report.predicted, report.measured);
        }
        assert.deepEqual(whole(reports, WORLD), reference?.weights);
      });
    }
  });
}

const EXPERTS = {
  num_local_experts: 4,
  moe_intermediate_size: 12,
  output_router_logits: true,
  router_aux_loss_coef: 0.1,
};
const mixtures: Readonly<Record<string, PlanCase["config"]>> = {
  mixtral: EXPERTS,
  qwen2_moe: {
    ...EXPERTS,
    num_experts: 4,
    num_experts_per_tok: 2,
    shared_expert_intermediate_size: 20,
    mlp_only_layers: [0],
  },
  qwen3_moe: { ...EXPERTS, num_experts_per_tok: 3, decoder_sparse_step: 2 },
  phimoe: { ...EXPERTS, router_jitter_noise: 0.3 },
  gpt_oss: { ...EXPERTS, head_dim: 6, num_experts_per_tok: 2, sliding_window: 5 },
};
const expertUnits = {
  mode: "manual",
  modules: { "model.layers.*": ["free_full_weight"], "model.layers.*.mlp.experts": ["free_full_weight"] },
} as const;

describe("shardModel() of mixtures of experts", () => {
  for (const [model, config] of usualFirst(Object.entries(mixtures), (place) => place === 0)) {
    it(`${model} learns what DDP learns, by blocks and with experts as units of their own`, async () => {
      const data = { config: { ...config, model_type: model }, tied: model === "mixtral" };
      const [reference] = await run(data);
      for (const fsdpPlan of ["auto", expertUnits] as const) {
        const reports = await run({ ...data, fsdpPlan });
        for (const report of reports) {
          assert.deepEqual(report.losses, reference?.losses);
          assert.deepEqual(report.norms, reference?.norms);
          assert.deepEqual(report.predicted, report.measured);
        }
        assert.deepEqual(whole(reports, WORLD), reference?.weights);
      }
    });
  }
});

describe("shardModel()", () => {
  it("gathers what the plan frees once more in the backward, but for embeddings", async () => {
    const [report] = await run({ fsdpPlan: "auto" });
    const gathers = report?.calls.filter((call) => call.startsWith("gather"));
    const blocks = ["model.layers.0", "model.layers.1"];
    const order = ["model.embed_tokens", ...blocks, "model.norm, lm_head"];
    assert.deepEqual(gathers, [
      ...order.map((unit) => `gather forward ${unit}`),
      ...blocks.toReversed().map((unit) => `gather backward ${unit}`),
    ]);
  });

  it("gathers the next unit while one computes, where that is asked for", async () => {
    const reportOf = async (data: PlanCase): Promise<PlanReport> =>
      (await run({ fsdpPlan: "transformer", ...data }))[0] ?? assert.fail();
    const [plain, forward, backward] = [
      await reportOf({}),
      await reportOf({ forwardPrefetch: true }),
      await reportOf({ backwardPrefetch: true }),
    ];
    assert.ok(forward.gathered > plain.gathered);
    assert.equal(forward.measured.peakBytes, plain.measured.peakBytes);
    assert.equal(backward.gathered, plain.gathered);
    assert.ok(backward.measured.peakBytes > plain.measured.peakBytes);
  });

  for (const frozen of ["before sharding", "after sharding"] as const) {
    it(`learns what DDP learns, and predicts its peak, with parts frozen ${frozen}`, async () => {
      const [reference] = await run({ frozen });
      for (const fsdpPlan of ["auto", "transformer"] as const) {
        const reports = await run({ fsdpPlan, frozen });
        for (const { losses, norms, predicted, measured } of reports) {
          assert.deepEqual([losses, norms], [reference?.losses, reference?.norms]);
          assert.deepEqual(predicted, measured);
        }
        assert.deepEqual(whole(reports, WORLD), reference?.weights);
      }
    });
  }

  it("shards over the second axis of a mesh and copies over the first", async () => {
    const reports = await run({ fsdpPlan: "auto", replicas: 2 }, 4);
    const [a, b, c, d] = reports.map(({ weights }) => weights);
    assert.deepEqual([a, b], [c, d]);
    assert.notDeepEqual(a, b);
    for (const { predicted, measured, description } of reports) {
      assert.deepEqual(predicted, measured);
      assert.match(description, /a rank of 2, 2 copies$/);
    }
  });

  it("shards within a host and copies over hosts, by LOCAL_WORLD_SIZE", { timeout: 120_000 }, async () => {
    const id = { FULLYSHARD_RUN_ID: crypto.randomUUID(), WORLD_SIZE: "4", LOCAL_WORLD_SIZE: "2" };
    const ranks = Array.from({ length: 4 }, (_, rank) => {
      const env = { ...id, RANK: String(rank), LOCAL_RANK: String(rank % 2) };
      return startRank(new URL("./hybrid_rank.ts", import.meta.url), [], { env });
    });
    await Promise.all(ranks.map(({ ended }) => ended));
    for (const [rank, { stdout, stderr }] of ranks.entries()) {
      assert.equal(stdout, `2 share, 2 copies, ${rank < 2 ? "0,1" : "2,3"}\n`, stderr);
    }
  });

  it("tells of units that share a weight, and draws the tree", async () => {
    const [report] = await run({ fsdpPlan: "auto", tied: true });
    assert.equal(report?.notes.length, 1);
    assert.equal(
      report?.description,
      [
        "LlamaForCausalLm                           0 in 0 parameters     0 bytes a rank  float32  kept for the backward",
        "  model.embed_tokens, model.norm, lm_head  1040 in 2 parameters  2.3 KiB a rank  float32  kept for the backward",
        "  model.layers.0                           1952 in 9 parameters  4.0 KiB a rank  float32  freed after the forward",
        "  model.layers.1                           1952 in 9 parameters  4.0 KiB a rank  float32  freed after the forward",
        "4944 elements, 10.3 KiB a rank of 2",
      ].join("\n"),
    );
  });

  it("is what openModel() does with a plan, before it loads", async () => {
    const rank = await openRank();
    const model = await openModel(rank, SIZES, { fsdpPlan: "auto", mesh: rank.group, seed: 2 });
    const { units } = describeSharding(model);
    assert.deepEqual(units.map(({ depth }) => depth), [0, 1, 1, 1, 1]);
    const again = await openModel(rank, SIZES, { seed: 2 });
    shardModel(again, { fsdpPlan: "none", mesh: rank.group });
    await again.load();
    const values = (of: typeof model): unknown => [...of.parameters()].map(({ storage }) => storage.shard.numel);
    assert.deepEqual(values(model), values(again));
    await assert.rejects(
      openModel(rank, SIZES, { mesh: rank.group }),
      /Cannot use 'mesh' without a plan: give fsdpPlan/,
    );
    await assert.rejects(
      openModel(rank, SIZES, { fsdpPlan: { mode: "transformer", classes: ["GptBlock"] } }),
      /GptBlock/,
    );
  });

  it("predicts no peak of a model that it does not know how to build again", async () => {
    const rank = await openRank();
    const model = await openModel(rank, SIZES, { fsdpPlan: "auto" });
    const [block] = model.layers;
    await assert.rejects(
      describeSharding(block ?? assert.fail()).predictPeak(),
      /Cannot predict the peak of PreNormBlock: it must be a language model that shardModel or openModel sharded/,
    );
  });
});

/** Transformers' `DistributedConfig`, and Accelerate's `parallelism_config` with tensor parallelism, read as the trainer's keys. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { resolveConfig } from "../../src/config/resolve.ts";
import { readAccelerateConfig, readDistributedConfig } from "../../src/accelerate/read.ts";
import { DISTRIBUTED_KEYS } from "../../src/accelerate/distributed_keys.ts";
import { axesOf } from "../../src/train/axes_config.ts";
import { TRAIN_SECTIONS } from "../../src/train/config.ts";
import { foreignPresets } from "../../src/train/presets.ts";
import { temporaryDirectory } from "../support/temporary.ts";

/** All fields of transformers 5.24. */
const FIELDS = [
  ...["tp_size", "tp_plan", "enable_sequence_parallel", "enable_expert_parallel", "fsdp_size", "dp_replicate_size"],
  ...["fsdp_plan", "fsdp_cpu_offload", "fsdp_mixed_precision", "pp_size", "ep_size", "ep_plan", "ep_implementation"],
];

test("readDistributedConfig() knows all fields of transformers 5.24, of which null says nothing", async () => {
  assert.deepEqual(DISTRIBUTED_KEYS.map(({ name }) => name).sort(), [...FIELDS].sort());
  const empty = { strategy: "fsdp", fsdpPlan: "auto", fsdpSize: 1 };
  for (const name of FIELDS) {
    const { values, problems } = await readDistributedConfig({ [name]: null });
    assert.deepEqual([values, problems], [empty, []], name);
  }
});

test("readDistributedConfig() gives sizes, plan, offload and precision", async () => {
  const plan = { "model.layers.*.mlp.up_proj": "colwise_rep" };
  const { values, problems } = await readDistributedConfig({
    ...{
      tp_size: 2,
      tp_plan: plan,
      fsdp_size: 4,
      dp_replicate_size: 2,
      pp_size: 1,
      ep_size: 1,
      ep_implementation: "auto",
    },
    ...{ fsdp_cpu_offload: true, fsdp_mixed_precision: true, enable_sequence_parallel: false, ep_plan: "auto" },
  });
  assert.deepEqual(problems, []);
  assert.deepEqual(values, {
    ...{ strategy: "fsdp", fsdpPlan: "auto", tpSize: 2, tpPlan: plan, fsdpSize: 4, dpReplicateSize: 2, ppSize: 1 },
    ...{ epSize: 1, cpuOffload: true, precision: "bfloat16", enableSequenceParallel: false },
  });
});

test("readDistributedConfig() refuses what it does not know or have, by name", async () => {
  for (
    const [config, pattern] of [
      [{ tp_sise: 2 }, /tp_sise.*tp_size/],
      [{ tp_size: 0 }, /tp_size.*a number from 1/],
      [{ tp_size: 2, tp_plan: {} }, /tp_plan.*at least one style.*nothing is cut/],
      [{ fsdp_plan: { "model.layers.*": "free_full_weight" } }, /fsdp_plan.*mode manual/],
      [{ enable_expert_parallel: true }, /enable_expert_parallel.*false, and ep_size.*over how many ranks/],
      [{ ep_implementation: "magic" }, /ep_implementation.*all_to_all/],
      [
        { ep_implementation: "all_reduce", ep_size: 2 },
        /ep_implementation: expected auto or all_to_all, or an ep_size equal to tp_size, got 'all_reduce' with ep_size 2 and no tp_size$/,
      ],
      [{ ep_size: 4, tp_size: 2, ep_implementation: "all_reduce" }, /got 'all_reduce' with ep_size 4 and tp_size 2$/],
      [{ ep_size: 2, ep_implementation: "deepgemm_megamoe" }, /expected auto, all_to_all or all_reduce, got 'deep/],
      [{ ep_size: 2, ep_plan: { "model.layers.*.mlp.experts": "grouped_gemm" } }, /ep_plan.*auto.*grouped_gemm/],
    ] as const
  ) {
    const { problems } = await readDistributedConfig(config);
    const said = problems.map(({ path, expected, got }) => `${path}: expected ${expected}, got ${got}`).join();
    assert.match(said, pattern);
  }
});

test("ep_implementation fits the sizes, or is told to have no effect", async () => {
  for (
    const [config, notices] of [
      [{ ep_implementation: "all_reduce", ep_size: 2, tp_size: 2 }, []],
      [{ ep_implementation: "all_reduce" }, []],
      [{ ep_implementation: "all_to_all", ep_size: 4, tp_size: 2 }, []],
      [{ ep_implementation: "all_to_all", ep_size: 2, tp_size: 2 }, [
        /^ep_implementation: with ep_size 2 .* all_reduce$/,
      ]],
    ] as const
  ) {
    const read = await readDistributedConfig(config);
    assert.deepEqual(read.problems, []);
    assert.equal(read.notices.length, notices.length);
    for (const [i, pattern] of notices.entries()) assert.match(read.notices[i] ?? "", pattern);
  }
});

test("--distributed-config lays the ranks of a run, from a file; a plan alone gets the ranks that are left", async () => {
  using folder = temporaryDirectory();
  const file = folder.write("distributed.json", JSON.stringify({ tp_plan: "auto", fsdp_size: 2 }));
  const argv = ["--distributed-config", file];
  const config = await resolveConfig(TRAIN_SECTIONS, { argv, presets: foreignPresets({}, []) });
  assert.deepEqual(axesOf(config, 8), { shard: 2, tensor: 4 });
  assert.equal(config.fsdpPlan, "auto");
  const both = resolveConfig(TRAIN_SECTIONS, { argv: [...argv, "--fsdp", "true"], presets: foreignPresets({}, []) });
  await assert.rejects(both, /one configuration/);
  const wrong = folder.write("wrong.json", JSON.stringify({ tp_size: 2, tp_plan: { lm_head: "columns" } }));
  const bad = resolveConfig(TRAIN_SECTIONS, {
    argv: ["--distributed-config", wrong],
    presets: foreignPresets({}, []),
  });
  await assert.rejects(bad, /expected 'auto' or 'colwise'/);
});

test("parallelism_config with tp_size gives the sizes of three axes", async () => {
  const { values, problems } = await readAccelerateConfig({
    parallelism_config: { parallelism_config_dp_replicate_size: 2, dp_shard_size: 2, tp_size: 2 },
  });
  assert.deepEqual(problems, []);
  assert.deepEqual([values["tpSize"], values["fsdpSize"], values["dpReplicateSize"], values["mesh"]], [
    2,
    2,
    2,
    undefined,
  ]);
  const context = await readAccelerateConfig({ parallelism_config: { cp_size: 2, dp_shard_size: 2 } });
  assert.deepEqual([context.problems, context.values["cpSize"], context.values["fsdpSize"]], [[], 2, 2]);
});

test("cp_comm_strategy and sp_size say how the ranks of a context axis hear of each other", async () => {
  const read = async (config: Readonly<Record<string, unknown>>) => {
    const { values, problems, notices } = await readAccelerateConfig({ parallelism_config: config });
    return [
      values["cpSize"],
      values["cpCommStrategy"],
      problems.map(({ path, got }) => `${path} ${got}`),
      notices.length,
    ];
  };
  assert.deepEqual(await read({ cp_size: 2, cp_comm_strategy: "alltoall" }), [2, "ring", [], 0]);
  assert.deepEqual(await read({ cp_size: 2, cp_comm_strategy: "allgather" }), [2, "allgather", [], 0]);
  assert.deepEqual(await read({ parallelism_config_cp_comm_strategy: "alltoall" }), [undefined, undefined, [], 1]);
  assert.deepEqual(await read({ sp_size: 4, sp_backend: "deepspeed", dp_shard_size: 2 }), [4, "ulysses", [], 0]);
  const [, , problems] = await read({ sp_size: 2, cp_size: 2 });
  assert.deepEqual(problems, ["sp_size 2"]);
});

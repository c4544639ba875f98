/** The trainer's keys that follow from files of Accelerate and Transformers, and the contents that are refused. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { writeFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { CLUSTER_KEYS, PARALLELISM_KEYS } from "../../src/accelerate/cluster_keys.ts";
import { FSDP_KEYS } from "../../src/accelerate/fsdp_keys.ts";
import type { ForeignKey } from "../../src/accelerate/key.ts";
import { readAccelerateConfig, readFsdpConfig } from "../../src/accelerate/read.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const fixture = (name: string): string => fileURLToPath(new URL(`fixtures/${name}`, import.meta.url));
const wrapped = { mode: "transformer", classes: ["LlamaDecoderLayer"] };

describe("readAccelerateConfig()", () => {
  it("reads a file as it is, with FSDP1's names as FSDP2's", async () => {
    const { values, notices, problems, places } = await readAccelerateConfig(fixture("seed_000.yaml"));
    assert.deepEqual(problems, []);
    assert.deepEqual(values, {
      strategy: "fsdp",
      backwardPrefetch: true,
      broadcastFromRank0: true,
      forwardPrefetch: false,
      cpuOffload: false,
      reshardAfterForward: true,
      stateDictType: "sharded",
      fsdpPlan: wrapped,
    });
    assert.deepEqual(notices, [
      "fsdp_backward_prefetch_policy: FSDP2 has no such key; here BACKWARD_PRE is backwardPrefetch: true",
      "fsdp_forward_prefetch: FSDP2 has no such key; here it is forwardPrefetch: false",
      "fsdp_sharding_strategy: FSDP1's FULL_SHARD is reshard_after_forward: true",
      "fsdp_sync_module_states: FSDP2 has no such key; here it is broadcastFromRank0: true",
      "fsdp_use_orig_params: parameters are always the model's own",
    ]);
    assert.match(places.get("reshardAfterForward") ?? "", /seed_000\.yaml:11:\d+$/);
    assert.match(places.get("fsdpPlan") ?? "", /seed_000\.yaml:14:\d+$/);
  });

  it("reads precision and the number of ranks", async () => {
    const { values, ranks, problems } = await readAccelerateConfig(fixture("seed_003.yaml"));
    assert.deepEqual(problems, []);
    assert.deepEqual([values["precision"], values["fsdpPlan"], ranks], ["bfloat16", wrapped, { count: 4 }]);
  });

  it("reads what accelerate config writes, where it asks for nothing that is not there", async () => {
    const usual = {
      compute_environment: "LOCAL_MACHINE",
      distributed_type: "FSDP",
      enable_cpu_affinity: false,
      gpu_ids: "all",
      machine_rank: 0,
      main_process_ip: "10.0.0.1",
      main_process_port: 29501,
      main_training_function: "main",
      mixed_precision: "no",
      num_machines: 1,
      num_processes: 8,
      parallelism_config: {
        parallelism_config_dp_replicate_size: 2,
        parallelism_config_dp_shard_size: 4,
        parallelism_config_tp_size: 1,
        parallelism_config_cp_size: 1,
      },
      rdzv_backend: "static",
      same_network: true,
      tpu_env: [],
      tpu_use_cluster: false,
      tpu_use_sudo: false,
      use_cpu: false,
      dynamo_config: { dynamo_backend: "NO" },
      deepspeed_config: {},
    };
    const { values, ranks, problems, notices } = await readAccelerateConfig(usual);
    assert.deepEqual([problems, notices], [[], []]);
    assert.deepEqual(values, { strategy: "fsdp", precision: "float32", mesh: "2x4" });
    assert.deepEqual(ranks, { count: 8, masterAddr: "10.0.0.1", masterPort: 29501 });
    const replicated = await readAccelerateConfig({ distributed_type: "MULTI_CPU" });
    assert.equal(replicated.values["strategy"], "ddp");
  });

  const refused: readonly (readonly [Readonly<Record<string, unknown>>, RegExp])[] = [
    [
      { distributed_type: "DEEPSPEED" },
      /distributed_type: expected FSDP, MULTI_CPU, MULTI_GPU or NO, got 'DEEPSPEED', which/,
    ],
    [
      { compute_environment: "AMAZON_SAGEMAKER" },
      /compute_environment: expected LOCAL_MACHINE, got 'AMAZON_SAGEMAKER'/,
    ],
    [{ num_machines: 2 }, /num_machines: expected 1, got 2: start several hosts by 'fullyshard run --nnodes'/],
    [{ machine_rank: 1 }, /machine_rank: expected 0, got 1: start several hosts by 'fullyshard run --nnodes'/],
    [{ mixed_precision: "fp8" }, /mixed_precision: expected no, bf16 or fp16, got 'fp8', which is not implemented yet/],
    [{ downcast_bf16: "yes" }, /downcast_bf16: expected nothing, as TPUs are not supported, got "yes"/],
    [{ tpu_use_cluster: true }, /tpu_use_cluster: expected nothing, as TPUs are not supported, got true/],
    [
      { dynamo_config: { dynamo_backend: "INDUCTOR" } },
      /dynamo_config: expected nothing, as there is no compiler, got 'INDUCTOR'/,
    ],
    [{ deepspeed_config: { zero_stage: 3 } }, /deepspeed_config: expected nothing, as DeepSpeed is not supported/],
    [
      { gpu_ids: "0,1" },
      /gpu_ids: expected nothing, as CUDA_VISIBLE_DEVICES chooses cards, one for each rank of a host, got "0,1"/,
    ],
    [{ rdzv_backend: "etcd" }, /rdzv_backend: expected static or c10d, got 'etcd'/],
    [
      { parallelism_config: { parallelism_config_sp_size: 2, cp_size: 2 } },
      /parallelism_config_sp_size: expected 1 with cp_size above 1, got 2/,
    ],
    [
      { parallelism_config: { cp_size: 2, cp_comm_strategy: "ring" } },
      /cp_comm_strategy: expected .*allgather.*alltoall.*, got 'ring'/,
    ],
    [{ num_process: 2 }, /num_process: expected a known key, got 'num_process'\. Did you mean 'num_processes'\?/],
    [{ fsdp_confg: { a: 1 } }, /fsdp_confg: expected a known key, got 'fsdp_confg'\. Did you mean 'fsdp_config'\?/],
    [
      { fsdp_config: { fsdp_shard_strategy: "FULL_SHARD" } },
      /fsdp_shard_strategy: expected a known key, got 'fsdp_shard_strategy'\. Did you mean 'fsdp_sharding_strategy'\?/,
    ],
  ];
  for (const [config, said] of refused) {
    it(`refuses ${JSON.stringify(config)}`, async () => {
      const { problems } = await readAccelerateConfig(config);
      assert.equal(problems.length, 1);
      assert.match(problems.map(({ path, expected, got }) => `${path}: expected ${expected}, got ${got}`).join(), said);
    });
  }

  it("names the place of what is wrong in a file, and a key that stands there twice", async () => {
    using folder = temporaryDirectory();
    const file = folder.write("a.yaml", "distributed_type: FSDP\nfsdp_config:\n  fsdp_sharding_strategy: FULL\n");
    const [wrong] = (await readAccelerateConfig(file)).problems;
    assert.match(wrong?.where ?? "", /a\.yaml:3:\d+$/);
    assert.equal(`${wrong?.path} ${wrong?.got}`, "fsdp_sharding_strategy 'FULL'");
    folder.write("a.yaml", "fsdp_config:\n  fsdp_version: 2\n  fsdp_version: 1\n");
    assert.match((await readAccelerateConfig(file)).problems[0]?.got ?? "", /[Uu]nique/);
    const [missing] = (await readAccelerateConfig(folder.file("none.yaml"))).problems;
    assert.match(missing?.got ?? "", /none\.yaml/);
  });
});

describe("readFsdpConfig()", () => {
  it("reads the keys of Transformers' page, with or without fsdp_, as JSON or an object", async () => {
    const { values, problems, notices } = await readFsdpConfig(fixture("seed_001.json"));
    assert.deepEqual([problems, notices], [[], []]);
    const expected = {
      strategy: "fsdp",
      reshardAfterForward: true,
      cpuOffload: false,
      stateDictType: "full",
      broadcastFromRank0: true,
      activationCheckpointing: "full",
      fsdpPlan: "transformer",
    };
    assert.deepEqual(values, expected);
    const { values: same } = await readFsdpConfig({
      fsdp_state_dict_type: "FULL_STATE_DICT",
      reshardAfterForward: "yes",
    });
    assert.equal(same["stateDictType"], "full");
  });

  it("makes one plan of three keys", async () => {
    const planOf = async (config: Readonly<Record<string, unknown>>): Promise<unknown> =>
      (await readFsdpConfig(config)).values["fsdpPlan"];
    assert.deepEqual(await planOf({ transformer_layer_cls_to_wrap: "A, B" }), {
      mode: "transformer",
      classes: ["A", "B"],
    });
    assert.deepEqual(await planOf({ auto_wrap_policy: "SIZE_BASED_WRAP", min_num_params: 10 }), {
      mode: "size",
      minNumParams: 10,
    });
    assert.equal(await planOf({ auto_wrap_policy: "no_wrap" }), "none");
    assert.equal(await planOf({}), undefined);
    const { problems } = await readFsdpConfig({ auto_wrap_policy: "SIZE_BASED_WRAP" });
    assert.deepEqual(problems.map(({ expected }) => expected), ["min_num_params from 1 with SIZE_BASED_WRAP"]);
    const { notices } = await readFsdpConfig({
      min_num_params: 5,
      auto_wrap_policy: "NO_WRAP",
      transformer_layer_cls_to_wrap: "A",
    });
    assert.deepEqual(notices, [
      "min_num_params: counts with SIZE_BASED_WRAP only",
      "transformer_layer_cls_to_wrap: counts with TRANSFORMER_BASED_WRAP only",
    ]);
  });

  const strategies: readonly (readonly [string, Readonly<Record<string, unknown>>])[] = [
    ["FULL_SHARD", { reshardAfterForward: true }],
    ["SHARD_GRAD_OP", { reshardAfterForward: false }],
    ["NO_SHARD", { strategy: "ddp" }],
    ["HYBRID_SHARD", { reshardAfterForward: true, mesh: "hybrid" }],
    ["HYBRID_SHARD_ZERO2", { reshardAfterForward: false, mesh: "hybrid" }],
  ];
  for (const [i, [strategy, expected]] of strategies.entries()) {
    it(`reads ${strategy} by name, by number, as reshard_after_forward and as an option`, async () => {
      const all = [
        await readFsdpConfig({ sharding_strategy: strategy }),
        await readFsdpConfig({ sharding_strategy: i + 1 }),
        await readFsdpConfig({ reshard_after_forward: strategy.toLowerCase() }),
        await readFsdpConfig({}, `${strategy.toLowerCase()} auto_wrap`),
      ];
      for (const { values, problems } of all) {
        assert.deepEqual([values, problems], [{ strategy: "fsdp", ...expected }, []]);
      }
      assert.equal(all[2]?.notices.length, 1);
    });
  }

  const refused: readonly (readonly [Readonly<Record<string, unknown>>, boolean | string, RegExp])[] = [
    [{ xla: true }, true, /xla: expected nothing, as PyTorch\/XLA and TPUs are not supported, got true/],
    [{ xla_fsdp_settings: { a: 1 } }, true, /xla_fsdp_settings: expected nothing, as PyTorch\/XLA and TPUs/],
    [{ xla_fsdp_grad_ckpt: true }, true, /xla_fsdp_grad_ckpt: expected nothing/],
    [
      { state_dict_type: "LOCAL_STATE_DICT" },
      true,
      /state_dict_type: expected SHARDED_STATE_DICT or FULL_STATE_DICT, got 'LOCAL/,
    ],
    [{ activation_checkpointing: "maybe" }, true, /activation_checkpointing: expected true or false, got 'maybe'/],
    [{ version: 3 }, true, /version: expected 1 or 2, got 3/],
    [{ reshard_after_foward: true }, true, /Did you mean 'reshard_after_forward'\?/],
    [{}, "full_shard wrap", /fsdp: expected true, false or some of full_shard .*, got 'wrap'/],
    [{}, "ful_shard", /got 'ful_shard'\. Did you mean 'full_shard'\?/],
  ];
  for (const [config, fsdp, said] of refused) {
    it(`refuses ${JSON.stringify(config)} with fsdp ${fsdp}`, async () => {
      const { problems } = await readFsdpConfig(config, fsdp);
      assert.equal(problems.length, 1);
      assert.match(problems.map(({ path, expected, got }) => `${path}: expected ${expected}, got ${got}`).join(), said);
    });
  }
});

describe("null, which Accelerate writes for what was not answered", () => {
  const tables:
    readonly (readonly [string, readonly ForeignKey[], (key: string) => ReturnType<typeof readFsdpConfig>])[] = [
      ["beside fsdp_config", CLUSTER_KEYS, (key) => readAccelerateConfig({ [key]: null })],
      [
        "in parallelism_config",
        PARALLELISM_KEYS,
        (key) => readAccelerateConfig({ parallelism_config: { [key]: null } }),
      ],
      [
        "in Accelerate's fsdp_config",
        FSDP_KEYS,
        (key) => readAccelerateConfig({ fsdp_config: { [`fsdp_${key}`]: null } }),
      ],
      ["in Transformers' fsdp_config", FSDP_KEYS, (key) => readFsdpConfig({ [key]: null })],
    ];
  for (const [place, keys, read] of tables) {
    it(`says nothing for any key ${place}`, async () => {
      const nothing = await (place.startsWith("in Trans") ? readFsdpConfig({}) : readAccelerateConfig({}));
      for (const { name } of keys) {
        const { values, problems, notices, ranks } = await read(name);
        assert.deepEqual({ values, problems, notices, ranks }, {
          values: nothing.values,
          problems: [],
          notices: [],
          ranks: {},
        }, name);
      }
    });
  }

  it("says nothing in a file either, written as null, ~ or nothing, beside keys that say something", async () => {
    using folder = temporaryDirectory();
    const file = `${folder.path}/a.yaml`;
    const fsdp =
      "fsdp_version:\n  fsdp_reshard_after_forward: ~\n  fsdp_sharding_strategy: 2\n  fsdp_min_num_params: null";
    writeFileSync(
      file,
      `distributed_type: FSDP\nnum_machines: null\nnum_processes: ~\nmixed_precision:\ndynamo_config:\n  dynamo_backend: null\nfsdp_config:\n  ${fsdp}\n`,
    );
    const { values, problems, ranks } = await readAccelerateConfig(file);
    assert.deepEqual([values, problems, ranks], [{ strategy: "fsdp", reshardAfterForward: false }, [], {}]);
  });
});

/** The effect of each key of Accelerate's and Transformers' configurations on a step: its memory, collectives and files. @module */
import assert from "node:assert/strict";
import { readdirSync } from "node:fs";
import { after, describe } from "node:test";
import { fileURLToPath } from "node:url";
import { resolveConfig } from "../../src/config/resolve.ts";
import { TRAIN_SECTIONS } from "../../src/train/config.ts";
import { foreignPresets } from "../../src/train/presets.ts";
import { estimateStep, type StepEstimate } from "../../src/train/estimate.ts";
import { SIZES } from "../plans/plan_ranks.ts";
import { sharedTest as it } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { keepRanks } from "./kept_ranks.ts";
import { flagsIn, losses } from "./runs.ts";

const kept = keepRanks();
after(() => kept[Symbol.dispose]());
const { run } = kept;

const TIMEOUT = { timeout: 120_000 };
const fixture = (name: string): string => fileURLToPath(new URL(`../accelerate/fixtures/${name}`, import.meta.url));
const ranks = { worldSize: 4, localWorldSize: 2, cpuMath: "wasm" } as const;

/** The memory and collectives of a step with an `fsdp_config`, or with flags. */
async function stepWith(fsdpConfig: Readonly<Record<string, unknown>>, ...argv: string[]): Promise<StepEstimate> {
  const presets = foreignPresets({ fsdp: true, fsdpConfig }, []);
  const config = await resolveConfig(TRAIN_SECTIONS, { argv: ["--sequence-length", "16", ...argv], presets });
  return await estimateStep(config, SIZES, ranks);
}

/** Its calls of a kind, as `unit phase`. */
function calls({ collectives }: StepEstimate, kind: string): readonly string[] {
  return collectives.filter((call) => call.kind === kind).map(({ unit, phase }) => `${unit} ${phase}`);
}

const gradients = (step: StepEstimate): number =>
  calls(step, "all-reduce").filter((call) => call.endsWith("backward")).length;

describe("fsdp_config", () => {
  const [root, blocks] = ["LlamaForCausalLm forward", ["model.layers.0", "model.layers.1"]] as const;
  const forward = [root, ...blocks.map((name) => `${name} forward`)];
  const backward = blocks.toReversed().map((name) => `${name} backward`);

  it("reshard_after_forward, sharding_strategy: blocks are gathered again, or kept", async () => {
    const [freed, kept] = [
      await stepWith({ reshard_after_forward: true }),
      await stepWith({ reshard_after_forward: false }),
    ];
    assert.deepEqual(calls(freed, "gather"), [...forward, ...backward]);
    assert.deepEqual(calls(kept, "gather"), forward);
    assert.ok(kept.terms.gathered > freed.terms.gathered);
    assert.deepEqual(await stepWith({ sharding_strategy: "FULL_SHARD" }), freed);
    assert.deepEqual(await stepWith({ sharding_strategy: "SHARD_GRAD_OP" }), kept);
  });

  it("sharding_strategy NO_SHARD, HYBRID_SHARD: gradients are summed over all, or over hosts", async () => {
    const [full, none] = [await stepWith({}), await stepWith({ sharding_strategy: "NO_SHARD" })];
    const [hybrid, zero2] = [
      await stepWith({ sharding_strategy: "HYBRID_SHARD" }),
      await stepWith({ sharding_strategy: "HYBRID_SHARD_ZERO2" }),
    ];
    assert.deepEqual([calls(none, "gather").length, calls(none, "reduce-scatter").length], [0, 0]);
    assert.equal(gradients(full), 0);
    assert.ok(gradients(none) > 0);
    assert.equal(gradients(hybrid), 3);
    assert.deepEqual([calls(hybrid, "gather").length, calls(zero2, "gather").length], [5, 3]);
    // 2 ranks of a host share what 4 would.
    assert.ok(Math.abs(hybrid.terms.optimizer / full.terms.optimizer - 2) < 0.2);
  });

  it("auto_wrap_policy, transformer_layer_cls_to_wrap, min_num_params: what is gathered at a time", async () => {
    const gathered = async (config: Readonly<Record<string, unknown>>): Promise<readonly string[]> =>
      calls(await stepWith(config), "gather").filter((call) => call.endsWith("forward"));
    assert.deepEqual(await gathered({ auto_wrap_policy: "NO_WRAP" }), [root]);
    assert.deepEqual(await gathered({ auto_wrap_policy: "TRANSFORMER_BASED_WRAP" }), forward);
    const mlps = blocks.map((name) => `${name}.mlp forward`);
    assert.deepEqual(await gathered({ transformer_layer_cls_to_wrap: "LlamaMLP" }), [root, ...mlps]);
    const sized = await gathered({ auto_wrap_policy: "SIZE_BASED_WRAP", min_num_params: 1100 });
    assert.deepEqual(sized, [root, "model forward", ...mlps]);
  });

  it("activation_checkpointing: less is kept, more is computed", async () => {
    const [off, on] = [await stepWith({}), await stepWith({ activation_checkpointing: true })];
    assert.ok(on.terms.activations < off.terms.activations);
    assert.ok(on.flops > off.flops);
    assert.equal(calls(on, "gather").length, calls(off, "gather").length);
    await assert.rejects(
      stepWith({ activation_checkpointing: true }, "--gradient-checkpointing"),
      /gradientCheckpointing: expected activationCheckpointing or gradientCheckpointing, not both/,
    );
  });

  it("cpu_offload, offload_params, the option offload: shards and states lie in host memory", async () => {
    const [off, on] = [await stepWith({}), await stepWith({ cpu_offload: true })];
    assert.deepEqual([off.offloaded.peakBytes, on.terms.optimizer], [0, 0]);
    assert.ok(off.terms.optimizer > 0);
    assert.ok(on.offloaded.terms.optimizer >= off.terms.optimizer);
    assert.ok(on.peakBytes < off.peakBytes);
    assert.deepEqual(await stepWith({ offload_params: true }), on);
    const presets = foreignPresets({ fsdp: "full_shard auto_wrap offload" }, []);
    assert.equal((await resolveConfig(TRAIN_SECTIONS, { presets })).cpuOffload, true);
    await assert.rejects(
      stepWith({ cpu_offload: true }, "--strategy", "ddp"),
      /cpuOffload: expected strategy fsdp/,
    );
  });

  it("backward_prefetch, mixed_precision: more is gathered at once, or half as many bytes", async () => {
    const [plain, ahead] = [await stepWith({}), await stepWith({ backward_prefetch: "BACKWARD_PRE" })];
    assert.ok(ahead.terms.gathered > plain.terms.gathered);
    assert.deepEqual(await stepWith({ backward_prefetch: "NO_PREFETCH" }), plain);
    const bytes = ({ collectives }: StepEstimate): number =>
      collectives.filter(({ kind }) => kind === "gather").reduce((sum, call) => sum + call.bytes, 0);
    const half = bytes(await stepWith({ mixed_precision: "bf16" })) / bytes(plain);
    // Parameters begin on multiples of 128 elements then, not 64, and some here are as small as that.
    assert.ok(half > 0.5 && half < 0.65, `${half}`);
  });

  it("parallelism_config: copies, and ranks that share each", async () => {
    const read = async (sizes: Readonly<Record<string, number>>): Promise<unknown> => {
      using folder = temporaryDirectory();
      const file = folder.write("a.yaml", JSON.stringify({ distributed_type: "FSDP", parallelism_config: sizes }));
      const presets = foreignPresets({}, []);
      const argv = ["--accelerate-config", file, "--sequence-length", "16"];
      const step = await estimateStep(await resolveConfig(TRAIN_SECTIONS, { argv, presets }), SIZES, ranks);
      return [calls(step, "gather").length, gradients(step)];
    };
    assert.deepEqual(await read({ dp_replicate_size: 2, dp_shard_size: 2 }), [5, 3]);
    assert.deepEqual(await read({ dp_shard_size: 4 }), [5, 0]);
    await assert.rejects(read({ dp_replicate_size: 2, dp_shard_size: 4 }), /mesh: expected a mesh of 4 ranks, got 2x4/);
    await assert.rejects(
      stepWith({ sharding_strategy: "HYBRID_SHARD" }, "--strategy", "ddp"),
      /mesh: expected strategy fsdp/,
    );
  });

  it("is less than flags, and refused with what it contradicts", async () => {
    const step = await stepWith({ reshard_after_forward: false }, "--reshard-after-forward");
    assert.equal(calls(step, "gather").length, 5);
    const presets = foreignPresets({}, []);
    for (
      const [argv, said] of [
        [["--fsdp", "false", "--fsdp-config", "a.json"], /fsdpConfig: expected fsdp: true, got fsdp: false/],
        [["--fsdp", "true", "--accelerate-config", "a.yaml"], /accelerateConfig: expected one configuration/],
      ] as const
    ) await assert.rejects(resolveConfig(TRAIN_SECTIONS, { argv: [...argv], presets }), said);
  });
});

for (
  const [name, flag, files] of [
    ["seed_001.json", "--fsdp-config", true],
    ["seed_000.yaml", "--accelerate-config", false],
    ["seed_003.yaml", "--accelerate-config", false],
  ] as const
) {
  it(`${name} trains on two ranks, and its checkpoints hold what it says`, TIMEOUT, async () => {
    using folder = temporaryDirectory();
    const { code, stderr } = await run(flagsIn(folder, flag, fixture(name), "--steps", "2", "--save-every", "2"));
    assert.equal(code, 0, stderr);
    assert.match(stderr, /FSDP over 2 ranks/);
    assert.equal(/fsdp_use_orig_params: parameters are always the model's own/.test(stderr), !files);
    assert.equal(losses(folder).size, 2);
    const saved = readdirSync(folder.file("out/checkpoint-2"));
    assert.equal(saved.includes("model"), files);
    if (files) assert.ok(readdirSync(folder.file("out/checkpoint-2/model")).includes("model.safetensors"));
    assert.ok(saved.some((file) => file.startsWith("shard-00002-")));
  });
}

it("the BertLayer form of a file is refused by the name of the model's block", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const { code, stderr } = await run(flagsIn(folder, "--accelerate-config", fixture("seed_000_bert.yaml")));
  assert.equal(code, 2, stderr);
  assert.match(stderr, /expected a class of LlamaForCausalLM, got 'BertLayer'\. Its block is 'LlamaDecoderLayer'/);
});

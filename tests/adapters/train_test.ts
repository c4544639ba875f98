/** Runs that train an adapter, seen from outside. @module */
import assert from "node:assert/strict";
import { cpSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { after } from "node:test";
import { launch, openModel } from "../../mod.ts";
import { ConfigError } from "../../doors/errors.ts";
import { openProcessGroup } from "../../doors/comm.ts";
import { openDevice } from "../../doors/device.ts";
import { adapt, loraOptionsOf } from "../../src/train/adapter_config.ts";
import { loraOf } from "../../src/adapters/lora.ts";
import { longTest, onlyInAll, sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { keepRanks } from "../train/kept_ranks.ts";
import { type Ended, essence, flagsIn, losses, metricLines } from "../train/runs.ts";

const kept = keepRanks();
after(() => kept[Symbol.dispose]());
const { run } = kept;

const TIMEOUT = { timeout: 60_000 };

/** A model, and a folder for runs that adapt it. */
const folder = temporaryDirectory();
after(() => folder[Symbol.dispose]());
let base: Promise<string> | undefined;

function succeeds(ended: Ended): Ended {
  assert.equal(ended.code, 0, ended.stdout + ended.stderr);
  return ended;
}

async function makeBase(): Promise<string> {
  succeeds(await run(flagsIn(folder, "--steps", "2", "--out", folder.file("base")), { ranks: 1 }));
  return folder.file("base/model");
}

/** Flags of a run that adapts the model. */
async function adapting(out: string, ...more: readonly string[]): Promise<readonly string[]> {
  const model = await (base ??= makeBase());
  return flagsIn(folder, "--steps", "6", "--model", model, "--out", folder.file(out), ...more);
}

const LORA = ["--lora-r", "4", "--lora-alpha", "16", "--lora-dropout", "0.1", "--lora-target-modules", "all-linear"];

test(
  "a run trains an adapter, stops and goes on, sharded, replicated, on one rank, to the same bits",
  TIMEOUT,
  async () => {
    const ended = succeeds(await run(await adapting("whole", ...LORA, "--save-every", "3")));
    const whole = metricLines(folder, "whole").map(essence);
    assert.equal(whole.length, 6);
    const peaks = /Peak memory of a rank: (.+) \(predicted (.+)\)/.exec(ended.stderr);
    assert.equal(peaks?.[1], peaks?.[2]);
    assert.match(
      ended.stderr,
      /Wrote the adapter to '.*whole\/model': to train it further, give '--adapter .*whole\/model'/,
    );
    succeeds(await run(await adapting("half", ...LORA, "--stop-after", "3")));
    succeeds(await run(await adapting("half", ...LORA, "--resume", "auto", "--activation-checkpointing", "full")));
    assert.deepEqual(metricLines(folder, "half").map(essence), whole);
    succeeds(await run(await adapting("alone", ...LORA, "--micro-batches", "2"), { ranks: 1 }));
    assert.deepEqual(metricLines(folder, "alone").map(essence), whole);
    for (const strategy of onlyInAll(["ddp"])) {
      succeeds(await run(await adapting("replicated", ...LORA, "--strategy", strategy)));
      assert.deepEqual(metricLines(folder, "replicated").map(essence), whole);
    }
    const files = ["whole", "half"].map((out) => readFileSync(folder.file(`${out}/model/adapter_model.safetensors`)));
    assert.ok(files[0] !== undefined && files[1] !== undefined && files[0].equals(files[1]), "the adapters differ");
    const names = readdirSync(folder.file("whole/model"));
    assert.ok(names.includes("adapter_config.json") && !names.includes("model.safetensors"), names.join());
    const config = JSON.parse(readFileSync(folder.file("whole/model/adapter_config.json"), "utf8"));
    assert.equal(config.base_model_name_or_path, folder.file("base/model"));
    // A checkpoint holds what is trained: the adapter and its states.
    const manifest: { readonly model: readonly { readonly name: string }[] } = JSON.parse(
      readFileSync(folder.file("whole/checkpoint-6/manifest.json"), "utf8"),
    );
    const saved = manifest.model.map(({ name }) => name);
    assert.ok(saved.length > 0 && saved.every((name) => /\.lora_[AB]\.weight$/.test(name)), saved.join());
  },
);

longTest("a run trains an adapter further, and whole modules beside it", TIMEOUT, async () => {
  const targets = ["--lora-target-modules", "q_proj,v_proj", "--lora-modules-to-save", "lm_head"];
  succeeds(await run(await adapting("first", "--lora-r", "2", ...targets)));
  const first = losses(folder, "first");
  succeeds(await run(await adapting("further", "--adapter", folder.file("first/model"))));
  assert.ok((losses(folder, "further").get(1) ?? NaN) < (first.get(1) ?? NaN));
  await using own = await launch();
  const model = await openModel(own, folder.file("base/model"), { adapter: folder.file("further/model") });
  assert.deepEqual(loraOf(model)?.savedModules, ["lm_head"]);
  assert.equal(loraOf(model)?.layers.size, 4);
});

longTest("a run goes on with the adapter of its checkpoint alone", TIMEOUT, async () => {
  const alone = { ranks: 1 };
  const flags = ["--lora-r", "4", "--lora-alpha", "16", "--lora-target-modules", "q_proj,v_proj"];
  succeeds(await run(await adapting("going", ...flags, "--stop-after", "3"), alone));
  const resumes = async (...more: readonly string[]): Promise<Ended> =>
    await run(await adapting("going", ...more, "--resume", "auto"), alone);
  const refused = async (message: RegExp, ...more: readonly string[]): Promise<void> => {
    const { code, stderr } = await resumes(...more);
    assert.notEqual(code, 0);
    assert.match(stderr, message);
  };
  await refused(
    /loraAlpha: expected the adapter multiplied by 4 \(alpha \/ r, .*\), as in the checkpoint, got 8/,
    ...flags.with(3, "32"),
  );
  await refused(/loraAlpha: expected the adapter multiplied by 4 .*, got 8/, ...flags, "--use-rslora");
  const other = folder.file("base of other weights");
  cpSync(folder.file("base/model"), other, { recursive: true });
  const weights = readFileSync(`${other}/model.safetensors`);
  weights.writeFloatLE(weights.readFloatLE(weights.length - 4) + 1, weights.length - 4);
  writeFileSync(`${other}/model.safetensors`, weights);
  await refused(
    /model: expected the weights that the checkpoint's adapter was trained on \(digest \w{16}\), got '.*of other weights'/,
    ...flags,
    "--model",
    other,
  );
  await refused(
    /Expected the adapter of the model, got '.*v_proj\.lora_A\.weight' besides/,
    ...flags.with(5, "q_proj"),
  );
  await refused(/got '.*lora_A\.weight' of a run that trains an adapter, whose checkpoints hold it alone/);
  const checkpoint = await run(await adapting("other", "--adapter", folder.file("going/checkpoint-3")), alone);
  assert.notEqual(checkpoint.code, 0);
  assert.match(checkpoint.stderr, /checkpoint-3' is a sharded checkpoint and no folder of PEFT; go on from it with/);
  const { stderr } = succeeds(await resumes(...flags, "--lora-dropout", "0.5"));
  assert.match(stderr, /Setting changed since the checkpoint: loraDropout was none, is 0\.5/);
  const whole = await run(await adapting("other", "--adapter", folder.file("going")), alone);
  assert.notEqual(whole.code, 0);
  assert.match(whole.stderr, /there is no such file; the adapter of the run is '.*going\/model'/);
  const replicated = await adapting("other", ...flags, "--strategy", "ddp", "--frozen-dtype", "bfloat16");
  assert.match(
    (await run(replicated, alone)).stderr,
    /frozenDtype: expected strategy fsdp, got 'ddp', which keeps frozen weights in float32; use strategy fsdp, or remove frozenDtype/,
  );
  const never = await run(await adapting("other", "--lora-r", "4", "--lora-dropout", "1"), alone);
  assert.match(never.stderr, /--lora-dropout: expected .*< 1, got 1/);
});

test("modules that no adapter can be beside are refused by the keys that choose them", async () => {
  const device = await openDevice("cpu", { memoryBytes: 2 ** 24 });
  const group = await openProcessGroup({ device });
  const sizes = {
    vocab_size: 64,
    hidden_size: 32,
    intermediate_size: 48,
    num_hidden_layers: 1,
    num_attention_heads: 4,
  };
  const none = { loraR: 4, loraTargetModules: [], loraExcludeModules: [], loraModulesToSave: [] };
  const cases = [
    { loraTargetModules: ["q_prj"] },
    { loraTargetModules: ["(q_proj"] },
    { loraTargetModules: ["norm"] },
    { loraModulesToSave: ["lm_haed"] },
  ] as const;
  for (const chosen of cases) {
    const model = await openModel({ device, group }, { model_type: "llama", ...sizes });
    const quantized = {
      loadIn4bit: false,
      loadIn8bit: false,
      bnb4bitQuantType: "nf4",
      bnb4bitUseDoubleQuant: false,
    } as const;
    const config = { ...none, useRslora: false, frozenDtype: "file", ...quantized, ...chosen } as const;
    assert.throws(() => adapt(model, config, undefined), (error) => {
      assert.ok(error instanceof ConfigError, String(error));
      assert.match(
        error.message,
        /loraTargetModules, .*: expected modules of the model that can have an adapter, got /,
      );
      return true;
    });
  }
  device.dispose();
});

test("settings of an adapter are refused where they say nothing, or two things", () => {
  const none = {
    loraTargetModules: [],
    loraExcludeModules: [],
    loraModulesToSave: [],
    useRslora: false,
    frozenDtype: "file",
    loadIn4bit: false,
    loadIn8bit: false,
    bnb4bitQuantType: "nf4",
    bnb4bitUseDoubleQuant: false,
  } as const;
  assert.equal(loraOptionsOf(none), undefined);
  const wrong = [
    [
      { ...none, loraAlpha: 8 },
      /loraAlpha: expected loraR to be set too, got 8 without it; set loraR, or remove loraAlpha/,
    ],
    [{ ...none, loraTargetModules: ["q_proj"] }, /loraTargetModules: expected loraR to be set too/],
    [{ ...none, useRslora: true }, /useRslora: expected loraR to be set too/],
    [
      { ...none, frozenDtype: "bfloat16" },
      /frozenDtype: expected loraR or adapter to be set too, got 'bfloat16' without it/,
    ],
    [{ ...none, loadIn4bit: true }, /loadIn4bit: expected loraR or adapter to be set too, got true without it/],
    [
      { ...none, loraR: 4, loadIn4bit: true, loadIn8bit: true },
      /loadIn8bit: expected loadIn4bit or loadIn8bit, got both/,
    ],
    [{ ...none, loraR: 4, bnb4bitUseDoubleQuant: true }, /bnb4bitUseDoubleQuant: expected loadIn4bit to be set too/],
    [
      { ...none, loraR: 4, loadIn8bit: true, frozenDtype: "bfloat16" },
      /frozenDtype: expected 'file' with quantized weights/,
    ],
    [{ ...none, loraR: 4, adapter: "a" }, /loraR: expected either adapter or loraR, got both/],
    [{ ...none, loraR: 4, loraTargetModules: [".*q", "k_proj"] }, /expected one regular expression, or ends of names/],
  ] as const;
  for (const [config, message] of wrong) {
    assert.throws(() => loraOptionsOf(config), (error) => error instanceof ConfigError && message.test(error.message));
  }
  const chosen = (...names: readonly string[]): unknown =>
    loraOptionsOf({ ...none, loraR: 4, loraTargetModules: names })?.targetModules;
  assert.deepEqual([chosen(), chosen("all-linear"), chosen(".*q_proj"), chosen("q_proj")], [
    ...["all-linear", "all-linear", ".*q_proj"],
    ["q_proj"],
  ]);
  assert.deepEqual(chosen("q_proj,v_proj", "o_proj"), ["q_proj", "v_proj", "o_proj"]);
});

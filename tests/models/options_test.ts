/**
 * Options of `tests/parity/options.json` that are refused, and what directories hold that others wrote. What the other options
 * compute is compared by `reference_test.ts`, as far as they are fixtures, and by `npm run reference`.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import * as z from "zod";
import { openDevice } from "../../doors/device.ts";
import { ArgumentError, ConfigError, UnsupportedError } from "../../doors/errors.ts";
import { buildModel, initializeParameters } from "../../doors/nn.ts";
import { launch, noGrad, openModel, tensor } from "../../mod.ts";
import { ZOO, zooModels } from "../../scripts/zoo/families.ts";
import { nameTensors } from "../../src/checkpoint/hugging_face/names.ts";
import { int32, uint8 } from "../../src/dtype.ts";
import { Logger } from "../../src/runtime/log.ts";
import { fixturePath, readJson } from "../support/golden.ts";

const record = z.record(z.string(), z.unknown());
const { base, options } = z.object({
  base: record,
  options: z.record(z.string(), z.looseObject({ config: record, refused: z.string().optional() })),
}).parse(JSON.parse(readFileSync(new URL("../parity/options.json", import.meta.url), "utf8")));

const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 26 });

test("every family has three options and more beyond its first fixtures", () => {
  const families = Object.values(options).filter(({ refused }) => refused === undefined)
    .map(({ config }) => config["model_type"]);
  for (const family of ZOO) {
    const [zoo] = zooModels(family);
    assert.ok(families.filter((one) => one === zoo?.hfConfig["model_type"]).length >= 3, family);
  }
});

for (const [name, { config, refused }] of Object.entries(options)) {
  test(`buildModel() ${refused === undefined ? "builds" : "refuses"} ${name}`, () => {
    const spelled = config["model_type"] === "gpt2" ? { n_positions: 64, n_embd: 16, n_layer: 2, n_head: 4 } : {};
    const build = () => buildModel(device, { ...base, ...spelled, ...config });
    if (refused === undefined) build();
    else {
      assert.throws(build, (error) => error instanceof UnsupportedError && error.message.startsWith(refused));
    }
  });
}

test("openModel() tells once, by name, which tensors of others it leaves unread", async () => {
  await using run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 26 });
  const wanted = {
    "gpt2-hub": "h.*.attn.bias (2), h.*.attn.masked_bias (2)",
    "qwen3_5-inside": "model.visual.pos_embed.weight, mtp.fc.weight",
    "glm4_moe_lite-groups": "model.layers.*.eh_proj.weight, model.layers.*.embed_tokens.weight",
    "llama-tied": undefined,
  };
  for (const [name, names] of Object.entries(wanted)) {
    const said: string[] = [];
    const log = new Logger({ sink: ({ message }) => said.push(message) });
    await openModel(run, fixturePath(name), { fsdpPlan: "auto", log });
    const unread = said.filter((line) => line.startsWith("Left tensors"));
    assert.deepEqual(unread, names === undefined ? [] : [`Left tensors of '${fixturePath(name)}' unread: ${names}`]);
  }
});

test("only what transformers leaves alone is left alone", () => {
  const stored = { code: "F32", shape: [1], parts: [] };
  const ignoredOf = (family: string, ...names: readonly string[]): readonly string[] => {
    const [zoo] = zooModels(family);
    const model = buildModel(device, zoo?.hfConfig ?? {});
    return nameTensors(model, new Map(names.map((name) => [name, { ...stored, name }]))).ignored;
  };
  const extra = ["mtp.fc.weight", "model.layers.47.x", "model.layers.78.x", "h.0.attn.bias", "model.visual.x"];
  assert.deepEqual(ignoredOf("llama", ...extra), []);
  assert.deepEqual(ignoredOf("deepseek_v2", ...extra), []);
  assert.deepEqual(ignoredOf("qwen3_next", ...extra), ["mtp.fc.weight"]);
  assert.deepEqual(ignoredOf("qwen3_5_moe", ...extra), ["mtp.fc.weight", "model.visual.x"]);
  assert.deepEqual(ignoredOf("glm4_moe_lite", ...extra), ["model.layers.47.x"]);
  assert.deepEqual(ignoredOf("glm_moe_dsa", ...extra), ["model.layers.78.x"]);
  assert.deepEqual(ignoredOf("gpt2", ...extra), ["h.0.attn.bias"]);
  const images = ["vision_tower.a", "model.vision_tower.b", "multi_modal_projector.c", "model.layers.0.vision_tower"];
  assert.deepEqual(ignoredOf("gemma3", ...images), images.slice(0, 3));
});

test("a composite config stands for its text model, and is refused without one or with compressed weights", () => {
  const [zoo] = zooModels("qwen3_5");
  const { model_type: _, ...text } = zoo?.hfConfig ?? {};
  const model = buildModel(device, { model_type: "qwen3_5", tie_word_embeddings: true, text_config: text });
  assert.deepEqual(model.hfConfig, { model_type: "qwen3_5_text", ...text });
  assert.throws(
    () => buildModel(device, { model_type: "qwen3_5_moe" }),
    (error) =>
      error instanceof ConfigError &&
      /config\.json text_config: expected an object, the qwen3_5_moe_text inside of qwen3_5_moe, got/.test(
        error.message,
      ),
  );
  const compressed = { model_type: "qwen3_5", text_config: text, quantization_config: { quant_method: "fp8" } };
  assert.throws(() => buildModel(device, compressed), /Cannot use quantization_config/);
});

test("the text model of a Gemma 3 that sees images has the names of either version of transformers", async () => {
  const text = readJson("gemma3-pattern/config.json");
  const names = (prefix: string) => {
    const model = buildModel(device, { model_type: "gemma3", text_config: text });
    const of = (name: string): string => name.startsWith("model.") ? `${prefix}${name.slice("model.".length)}` : name;
    const stored = [...model.namedParameters()].map(([name, { shape }]) => ({
      name: name.startsWith("lm_head") && prefix.startsWith("language") ? `language_model.${name}` : of(name),
      code: "F32",
      shape,
      parts: [],
    }));
    return nameTensors(model, new Map(stored.map((tensor) => [tensor.name, tensor]))).ignored;
  };
  for (const prefix of ["model.", "model.language_model.", "language_model.model."]) {
    assert.deepEqual(names(prefix), [], prefix);
  }
});

test("logitsToKeep counts from the end, and 0 is all", () => {
  const [zoo] = zooModels("llama");
  const model = buildModel(device, zoo?.hfConfig ?? {});
  initializeParameters(model, 1);
  const inputIds = tensor(device, Int32Array.of(1, 2, 3, 4), { shape: [1, 4], dtype: int32 });
  const scores = (logitsToKeep?: number) => noGrad(() => model.call({ inputIds, logitsToKeep })).logits?.toArray();
  const all = scores();
  assert.deepEqual(scores(0), all);
  assert.deepEqual(scores(9), all);
  const last = all?.slice(-model.vocabSize) ?? [];
  const one = scores(1) ?? [];
  assert.equal(one.length, model.vocabSize);
  for (const [i, value] of last.entries()) assert.ok(Math.abs(value - (one[i] ?? NaN)) < 1e-6);
  for (const wrong of [-1, 0.5, NaN]) assert.throws(() => scores(wrong), ArgumentError);
});

test("a mask has an element for each token, in every family", () => {
  const inputIds = tensor(device, new Int32Array(6), { shape: [2, 3], dtype: int32 });
  for (const family of ZOO) {
    const [zoo] = zooModels(family);
    const model = buildModel(device, zoo?.hfConfig ?? {});
    initializeParameters(model, 1);
    for (const shape of [[1, 3], [2, 2], [3]]) {
      const attentionMask = tensor(device, new Uint8Array(shape.reduce((a, b) => a * b)), { shape, dtype: uint8 });
      assert.throws(() => noGrad(() => model.call({ inputIds, attentionMask })), (error) => {
        return error instanceof ArgumentError &&
          error.message ===
            `Cannot use an attentionMask [${shape.join(", ")}]: it must be [2, 3], an element for each token`;
      }, family);
    }
    for (const parameter of model.parameters()) parameter.dispose();
  }
});

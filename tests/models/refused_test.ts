/** Options that transformers has for every model and that change what is computed are refused by name. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../doors/device.ts";
import { ConfigError, UnsupportedError } from "../../doors/errors.ts";
import { buildModel } from "../../doors/nn.ts";
import { ZOO, zooModels } from "../../scripts/zoo/families.ts";

const REFUSED: Readonly<Record<string, unknown>> = {
  is_causal: false,
  per_layer_config: { 0: { skip: ["mlp"] } },
  quantization_config: { quant_method: "mxfp4" },
};

test("every family refuses two-sided attention, layers with options of their own, and compressed weights", async () => {
  const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 24 });
  for (const family of ZOO) {
    const [zoo] = zooModels(family);
    assert.ok(zoo !== undefined);
    for (const [key, value] of Object.entries(REFUSED)) {
      assert.throws(() => buildModel(device, { ...zoo.hfConfig, [key]: value }), (error) => {
        return error instanceof UnsupportedError &&
          error.message.startsWith(`Cannot use ${key} ${JSON.stringify(value)}: it is not implemented, `);
      });
    }
    buildModel(device, { ...zoo.hfConfig, is_causal: true, per_layer_config: null, quantization_config: null });
  }
  device.dispose();
});

test("every family refuses numbers of layers and experts that fill the host's memory, at once and with what they would need", async () => {
  const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 24 });
  const EXPERTS = ["n_routed_experts", "num_local_experts", "num_experts"];
  for (const family of ZOO) {
    const [zoo] = zooModels(family);
    assert.ok(zoo !== undefined);
    const inner = zoo.hfConfig["text_config"];
    const config: Readonly<Record<string, unknown>> = { ...zoo.hfConfig, ...Object(inner) };
    const keys = ["num_hidden_layers", "n_layer", ...EXPERTS].filter((key) => typeof config[key] === "number");
    assert.ok(keys.length > 0);
    for (const key of keys) {
      for (const value of [1e6, 1e9, 1e12]) {
        const changed = { [key]: value, layer_types: undefined, mlp_layer_types: undefined };
        const asked = typeof inner === "object" && inner !== null
          ? { ...zoo.hfConfig, text_config: { ...inner, ...changed } }
          : { ...zoo.hfConfig, ...changed };
        const begun = performance.now();
        assert.throws(() => buildModel(device, asked), (error) => {
          assert.ok(error instanceof ConfigError, String(error));
          assert.match(
            error.message,
            new RegExp(`config\\.json ${key}: expected at most \\d+ .*, got ${value}, which would need about \\d+ GB`),
          );
          return true;
        }, `${family} ${key}`);
        assert.ok(performance.now() - begun < 1000);
      }
    }
  }
  device.dispose();
});

test("buildModel() refuses sizes beyond what is counted, with the largest parameter and the bytes of all", async () => {
  const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 24 });
  const [zoo] = zooModels("llama");
  for (const [key, value] of [["hidden_size", 8e15], ["vocab_size", 1e15], ["intermediate_size", 1e13]] as const) {
    assert.throws(
      () => buildModel(device, { ...zoo?.hfConfig, [key]: value }),
      (error) =>
        error instanceof ConfigError &&
        /config\.json: expected sizes of at most \d+ parameters, got about .*which would need .* bytes in float32; the largest is '[\w.]+' \[.*\]/
          .test(error.message),
    );
  }
  device.dispose();
});

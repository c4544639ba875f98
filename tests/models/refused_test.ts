/** Options that transformers has for every model and that change what is computed are refused by name. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../../doors/device.ts";
import { UnsupportedError } from "../../doors/errors.ts";
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

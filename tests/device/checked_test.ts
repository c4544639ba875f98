/**
 * Whole steps on a device that checks every access of every kernel, and what the checks find.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import {
  AdamW,
  bfloat16,
  type CausalLm,
  clipGradNorm,
  float32,
  fullyShard,
  int32,
  replicate,
  scope,
  SGD,
  tensor,
} from "../../mod.ts";
import { buildModel, initializeParameters } from "../../doors/nn.ts";
import { openDevice } from "../../doors/device.ts";
import { openProcessGroup, type ProcessGroup } from "../../doors/comm.ts";
import { devicePtr } from "../../src/device/device.ts";
import { CheckedDevice } from "../support/checked_device.ts";

const open = async (): Promise<CheckedDevice> => new CheckedDevice(await openDevice("cpu", { memoryBytes: 2 ** 26 }));

const MODES: Readonly<Record<string, (model: CausalLm, group: ProcessGroup) => void>> = {
  plain: () => {},
  replicated: (model, group) => void replicate(model, { mesh: group }),
  sharded: (model, group) => {
    for (const block of model.layers) fullyShard(block, { mesh: group });
    fullyShard(model, { mesh: group });
  },
  "sharded in bfloat16": (model, group) => {
    const precision = { paramDtype: bfloat16, reduceDtype: float32 };
    for (const block of model.layers) fullyShard(block, { mesh: group, precision });
    fullyShard(model, { mesh: group, precision });
  },
};

for (const [mode, parallelize] of Object.entries(MODES)) {
  test(`steps of a ${mode} model touch allocated memory only, and overlap nothing`, async () => {
    const device = await open();
    using group = await openProcessGroup({ device });
    const model = buildModel(device, {
      model_type: "llama",
      vocab_size: 37,
      hidden_size: 24,
      intermediate_size: 20,
      num_hidden_layers: 2,
      num_attention_heads: 4,
      num_key_value_heads: 2,
      max_position_embeddings: 9,
    });
    parallelize(model, group);
    initializeParameters(model, 1);
    for (const optimizer of [new AdamW(model.parameters()), new SGD(model.parameters(), { momentum: 0.9 })]) {
      for (let step = 0; step < 2; step++) {
        using _frame = scope();
        optimizer.zeroGrad();
        const ids = tensor(device, Array.from({ length: 18 }, (_, i) => (7 * i + step) % 37), {
          shape: [2, 9],
          dtype: int32,
        });
        model.call({ inputIds: ids, labels: ids }).loss?.backward();
        clipGradNorm(model.parameters(), 0.1);
        optimizer.step();
      }
      optimizer.dispose();
    }
    const needed = [
      "gemm",
      "attentionBackward",
      "rmsNormBackward",
      "crossEntropy",
      "rope",
      "clipFactor",
      "adamw",
      "sgd",
    ];
    for (const kernel of needed) assert.ok((device.calls.get(kernel) ?? 0) > 0, `${kernel} was not called`);
  });
}

test("an address outside any block, and one that is written while it is read, are found", async () => {
  const device = await open();
  const block = device.allocator.allocate(64, "test");
  const fill = (n: number, dst: number): void =>
    device.kernels.fill({ dtype: float32, n, value: 0, dst: devicePtr(dst) });
  fill(16, block);
  assert.throws(() => fill(17, block), /fill: 'dst' \(writes 68 bytes at \d+\) lies in no block/);
  assert.throws(() => fill(1, block - 4), /lies in no block/);
  const args = { dtype: float32, op: "neg", n: 4, p0: 0, p1: 0 } as const;
  device.kernels.unary({ ...args, dst: block, src: block });
  const dst = devicePtr(block + 4);
  assert.throws(() => device.kernels.unary({ ...args, dst, src: block }), /'dst' .* overlaps 'src'/);
  device.allocator.free(block);
  assert.throws(() => fill(1, block), /lies in no block/);
});

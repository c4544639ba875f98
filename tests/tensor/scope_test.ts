/** Tensors that no scope frees: where memory runs out, they are named as the cause, and only where they are it. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { noGrad } from "../../src/autograd/mode.ts";
import type { Device } from "../../src/device/device.ts";
import { openDevice } from "../../src/device/registry.ts";
import { int32 } from "../../src/dtype.ts";
import { OutOfMemoryError } from "../../src/errors.ts";
import type { CausalLm } from "../../src/models/causal_lm.ts";
import { buildModel } from "../../src/models/registry.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { tensor, zeros } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";

const FORGOTTEN =
  /Largest owners: (?:[\w ]+: [\d.]+ [KM]iB, ){4}[\w ]+: [\d.]+ [KM]iB(?: \(.*\))?\. (\d+) tensors outlive every scope and hold ([\d.]+) MiB with the graphs behind them: begin the body of the loop that makes them with 'using _frame = scope\(\)', and evaluate by evaluate\(\) or inside noGrad\(\)$/;
const SMALLER = /Use fewer samples per micro-batch \(raise '--micro-batches'\), a shorter sequence, or more ranks$/;

async function open(): Promise<Device> {
  return await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 24 });
}

function modelOn(device: Device): CausalLm {
  const sizes = {
    vocab_size: 64,
    hidden_size: 32,
    intermediate_size: 48,
    num_hidden_layers: 2,
    num_attention_heads: 2,
  };
  const model = buildModel(device, { model_type: "llama", ...sizes });
  initializeParameters(model, 1);
  return model;
}

/** The loss of a batch, as a loop that knows no scope computes it. */
function lossOf(model: CausalLm, batch: number): Tensor {
  using ids = tensor(model.device, new Int32Array(batch * 64), { shape: [batch, 64], dtype: int32 });
  const { loss } = model.call({ inputIds: ids, labels: ids });
  return loss ?? assert.fail("no loss");
}

function outOfMemory(run: () => void): string {
  try {
    run();
  } catch (error) {
    assert.ok(error instanceof OutOfMemoryError, String(error));
    return error.message;
  }
  return assert.fail("there was memory enough");
}

test("an evaluation loop without a scope runs out of memory with the number of its losses, what they hold, and the remedy", async () => {
  const device = await open();
  const model = modelOn(device);
  const losses: Tensor[] = [];
  const message = outOfMemory(() => {
    for (let i = 0; i < 1000; i++) losses.push(lossOf(model, 2));
  });
  const [, count, held] = FORGOTTEN.exec(message) ?? assert.fail(message);
  const { inUse } = device.allocator.stats;
  // The ids of the batch that failed are there too.
  assert.ok(losses.length > 3 && Number(count) === losses.length + 1, `${count} tensors, ${losses.length} losses`);
  const heldBytes = Number(held) * 2 ** 20;
  assert.ok(heldBytes > 0.9 * inUse && heldBytes < inUse, `${held} MiB of ${inUse}`);
  for (const loss of losses) loss.dispose();
  const after = outOfMemory(() => zeros(device, [2 ** 24]));
  assert.match(after, SMALLER, "what was disposed is not the cause");
  device.dispose();
});

test("a loop with a scope in it, or inside noGrad(), does not run out of memory", async () => {
  const device = await open();
  const model = modelOn(device);
  for (let i = 0; i < 50; i++) {
    using _frame = scope();
    lossOf(model, 2);
  }
  for (let i = 0; i < 50; i++) noGrad(() => lossOf(model, 2)).dispose();
  device.dispose();
});

test("a batch that is too large is told so, whatever small tensors there are outside of scopes", async () => {
  const device = await open();
  const model = modelOn(device);
  const kept = Array.from({ length: 5 }, () => zeros(device, [10]));
  const message = outOfMemory(() => {
    using _frame = scope();
    lossOf(model, 256);
  });
  assert.match(message, SMALLER);
  assert.equal(kept.length, 5);
  device.dispose();
});

test("tensors that persist() took out of their scope are kept on purpose", async () => {
  const device = await open();
  for (let i = 0; i < 2; i++) zeros(device, [2 ** 20]).persist();
  assert.match(outOfMemory(() => zeros(device, [2 ** 20])), SMALLER);
  for (let i = 0; i < 40; i++) {
    using frame = scope();
    frame.keep(zeros(device, [100]));
  }
  {
    using frame = scope();
    using gone = zeros(device, [100]);
    gone.dispose();
    frame.keep(gone);
  }
  assert.equal(device.allocator.unscoped.size, 40, "what is disposed is no tensor any more");
  assert.match(outOfMemory(() => zeros(device, [2 ** 20])), SMALLER, "40 × 512 bytes would not do");
  device.dispose();
});

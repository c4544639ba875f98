/** Losses of single tokens: those of logits, and the same bits whatever rows are beside them. @module */
import assert from "node:assert/strict";
import { describe, it } from "node:test";
import { zooModels } from "../../scripts/zoo/families.ts";
import { noGrad } from "../../src/autograd/mode.ts";
import type { MicroBatch } from "../../src/data/micro_batch.ts";
import { openDevice } from "../../src/device/registry.ts";
import { buildModel } from "../../src/models/registry.ts";
import { tokenScores } from "../../src/nn/functional.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { bfloat16, float32, int32 } from "../../src/dtype.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import { inputsOf } from "../../src/train/backward.ts";
import { scoreTokens } from "../../src/train/token_scores.ts";

const wasm = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 28 });
const native = await openDevice("cpu", { cpuMath: "native", memoryBytes: 2 ** 28 });

/** Rows of unequal lengths, padded to the longest; the first two tokens of each have no label. */
function rowsOf(lengths: readonly number[], vocab: number): MicroBatch {
  const seq = Math.max(...lengths);
  const [inputIds, labels] = [new Int32Array(lengths.length * seq), new Int32Array(lengths.length * seq).fill(-100)];
  for (const [row, length] of lengths.entries()) {
    for (let i = 0; i < length; i++) {
      inputIds[row * seq + i] = 1 + (length * 7 + i * i * 3) % (vocab - 1);
      if (i > 1) labels[row * seq + i] = (length + i * 5) % vocab;
    }
  }
  return { inputIds, labels, batch: lengths.length, seq, lengths: Int32Array.from(lengths) };
}

for (const device of [wasm, native]) {
  describe(`scoreTokens() by ${device.mathName}`, () => {
    it("gives the cross-entropy and the largest of the model's logits", () => {
      const [{ hfConfig } = assert.fail()] = zooModels("llama");
      using _frame = scope();
      const model = buildModel(device, hfConfig).eval();
      initializeParameters(model, 3);
      const rows = rowsOf([6, 4], model.vocabSize);
      const { losses, likeliest } = scoreTokens(model, rows);
      const { labels: _, ...inputs } = inputsOf(model, rows, device);
      const { logits = assert.fail() } = noGrad(() => model.call(inputs));
      const values = logits.toArray();
      for (const [place, label] of rows.labels.entries()) {
        const row = values.subarray(place * model.vocabSize, (place + 1) * model.vocabSize);
        const most = Math.max(...row);
        assert.equal(likeliest[place], row.indexOf(most));
        const sum = Array.from(row, (value) => Math.exp(value - most)).reduce((total, value) => total + value);
        const expected = label < 0 ? 0 : most + Math.log(sum) - (row[label] ?? NaN);
        assert.ok(Math.abs((losses[place] ?? NaN) - expected) < 1e-5, `token ${place}`);
      }
    });
  });
}

describe("tokenScores()", () => {
  it("takes a bias, narrow dtypes and chunks of logits, and refuses a label out of range", () => {
    using _frame = scope();
    const [rows, width, vocab] = [600, 4, 5];
    const values = (n: number, seed: number): number[] =>
      Array.from({ length: n }, (_, i) => Math.fround(Math.sin(i * seed)));
    const hidden = tensor(wasm, values(rows * width, 1.7), { shape: [rows, width] });
    const weight = tensor(wasm, values(vocab * width, 0.9), { shape: [vocab, width] });
    const bias = tensor(wasm, [0, 3, 0, 0, 0.5]);
    const labels = tensor(wasm, Array.from({ length: rows }, (_, i) => i % vocab), { dtype: int32 });
    const { losses, likeliest } = tokenScores(hidden, weight, labels, { bias });
    const logits = hidden.matmul(weight.transpose(0, 1)).add(bias);
    assert.deepEqual([...likeliest.toArray()], [...logits.argmax().toArray()]);
    const expected = logits.softmax().toArray();
    for (const [i, loss] of losses.toArray().entries()) {
      assert.ok(Math.abs(loss + Math.log(expected[i * vocab + i % vocab] ?? NaN)) < 1e-5);
    }
    const capped = tokenScores(hidden, weight, labels, { bias, softcap: 2 });
    const bounded = logits.div(2).tanh().mul(2).softmax().toArray();
    for (const [i, loss] of capped.losses.toArray().entries()) {
      assert.ok(Math.abs(loss + Math.log(bounded[i * vocab + i % vocab] ?? NaN)) < 1e-5);
    }
    const narrow = tokenScores(hidden.to(bfloat16), weight.to(bfloat16), labels, { bias: bias.to(bfloat16) });
    assert.equal(narrow.losses.dtype, float32);
    assert.ok(losses.sub(narrow.losses).abs().max().item() < 0.1);
    const wrong = tensor(wasm, [vocab], { dtype: int32 });
    assert.throws(() => {
      tokenScores(hidden.narrow(0, 0, 1), weight, wrong).losses.toArray();
    }, /label 5/);
  });
});

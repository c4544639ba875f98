/** Several documents in a row: every family keeps them apart, on both kinds of CPU kernels; and what is refused. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, it } from "node:test";
import { ZOO, zooModels } from "../../scripts/zoo/families.ts";
import { noGrad } from "../../src/autograd/mode.ts";
import { openDevice } from "../../src/device/registry.ts";
import { float32, int32 } from "../../src/dtype.ts";
import { ArgumentError, UnsupportedError } from "../../src/errors.ts";
import { buildModel } from "../../src/models/registry.ts";
import { attention } from "../../src/nn/functional.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { tensor, zeros } from "../../src/tensor/create.ts";
import { requireNoLeak, requireSameAsAlone } from "../support/documents.ts";

const wasm = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 28 });
const native = await openDevice("cpu", { cpuMath: "native", memoryBytes: 2 ** 28 });

for (const device of [wasm, native]) {
  describe(`a row of several documents, by ${device.mathName}`, () => {
    for (const family of ZOO) {
      const [{ hfConfig } = assert.fail()] = zooModels(family);
      it(`gives ${family} the loss and gradients of its documents alone`, () => requireSameAsAlone(device, hfConfig));

      it(`lets no token of ${family} hear another document`, () => requireNoLeak(device, hfConfig));
    }
  });
}

/** Calls a family's small model with rows of zeros. */
function callWith(hfConfig: Readonly<Record<string, unknown>>, seq: number, starts: readonly number[], cached = false) {
  const model = buildModel(wasm, hfConfig);
  initializeParameters(model, 3);
  const documentStarts = tensor(wasm, starts, { shape: [1, starts.length], dtype: int32 });
  using cache = model.createCache(seq);
  const pastKeyValues = cached ? cache : undefined;
  return noGrad(() => model.call({ inputIds: zeros(wasm, [1, seq], int32), documentStarts, pastKeyValues }));
}

describe("documentStarts", () => {
  const [{ hfConfig: llama } = assert.fail()] = zooModels("llama");

  it("must be a number for each token", () => {
    assert.throws(() => callWith(llama, 4, [0, 0, 2]), (error) => {
      assert.ok(error instanceof ArgumentError);
      assert.equal(
        error.message,
        "Cannot use documentStarts int32 [1, 3]: they must be int32 [1, 4], for each token the place of its document's first token",
      );
      return true;
    });
  });

  it("do not go with a cache", () => {
    assert.throws(() => callWith(llama, 4, [0, 0, 2, 2], true), (error) => {
      assert.ok(error instanceof ArgumentError);
      assert.equal(
        error.message,
        "Cannot continue texts of several documents in a row: give documentStarts without pastKeyValues, or a row for each document",
      );
      return true;
    });
  });

  it("are refused where longrope turns the row by other angles than its documents", () => {
    const config = JSON.parse(readFileSync(new URL("../fixtures/phi3-longrope/config.json", import.meta.url), "utf8"));
    const short: number = config["original_max_position_embeddings"];
    assert.ok(callWith(config, short, Array.from({ length: short }, (_, i) => i < 2 ? 0 : 2)).logits !== undefined);
    const seq = short + 1;
    assert.throws(() => callWith(config, seq, Array.from({ length: seq }, (_, i) => i < 2 ? 0 : 2)), (error) => {
      assert.ok(error instanceof UnsupportedError);
      assert.equal(
        error.message,
        `Cannot pack documents into rows of ${seq} tokens: the model's "longrope" turns texts of more than ${short} tokens ` +
          `by other angles than shorter ones, and a row has one set of angles. Use rows of at most ${short} tokens, or pack nothing`,
      );
      return true;
    });
  });

  it("need an attention that is causal", () => {
    const x = zeros(wasm, [1, 3, 4]);
    const starts = zeros(wasm, [1, 3], int32);
    const attend = (causal: boolean, documentStarts = starts) =>
      attention(x, x, x, { heads: 1, kvHeads: 1, causal, scale: 1 }, undefined, undefined, documentStarts);
    assert.equal(attend(true).dtype, float32);
    assert.throws(
      () => attend(false),
      /^ArgumentError: Cannot attend within documents if attention is not causal: set 'causal'$/,
    );
    assert.throws(() => attend(true, x), /beginnings of documents must be int32/);
    assert.throws(() => attend(true, zeros(wasm, [3], int32)), /beginnings of documents must be \[1, 3\]/);
  });
});

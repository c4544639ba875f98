/** Generation: what a cache keeps changes no token, on one rank and on several; and what transformers generates. @module */
import assert from "node:assert/strict";
import { existsSync, readdirSync } from "node:fs";
import { describe } from "node:test";
import * as z from "zod";
import { noGrad } from "../../src/autograd/mode.ts";
import { loadHfWeights } from "../../src/checkpoint/hugging_face/load.ts";
import { openDevice } from "../../src/device/registry.ts";
import { int32, uint8 } from "../../src/dtype.ts";
import { ArgumentError, ShapeError, UseAfterDisposeError } from "../../src/errors.ts";
import type { CausalLm, CausalLmInputs } from "../../src/models/causal_lm.ts";
import { buildModel } from "../../src/models/registry.ts";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { generate } from "../../src/train/generate.ts";
import { allClose } from "../support/allclose.ts";
import { fixturePath, readJson } from "../support/golden.ts";
import { sharedTest as it, usualFirst } from "../support/share.ts";
import { valuesOf, world } from "../support/world.ts";
import { generateAll, type GenerateReport, type Mode, SIZES } from "./generate_ranks.ts";

/** Fixtures of what transformers generates. */
const MODELS = readdirSync(fixturePath("")).filter((name) => {
  return existsSync(fixturePath(`${name}/generated.json`));
}).sort();
const generatedSchema = z.object({ prompt: z.array(z.int()), tokens: z.array(z.int()), margin: z.number() });
const prompt = [3, 9, 27];
const TEXTS = [
  { prompt, maxNewTokens: 30, temperature: 0 },
  { prompt, maxNewTokens: 30, seed: 1 },
  { prompt, maxNewTokens: 30, seed: 2 },
  { prompt, maxNewTokens: 30, temperature: 0, seed: 3 },
  { prompt: [11], maxNewTokens: 12, temperature: 0 },
  { prompt, maxNewTokens: 0 },
];

const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 26 });

function modelOf(sizes: Readonly<Record<string, unknown>> = {}): CausalLm {
  const model = buildModel(device, { ...SIZES, ...sizes });
  initializeParameters(model, 7);
  return model;
}

function idsOf(rows: readonly (readonly number[])[]): Tensor {
  return tensor(device, rows.flat(), { shape: [rows.length, rows[0]?.length ?? 0], dtype: int32 });
}

async function reportsOf(size: number, mode: Mode, useCache: boolean): Promise<readonly GenerateReport[]> {
  const texts = TEXTS.map((text) => ({ ...text, useCache }));
  return valuesOf<GenerateReport>(await world(size, generateAll, { data: { ...mode, texts } }));
}

describe("generate()", () => {
  for (
    const [size, strategy, precision] of usualFirst(
      [
        [1, "plain", "float32"],
        [2, "fsdp", "float32"],
        [3, "fsdp", "bfloat16"],
        [2, "ddp", "float32"],
      ] as const,
      (place) => place === 2,
    )
  ) {
    it(`gives with a cache what it gives without, on every rank: ${strategy}, ${precision}, ${size} ranks`, async () => {
      const mode = { strategy, precision };
      const [kept, made] = await Promise.all([true, false].map((useCache) => reportsOf(size, mode, useCache)));
      const [first] = made ?? [];
      assert.ok(first !== undefined && kept !== undefined);
      for (const report of kept) {
        assert.deepEqual(report.texts, first.texts);
        const [before = NaN, one, all] = report.inUse;
        // Cosines and sines of 32 positions, 4 angles each, stay with the model.
        assert.equal(one, before + 2 * 32 * 4 * 4, "the first text left more than rotary tables");
        assert.equal(all, one, "a cache was not freed");
        assert.ok(report.apart <= report.largest * (precision === "float32" ? 1e-6 : 0.02), `off by ${report.apart}`);
        assert.ok(report.largest > 0.1);
      }
      const [greedy = [], one, two, greedyAgain, , none] = first.texts;
      assert.equal(greedy.length, 30);
      assert.ok(new Set(greedy).size > 3, `says too little to tell texts apart: ${greedy}`);
      assert.notDeepEqual(one, two, "a seed decides");
      assert.deepEqual(greedyAgain, greedy, "without chance a seed does not matter");
      assert.deepEqual(none, []);
    });
  }

  it("gives FSDP's ranks the greedy text of one", async () => {
    const [alone] = await reportsOf(1, { strategy: "plain", precision: "float32" }, true);
    const [sharded] = await reportsOf(2, { strategy: "fsdp", precision: "float32" }, true);
    assert.deepEqual(sharded?.texts[0], alone?.texts[0]);
  });

  for (const name of MODELS) {
    it(`gives transformers' greedy tokens, with and without a cache: ${name}`, async () => {
      const { prompt, tokens, margin } = generatedSchema.parse(readJson(`${name}/generated.json`));
      assert.ok(tokens.length > 24 && margin > 1e-3);
      const model = buildModel(device, readJson(`${name}/config.json`));
      await loadHfWeights(model, fixturePath(name));
      for (const useCache of [true, false]) {
        const options = { maxNewTokens: tokens.length, temperature: 0, useCache };
        assert.deepEqual(generate(model, prompt, options), tokens, `cache: ${useCache}`);
      }
      for (const parameter of model.parameters()) parameter.dispose();
    });
  }

  it("gives with a cache what it gives without where all tokens of long texts are turned otherwise", async () => {
    for (const name of ["olmo3-longrope", "qwen3-all_slide", "phimoe-longrope"]) {
      const model = buildModel(device, readJson(`${name}/config.json`));
      await loadHfWeights(model, fixturePath(name));
      for (const prompt of [[1], [2, 1]]) {
        // A number of seed 0 lies within a rounding of the border between two tokens of qwen3-all_slide.
        const options = { maxNewTokens: 30, seed: 1 };
        const [kept, made] = [true, false].map((useCache) => generate(model, prompt, { ...options, useCache }));
        assert.deepEqual(kept, made, name);
      }
      for (const parameter of model.parameters()) parameter.dispose();
    }
  });

  it("ends before the end-of-text token", () => {
    const model = modelOf();
    const greedy = { maxNewTokens: 8, temperature: 0 };
    const text = generate(model, prompt, greedy);
    const eosId = text.at(-1) ?? -1;
    assert.deepEqual(generate(model, prompt, { ...greedy, eosId }), text.slice(0, text.indexOf(eosId)));
  });

  it("ends where the model's configuration ends, by one id or several, unless told otherwise", () => {
    const greedy = { maxNewTokens: 8, temperature: 0 };
    const text = generate(modelOf(), prompt, greedy);
    const [first, second] = [text[3] ?? -1, text[5] ?? -1];
    const before = (...ids: readonly number[]): readonly number[] =>
      text.slice(0, text.findIndex((id) => ids.includes(id)));
    assert.notEqual(text.length, before(first).length);
    assert.deepEqual(generate(modelOf({ eos_token_id: first }), prompt, greedy), before(first));
    const model = modelOf({ eos_token_id: [second, first] });
    assert.deepEqual(model.eosIds, [second, first]);
    assert.deepEqual(generate(model, prompt, greedy), before(first, second));
    assert.deepEqual(generate(model, prompt, { ...greedy, eosId: undefined }), before(first, second));
    assert.deepEqual(generate(model, prompt, { ...greedy, eosId: [] }), text);
    assert.deepEqual(generate(model, prompt, { ...greedy, eosId: second }), before(second));
    assert.deepEqual(generate(modelOf({ text_config: { eos_token_id: first } }), prompt, greedy), before(first));
    assert.deepEqual(generate(modelOf({ eos_token_id: null }), prompt, greedy), text);
  });

  it("refuses ends that are no ids of the model", () => {
    for (const eosId of [32, -1, 1.5, [3, 32], [NaN]]) {
      const message = /eosId must be below 32, the model's number of ids, got (32|-1|1\.5|NaN)$/;
      assert.throws(() => generate(modelOf(), prompt, { maxNewTokens: 1, eosId }), { name: "ArgumentError", message });
    }
    for (const eosId of ["1", ["1"], null, {}]) {
      const options = { maxNewTokens: 1, eosId };
      assert.throws(() => Reflect.apply(generate, undefined, [modelOf(), prompt, options]), {
        name: "ArgumentError",
        message: /^eosId must be below 32, the model's number of ids, got /,
      });
    }
    const message = /eos_token_id of the model's configuration must be below 32, .* got 32; give eosId, or correct/;
    assert.throws(() => generate(modelOf({ eos_token_id: [1, 32] }), prompt, { maxNewTokens: 1 }), { message });
    const wrong = modelOf({ eos_token_id: "2" });
    assert.throws(() => generate(wrong, prompt, { maxNewTokens: 1 }), /eos_token_id: expected a token id or a list/);
  });

  it("reaches the model's last position, and refuses one more", () => {
    const model = modelOf({ max_position_embeddings: 12 });
    assert.equal(generate(model, prompt, { maxNewTokens: 9 }).length, 9);
    const message =
      /Cannot generate 10 tokens after a prompt of 3: the model has 12 positions; lower maxNewTokens or shorten/;
    assert.throws(() => generate(model, prompt, { maxNewTokens: 10 }), { name: "ArgumentError", message });
    assert.throws(() => generate(model, [], { maxNewTokens: 1 }), /Cannot generate from an empty prompt/);
    assert.throws(() => generate(model, prompt, { maxNewTokens: -1 }), /Cannot generate -1 tokens/);
  });

  it("evaluates, and lets each module train again as it did", () => {
    const model = modelOf();
    const [first, second] = model.layers;
    assert.ok(first !== undefined && second !== undefined);
    second.eval();
    const seen: boolean[] = [];
    first.registerForwardHook(() => void seen.push(first.training));
    generate(model, prompt, { maxNewTokens: 2 });
    assert.deepEqual(seen, [false, false]);
    assert.deepEqual([model.training, first.training, second.training], [true, true, false]);
  });

  it("frees the cache when the model fails", () => {
    const model = modelOf();
    generate(model, prompt, { maxNewTokens: 20 });
    const before = device.allocator.stats.inUse;
    assert.throws(() => generate(model, [3, 32], { maxNewTokens: 20 }), /id 32/);
    assert.equal(device.allocator.stats.inUse, before);
  });
});

describe("GenerationCache", () => {
  it("hides padding, which a mask names for its tokens too", () => {
    using _frame = scope();
    const model = modelOf();
    const scores = (rows: readonly (readonly number[])[], mask: readonly (readonly number[])[]): ArrayLike<number> => {
      using cache = model.createCache(6);
      let last: ArrayLike<number> = [];
      const width = rows[0]?.length ?? 0;
      for (const [start, end] of [[0, 3], [3, 4], [4, width]] as const) {
        const attentionMask = tensor(device, mask.flatMap((row) => row.slice(0, end)), {
          shape: [rows.length, end],
          dtype: uint8,
        });
        const inputIds = idsOf(rows.map((row) => row.slice(start, end)));
        const given = { inputIds, attentionMask, pastKeyValues: cache, logitsToKeep: 1 };
        const { logits } = noGrad(() => model.call(given));
        assert.deepEqual(logits?.shape, [rows.length, 1, 32]);
        last = logits?.toArray() ?? [];
      }
      return last;
    };
    const padded = scores([[7, 7, 1, 2, 3], [5, 4, 1, 2, 3]], [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]);
    const other = scores([[9, 8, 1, 2, 3], [5, 4, 1, 2, 3]], [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]);
    allClose(padded, other, { relative: 0, absolute: 0 }, "what is hidden changes nothing");
    const shown = scores([[9, 8, 1, 2, 3], [5, 4, 1, 2, 3]], [[1, 1, 1, 1, 1], [1, 1, 1, 1, 1]]);
    assert.notDeepEqual(padded, shown);
  });

  it("goes on after a call that failed as if there had been none", async () => {
    for (const name of ["qwen3_5-chunks", "qwen3_next-dense", "lfm2-conv_bias", "llama-tied"]) {
      using _frame = scope();
      const model = buildModel(device, readJson(`${name}/config.json`));
      await loadHfWeights(model, fixturePath(name));
      const scores = (failing: boolean): ArrayLike<number> => {
        using cache = model.createCache(6);
        const call = (ids: readonly number[], more: Partial<CausalLmInputs> = {}): ArrayLike<number> | undefined =>
          noGrad(() => model.call({ inputIds: idsOf([ids]), pastKeyValues: cache, ...more }).logits?.toArray());
        call([1, 2, 3]);
        for (let again = 0; failing && again < 2; again++) {
          assert.throws(() => call([4, 5], { positionIds: idsOf([[3, 999]]) }), /position 999/);
          assert.throws(
            () => noGrad(() => model.call({ inputIds: idsOf([[4], [5]]), pastKeyValues: cache })),
            ShapeError,
          );
        }
        call([4, 5]);
        return call([6]) ?? [];
      };
      assert.deepEqual(scores(true), scores(false), name);
      for (const parameter of model.parameters()) parameter.dispose();
    }
  });

  it("refuses more tokens than it has room for, other batches, recorded calls, and a use after its end", () => {
    using _frame = scope();
    const model = modelOf({ max_position_embeddings: 12 });
    const cache = model.createCache(4);
    const call = (rows: readonly (readonly number[])[]): unknown =>
      noGrad(() => model.call({ inputIds: idsOf(rows), pastKeyValues: cache }));
    call([[1, 2, 3]]);
    assert.equal(cache.length, 3);
    assert.throws(() => call([[1, 2]]), {
      name: "ArgumentError",
      message: "Cannot add 2 tokens to a generation cache that holds 3 of at most 4: create a larger one",
    });
    assert.throws(() => call([[1], [2]]), ShapeError);
    assert.throws(
      () => model.call({ inputIds: idsOf([[1]]), pastKeyValues: cache }),
      /Cannot train through a generation cache: call the model inside noGrad\(\)/,
    );
    assert.throws(() => model.createCache(13), /Cannot keep 13 tokens of a text: the model has 12 positions/);
    const long = new Array<number>(10).fill(1);
    assert.throws(() => call([long]), /ids \[1, 10\].* seq at most 9, as 3 of 12 positions are in the cache/);
    assert.equal(cache.length, 3, "a call that failed counts for nothing");
    cache[Symbol.dispose]();
    assert.throws(() => call([[1]]), UseAfterDisposeError);
    const unused = model.createCache(4);
    unused[Symbol.dispose]();
    assert.throws(
      () => noGrad(() => model.call({ inputIds: idsOf([[1]]), pastKeyValues: unused })),
      /A generation cache is used after it was disposed/,
    );
    assert.throws(() => model.createCache(-1), ArgumentError);
  });
});

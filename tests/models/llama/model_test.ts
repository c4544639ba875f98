/**
 * Llama as a decoder: memory, positions, padding, what is refused and what is shared. What it computes is compared with
 * transformers in `../reference_test.ts`.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import * as z from "zod";
import { noGrad } from "../../../src/autograd/mode.ts";
import { openDevice } from "../../../src/device/registry.ts";
import { int32 } from "../../../src/dtype.ts";
import { ArgumentError } from "../../../src/errors.ts";
import type { CausalLm } from "../../../src/models/causal_lm.ts";
import { buildModel } from "../../../src/models/registry.ts";
import { initializeParameters } from "../../../src/nn/initialize.ts";
import { AdamW } from "../../../src/optim/adamw.ts";
import { tensor } from "../../../src/tensor/create.ts";
import type { Parameter } from "../../../src/tensor/parameter.ts";
import { scope } from "../../../src/tensor/scope.ts";
import type { Tensor } from "../../../src/tensor/tensor.ts";
import { writeParameters } from "../../../src/tensor/write.ts";
import { allClose, allCloseToScale } from "../../support/allclose.ts";
import { type GoldenFile, readGolden, readJson } from "../../support/golden.ts";

/** The allowed error of results, relative to the largest number of their kind, unless their sensitivity is larger. */
const RELATIVE = 2e-5;

const factsSchema = z.object({
  batch: z.number(),
  seq: z.number(),
  sensitivity: z.record(z.string(), z.number()),
});

const device = await openDevice("cpu", { cpuMath: "wasm" });

/** A fixture, loaded into a model. */
class Fixture {
  readonly model: CausalLm;
  readonly golden: GoldenFile;
  readonly facts: z.infer<typeof factsSchema>;

  private constructor(model: CausalLm, golden: GoldenFile, facts: z.infer<typeof factsSchema>) {
    this.model = model;
    this.golden = golden;
    this.facts = facts;
  }

  static async load(name: string): Promise<Fixture> {
    const folder = `llama-${name}`;
    const model = buildModel(device, readJson(`${folder}/config.json`));
    const weights = await readGolden(`${folder}/model.safetensors`);
    assert.deepEqual([...model.parameters()].map(({ fqn }) => fqn).sort(), weights.names.toSorted());
    writeParameters(model.parameters(), (parameter, owned) => {
      assert.deepEqual(parameter.shape, weights.get(parameter.fqn).shape);
      device.copyIn(owned, new Uint8Array(weights.floats(parameter.fqn).buffer));
    });
    const facts = factsSchema.parse(readJson(`${folder}/expected.json`));
    return new Fixture(model, await readGolden(`${folder}/expected.safetensors`), facts);
  }

  get shape(): number[] {
    return [this.facts.batch, this.facts.seq];
  }

  ids(name: string): Int32Array<ArrayBuffer> {
    return this.golden.ints(name);
  }

  input(ids: ArrayLike<number>): Tensor {
    return tensor(device, ids, { shape: this.shape, dtype: int32 });
  }

  /** Hugging Face's labels moved to the position that predicts them. */
  labels(ids: Int32Array): Int32Array {
    const { seq } = this.facts;
    return ids.map((_, i) => i % seq === seq - 1 ? -100 : ids[i + 1] ?? -100);
  }

  /** The mean loss and its backward. */
  backward(ids: Int32Array): number {
    const labels = this.labels(ids);
    const { loss } = this.model.call({ inputIds: this.input(ids), labels: this.input(labels) });
    assert.ok(loss !== undefined);
    const mean = loss.mul(1 / labels.filter((label) => label >= 0).length);
    mean.backward();
    return mean.item();
  }

  /** Fails unless the numbers agree within the share of their scale, or twice their sensitivity. */
  agree(actual: ArrayLike<number>, expected: ArrayLike<number>, sensitivity: string, label: string): void {
    const scale = Math.max(...Array.from(expected, Math.abs));
    const allowed = Math.max(RELATIVE * scale, 2 * (this.facts.sensitivity[sensitivity] ?? 0));
    allClose(actual, expected, { relative: 0, absolute: allowed }, label);
  }

  dispose(): void {
    for (const parameter of this.model.parameters()) {
      parameter.zeroGrad();
      parameter.dispose();
    }
  }
}

function gradOf(parameter: Parameter): Tensor {
  assert.ok(parameter.grad !== undefined, `no gradient of '${parameter.fqn}'`);
  return parameter.grad;
}

test("LlamaForCausalLm leaves after a step what was there before it, and makes its rotary tables once", async () => {
  const fixture = await Fixture.load("tied");
  const { model } = fixture;
  const ids = fixture.ids("input_ids");
  const bytes: number[] = [];
  const optimizer = new AdamW(model.parameters(), { learningRate: 1e-3 });
  for (let step = 0; step < 3; step++) {
    using _frame = scope();
    model.zeroGrad();
    fixture.backward(ids);
    optimizer.step();
    noGrad(() => model.call({ inputIds: fixture.input(ids) }));
    bytes.push(device.allocator.stats.inUse);
  }
  assert.equal(new Set(bytes).size, 1, `bytes after each step: ${bytes}`);
  optimizer.dispose();
  fixture.dispose();
});

test("Embedding: the row of pad_token_id gets no gradient from lookups, but the tied head's", async () => {
  for (const [variant, pad, tied] of [["padding", 3, false], ["rope_llama3", 5, true]] as const) {
    const fixture = await Fixture.load(variant);
    assert.ok(fixture.ids("input_ids").includes(pad));
    {
      using _frame = scope();
      fixture.backward(fixture.ids("input_ids"));
    }
    const table = [...fixture.model.parameters()][0];
    assert.equal(table?.fqn, "model.embed_tokens.weight");
    const width = table.shape[1] ?? 0;
    const row = gradOf(table).toArray().slice(pad * width, (pad + 1) * width);
    assert.equal(row.every((value) => value === 0), !tied);
    fixture.dispose();
  }
});

test("LlamaForCausalLm: positions given are used, in any order", async () => {
  const fixture = await Fixture.load("grouped_bias");
  {
    using _frame = scope();
    const ids = fixture.ids("input_ids");
    const { batch, seq } = fixture.facts;
    const positions = (shift: number): Tensor =>
      fixture.input(Int32Array.from({ length: batch * seq }, (_, i) => i % seq + shift));
    const logits = (positionIds: Tensor): ArrayLike<number> =>
      noGrad(() => fixture.model.call({ inputIds: fixture.input(ids), positionIds })).logits?.toArray() ?? [];
    fixture.agree(logits(positions(0)), fixture.golden.floats("logits"), "logits", "positions 0, 1, …");
    // Rotary embeddings depend on differences of positions only.
    allCloseToScale(logits(positions(9)), fixture.golden.floats("logits"), 1e-4, "positions 9, 10, …");
    assert.throws(() => logits(positions(60)), /Cannot use position 64: positions must be in \[0, 64\)/);
    assert.throws(() => logits(positions(-1)), /position -1/);
  }
  fixture.dispose();
});

test("LlamaForCausalLm refuses sequences that are too long and ids out of range", () => {
  const config = { ...readJson("llama-odd/config.json"), max_position_embeddings: 8 };
  const model = buildModel(device, config);
  initializeParameters(model, 1);
  using _frame = scope();
  const ids = (shape: number[], value: number): Tensor =>
    tensor(device, new Array<number>(shape.reduce((a, b) => a * b)).fill(value), { shape, dtype: int32 });
  assert.throws(() => model.call({ inputIds: ids([1, 9], 0) }), /ids \[1, 9\].*at most 8/);
  assert.throws(() => model.call({ inputIds: ids([8], 0) }), ArgumentError);
  assert.throws(() => model.call({ inputIds: ids([1, 8], 19) }), /id 19 at place 0: the table has 19 rows/);
  assert.throws(
    () => model.call({ inputIds: ids([1, 8], 1), labels: ids([1, 8], 19) }),
    /label 19 at row 0.*19 classes/,
  );
});

test("LlamaForCausalLm.tiedNames and layers say what is shared and what a unit is", async () => {
  for (const variant of ["tied", "untied"]) {
    const { model } = await Fixture.load(variant);
    assert.equal(model.tiedNames.get("lm_head.weight"), variant === "tied" ? "model.embed_tokens.weight" : undefined);
    assert.equal(model.layers.length, 2);
    assert.equal([...model.parameters()].length, variant === "tied" ? 20 : 21);
  }
});

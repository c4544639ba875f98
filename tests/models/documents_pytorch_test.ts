/** A row of several documents against transformers, given a mask of blocks and positions from 0 in each document. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { launch } from "../../src/train/run.ts";
import { openModel } from "../../src/train/open_model.ts";
import { IGNORED } from "../../src/data/samples/sample.ts";
import { int32 } from "../../src/dtype.ts";
import { noGrad } from "../../src/autograd/mode.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import { fixturePath } from "../support/golden.ts";

interface Expected {
  readonly ids: readonly number[];
  readonly labels: readonly number[];
  readonly lengths: readonly number[];
  readonly loss: number;
  /** Of each token the first scores. */
  readonly logits: readonly (readonly number[])[];
  /** Of each tensor's gradient its norm, and its product with cos(0), cos(1) and so on. */
  readonly gradients: Readonly<Record<string, readonly [norm: number, product: number]>>;
}

const MODELS: Readonly<Record<string, Expected>> = JSON.parse(readFileSync(fixturePath("documents.json"), "utf8"));

for (const [name, expected] of Object.entries(MODELS)) {
  test(`documentStarts give ${name} what transformers computes with a mask of blocks`, async () => {
    await using run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 28 });
    using _frame = scope();
    const model = await openModel(run, fixturePath(name));
    await model.load();
    const { ids, labels, lengths } = expected;
    const starts = lengths.flatMap((length, i) => {
      const start = lengths.slice(0, i).reduce((sum, before) => sum + before, 0);
      return Array.from({ length }, () => start);
    });
    const [inputIds, targets, documentStarts] = [ids, labels, starts].map((values) => {
      return tensor(run.device, values, { shape: [1, ids.length], dtype: int32 });
    });
    assert.ok(inputIds !== undefined && labels.includes(IGNORED));
    const { logits } = noGrad(() => model.call({ inputIds, documentStarts }));
    // The change of scores when weights are rounded in another way.
    const { sensitivity } = JSON.parse(readFileSync(fixturePath(`${name}/expected.json`), "utf8"));
    const floor: number = Math.max(2e-6, sensitivity.logits);
    const scores = logits?.toArray() ?? assert.fail();
    for (const [token, row] of expected.logits.entries()) {
      for (const [i, want] of row.entries()) {
        const got = scores[token * model.vocabSize + i] ?? NaN;
        assert.ok(Math.abs(got - want) <= floor, `score ${i} of token ${token}: ${got}, ${want} by transformers`);
      }
    }
    const { loss } = model.call({ inputIds, labels: targets, documentStarts });
    assert.ok(loss !== undefined && Math.abs(loss.item() - expected.loss) <= 1e-6 * expected.loss);
    loss.backward();
    const names = new Set(Object.keys(expected.gradients));
    for (const parameter of model.parameters()) {
      const [norm, product] = expected.gradients[parameter.fqn] ?? assert.fail(parameter.fqn);
      const gradient = parameter.grad?.toArray() ?? assert.fail(parameter.fqn);
      let [squares, products] = [0, 0];
      for (const [i, value] of gradient.entries()) {
        squares += value * value;
        products += value * Math.cos(i);
      }
      const near = (got: number, want: number): void => {
        assert.ok(
          Math.abs(got - want) <= 5e-6 * norm,
          `gradient of '${parameter.fqn}': ${got}, ${want} by transformers`,
        );
      };
      near(Math.sqrt(squares), norm);
      near(products, product);
      names.delete(parameter.fqn);
    }
    assert.deepEqual([...names], []);
  });
}

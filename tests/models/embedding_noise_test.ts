/** NEFTune against transformers given the same numbers, and by place: the same for a row wherever it lies. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe, it } from "node:test";
import {
  applyActivationCheckpointing,
  type CausalLm,
  generate,
  int32,
  launch,
  noGrad,
  openModel,
  type Run,
  scope,
  Tensor,
  tensor,
} from "../../mod.ts";
import { ArgumentError, UnsupportedError } from "../../doors/errors.ts";
import { Logger } from "../../src/runtime/log.ts";
import { ZOO, zooModels } from "../../scripts/zoo/families.ts";
import { fixturePath } from "../support/golden.ts";

interface Expected {
  readonly ids: readonly (readonly number[])[];
  readonly loss: number;
  /** Without noise. */
  readonly quiet: number;
  /** Of each tensor's gradient its norm, and its product with cos(0), cos(1) and so on. */
  readonly gradients: Readonly<Record<string, readonly [norm: number, product: number]>>;
}

const FIXTURE: {
  readonly alpha: number;
  readonly seed: number;
  readonly first_sample: number;
  readonly models: Readonly<Record<string, Expected>>;
} = JSON.parse(readFileSync(fixturePath("neftune.json"), "utf8"));
const { alpha, seed, first_sample: firstSample } = FIXTURE;
const [NAME = "", { ids: ROWS } = { ids: [] }] = Object.entries(FIXTURE.models)[0] ?? [];

async function open(run: Run, name: string, noise: number | undefined = alpha): Promise<CausalLm> {
  const model = await openModel(run, fixturePath(name), { log: SILENT });
  await model.load();
  model.neftuneNoiseAlpha = noise;
  return model;
}

/** The fixtures' other files are no news. */
const SILENT = new Logger({ sink: () => undefined });

const cpu = (): Promise<Run> => launch({ cpuMath: "wasm", memoryBytes: 2 ** 28 });

/** The sum of the losses of some rows, each token's label the next of its row, padded to `width` tokens. */
function lossOf(model: CausalLm, rows: readonly (readonly number[])[], first: number, width?: number): number {
  using _frame = scope();
  const loss = rowsLoss(model, rows, first, width);
  loss.backward();
  return loss.item();
}

function rowsLoss(model: CausalLm, rows: readonly (readonly number[])[], first: number, width?: number): Tensor {
  const seq = width ?? Math.max(...rows.map(({ length }) => length));
  const wide = (
    row: readonly number[],
    filled: number,
  ): number[] => [...row, ...Array.from({ length: seq - row.length }, () => filled)];
  const of = (values: readonly number[]): Tensor =>
    tensor(model.device, values, { shape: [rows.length, seq], dtype: int32 });
  const { loss } = model.call({
    inputIds: of(rows.flatMap((row) => wide(row, 0))),
    labels: of(rows.flatMap((row) => wide(row.slice(1), -100))),
    random: { seed, firstSample: first },
    ...width === undefined
      ? {}
      : { tokenCounts: tensor(model.device, rows.map(({ length }) => length), { dtype: int32 }) },
  });
  return loss ?? assert.fail();
}

function gradients(model: CausalLm): readonly string[] {
  return Array.from(model.parameters(), ({ grad }) => grad?.toArray().join() ?? "none");
}

describe("neftuneNoiseAlpha", () => {
  for (const [name, expected] of Object.entries(FIXTURE.models)) {
    it(`gives ${name} the loss and gradients of transformers with the same numbers, and none in evaluation`, async () => {
      await using run = await cpu();
      const model = await open(run, name);
      const labels = expected.ids.length * ((expected.ids[0]?.length ?? NaN) - 1);
      const near = (got: number, want: number, floor: number, what: string): void =>
        assert.ok(Math.abs(got - want) <= floor, `${what}: ${got}, ${want} by transformers`);
      assert.ok(Math.abs(expected.loss - expected.quiet) > 1e-3, "the noise changes little");
      near(lossOf(model, expected.ids, firstSample) / labels, expected.loss, 2e-6 * expected.loss, "loss");
      for (const parameter of model.parameters()) {
        const [norm, product] = expected.gradients[parameter.fqn] ?? assert.fail(parameter.fqn);
        const gradient = parameter.grad?.toArray() ?? assert.fail(parameter.fqn);
        let [squares, products] = [0, 0];
        for (const [i, value] of gradient.entries()) {
          squares += value * value;
          products += value * Math.cos(i);
        }
        near(Math.sqrt(squares) / labels, norm, 1e-4 * norm, `norm of '${parameter.fqn}'`);
        near(products / labels, product, 1e-4 * norm, `product of '${parameter.fqn}'`);
      }
      model.eval();
      using _frame = scope();
      const quiet = noGrad(() => rowsLoss(model, expected.ids, firstSample)).item() / labels;
      near(quiet, expected.quiet, 2e-6 * expected.quiet, "loss without noise");
    });
  }

  it("is at most alpha / √(tokens × width), and fills that range", async () => {
    await using run = await cpu();
    const model = await open(run, NAME);
    const rows = Array.from({ length: 8 }, (_, i) => Array.from({ length: 32 }, (_, j) => (i + j) % 7));
    const width = Number(model.hfConfig["hidden_size"]);
    const seen: number[][] = [];
    const detach = model.layers[0]?.registerForwardPreHook(([hidden]) => {
      if (hidden instanceof Tensor) seen.push([...hidden.toArray()]);
    });
    for (const noise of [alpha, undefined]) {
      model.neftuneNoiseAlpha = noise;
      lossOf(model, rows, 0);
    }
    detach?.();
    const [noisy = [], quiet = []] = seen;
    const largest = alpha / Math.sqrt(32 * width);
    const drawn = noisy.map((value, i) => (value - (quiet[i] ?? NaN)) / largest);
    assert.equal(drawn.length, 8 * 32 * width);
    assert.ok(drawn.every((value) => Math.abs(value) < 1 + 1e-4), String(Math.max(...drawn.map(Math.abs))));
    const mean = (of: readonly number[]): number => of.reduce((sum, value) => sum + value, 0) / of.length;
    assert.ok(Math.abs(mean(drawn)) < 0.03 && Math.abs(mean(drawn.map((value) => value * value)) - 1 / 3) < 0.02);
  });

  it("is a row's own, whatever rows and padding are beside it, and with activations computed again", async () => {
    await using run = await cpu();
    const model = await open(run, NAME);
    const rows = ROWS.map((row, i) => row.slice(0, 4 + 2 * i));
    const alone = rows.map((row, i) => lossOf(model, [row], 5 + i));
    const own = gradients(model);
    model.zeroGrad();
    const padded = rows.map((row, i) => lossOf(model, [row], 5 + i, 12));
    assert.deepEqual(padded, alone);
    assert.deepEqual(gradients(model), own);
    const together = lossOf(model, rows, 5, 12);
    assert.ok(Math.abs(together - alone.reduce((sum, loss) => sum + loss, 0)) < 1e-5 * together);
    model.zeroGrad();
    const detach = applyActivationCheckpointing(model.layers);
    assert.deepEqual(rows.map((row, i) => lossOf(model, [row], 5 + i)), alone);
    assert.deepEqual(gradients(model), own);
    detach();
    assert.notEqual(lossOf(model, rows.slice(0, 1), 6), alone[0], "another sample has other noise");
  });

  it("is in the training of every family, and in nothing that is generated", async () => {
    await using run = await cpu();
    for (const family of ZOO) {
      const [{ hfConfig } = assert.fail()] = zooModels(family);
      const model = await openModel(run, hfConfig, { seed: 3 });
      await model.load();
      using _frame = scope();
      const score = (noise: number | undefined, first: number): string => {
        model.neftuneNoiseAlpha = noise;
        return noGrad(() => rowsLoss(model, [[1, 2, 3, 4, 5, 6]], first)).toArray().join();
      };
      const seen = [score(undefined, 1), score(5, 1), score(5, 2), score(9, 1)];
      assert.equal(new Set(seen).size, 4, family);
      model.neftuneNoiseAlpha = 5;
      const text = generate(model, [1, 2], { maxNewTokens: 3, temperature: 0 });
      model.neftuneNoiseAlpha = undefined;
      assert.deepEqual(generate(model, [1, 2], { maxNewTokens: 3, temperature: 0 }), text, family);
      for (const parameter of model.parameters()) parameter.dispose();
    }
  });

  it("is refused where it is no number, without samples, and with counts that do not fit", async () => {
    await using run = await cpu();
    const model = await open(run, NAME);
    for (const bad of [0, -1, NaN, Infinity]) {
      assert.throws(
        () => model.neftuneNoiseAlpha = bad,
        /^ArgumentError: neftuneNoiseAlpha must be a positive number, got /,
      );
    }
    assert.equal(model.neftuneNoiseAlpha, alpha);
    using _frame = scope();
    const inputIds = tensor(run.device, [1, 2, 3], { shape: [1, 3], dtype: int32 });
    assert.throws(
      () => model.call({ inputIds }),
      /Cannot draw the embedding noise of 'model\.embed_tokens' in training without knowing/,
    );
    const random = { seed: 0, firstSample: 0 };
    const tokenCounts = tensor(run.device, [3, 3], { dtype: int32 });
    assert.throws(() => model.call({ inputIds, random, tokenCounts }), ArgumentError);
    const positionIds = tensor(run.device, [0, 1, 2], { shape: [1, 3], dtype: int32 });
    assert.throws(() => model.call({ inputIds, random, positionIds, rowLength: 6 }), UnsupportedError);
    model.eval();
    assert.equal(model.call({ inputIds }).logits?.numel, 3 * model.vocabSize);
  });
});

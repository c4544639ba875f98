/**
 * Training forwards against what transformers computes when it is given the same masks and noise; `tests/parity/make_dropout.py`
 * makes the fixtures.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import {
  applyActivationCheckpointing,
  type CausalLm,
  generate,
  int32,
  noGrad,
  scope,
  type Tensor,
  tensor,
} from "../../mod.ts";
import { loadHfWeights, readHfConfig } from "../../doors/checkpoint.ts";
import { openDevice } from "../../doors/device.ts";
import { ArgumentError, ConfigError } from "../../doors/errors.ts";
import { buildModel, Dropout, full, initializeParameters, Parameter } from "../../doors/nn.ts";
import { StoredTensors } from "../../scripts/reference/directory.ts";
import { judge, judgeToScale } from "../../scripts/reference/verdict.ts";
import { ZOO, zooModels } from "../../scripts/zoo/families.ts";
import { fullBox, sharedSlices } from "../../src/tensor/shard_layout.ts";

const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 28 });
after(() => device.dispose());

const NAMES = ["gpt2", "phi", "phi3", "modernbert-decoder", "gpt_oss", "deepseek_v2", "mixtral", "phimoe"] as const;

/** The contents of a fixture. */
interface Facts {
  readonly loss: number;
  readonly seed: number;
  readonly first_sample: number;
}

class Fixture implements Disposable {
  readonly model: CausalLm;
  readonly facts: Facts;
  readonly stored: StoredTensors;

  private constructor(model: CausalLm, facts: Facts, stored: StoredTensors) {
    [this.model, this.facts, this.stored] = [model, facts, stored];
  }

  static async open(name: string): Promise<Fixture> {
    const folder = fileURLToPath(new URL(`../fixtures/dropout/${name}`, import.meta.url));
    const facts: Facts = JSON.parse(readFileSync(`${folder}/expected.json`, "utf8"));
    const model = buildModel(device, await readHfConfig(folder));
    await loadHfWeights(model, folder);
    return new Fixture(model, facts, await StoredTensors.read(`${folder}/expected.safetensors`));
  }

  /** The mean loss of some of the samples, and its gradients; as transformers', of all samples' labels together. */
  backward(first: number = 0, count: number = this.shape[0]): number {
    using _frame = scope();
    const [batch, seq] = this.shape;
    const ids = this.stored.ints("input_ids").slice(first * seq, (first + count) * seq);
    const labels = ids.map((_, i) => i % seq === seq - 1 ? -100 : ids[i + 1] ?? -100);
    const of = (values: Int32Array): Tensor => tensor(device, values, { shape: [count, seq], dtype: int32 });
    const random = { seed: this.facts.seed, firstSample: this.facts.first_sample + first };
    const { loss } = this.model.call({ inputIds: of(ids), labels: of(labels), random });
    const share = loss?.mul(1 / (batch * (seq - 1)));
    share?.backward();
    return share?.item() ?? NaN;
  }

  get shape(): readonly [batch: number, seq: number] {
    const [batch = 0, seq = 0] = this.stored.shape("input_ids");
    return [batch, seq];
  }

  /** Gradients by the names of the files. */
  gradients(): ReadonlyMap<string, readonly number[]> {
    const found = new Map<string, readonly number[]>();
    for (const { name, part, box } of this.model.directoryTensors()) {
      const values = part instanceof Parameter ? part.grad?.toArray() : undefined;
      if (values === undefined) continue;
      const runs = sharedSlices(fullBox(part.shape), box);
      found.set(name, runs.flatMap(({ inFirst, length }) => [...values.slice(inFirst, inFirst + length)]));
    }
    return found;
  }

  [Symbol.dispose](): void {
    this.model.zeroGrad();
    for (const parameter of this.model.parameters()) parameter.dispose();
  }
}

describe("a model in training", () => {
  for (const name of NAMES) {
    it(`computes what transformers does with the same random numbers: ${name}`, async () => {
      using fixture = await Fixture.open(name);
      const loss = judgeToScale("loss", [fixture.backward()], [fixture.facts.loss], 0);
      assert.ok(loss.pass, JSON.stringify(loss));
      const found = fixture.gradients();
      const given = fixture.stored.names.filter((one) => one.startsWith("grad."));
      assert.ok(given.length > 10);
      const norms = given.map((one) => Math.hypot(...fixture.stored.floats(one)));
      const largest = Math.max(...norms);
      for (const one of given) {
        const expected = fixture.stored.floats(one);
        const scale = Math.max(...expected.map(Math.abs), 1e-3 * largest / Math.sqrt(expected.length));
        const actual = found.get(one.slice("grad.".length)) ?? [];
        assert.equal(actual.length, expected.length, one);
        const verdict = judge(
          one,
          Array.from(expected, (value, i) => [actual[i] ?? NaN, value, 2e-5 * scale] as const),
        );
        assert.ok(verdict.pass, JSON.stringify(verdict));
      }
    });
  }

  it("has other numbers for another seed, sample or layer, and none in evaluation", async () => {
    for (const name of ["gpt2", "phimoe"]) {
      using fixture = await Fixture.open(name);
      using _frame = scope();
      const [batch, seq] = fixture.shape;
      const inputIds = tensor(device, fixture.stored.ints("input_ids"), { shape: [batch, seq], dtype: int32 });
      const logits = (random?: { seed: number; firstSample: number }): string =>
        noGrad(() => fixture.model.call({ inputIds, random })).logits?.toArray().join() ?? "";
      const random = { seed: 1, firstSample: 5 };
      assert.equal(logits(random), logits(random));
      assert.equal(new Set([random, { ...random, seed: 2 }, { ...random, firstSample: 6 }].map(logits)).size, 3);
      fixture.model.eval();
      assert.equal(logits(random), logits());
      fixture.model.train();
      assert.notEqual(logits(random), fixture.model.eval() && logits());
      fixture.model.train();
      generate(fixture.model, [4, 5], { maxNewTokens: 3, temperature: 0 });
      assert.ok(fixture.model.training);
    }
  });

  it("computes the same gradients to the bit with activations computed again", async () => {
    for (const name of NAMES) {
      using kept = await Fixture.open(name);
      const loss = kept.backward();
      const expected = kept.gradients();
      for (const options of [{}, { saveOps: ["attention", "linear"] as const }]) {
        using fixture = await Fixture.open(name);
        applyActivationCheckpointing(fixture.model.layers, options);
        assert.equal(fixture.backward(), loss, name);
        assert.deepEqual(fixture.gradients(), expected, name);
      }
    }
  });

  it("gives each sample the numbers that it has in any micro-batch", async () => {
    for (const name of NAMES) {
      using fixture = await Fixture.open(name);
      const [batch] = fixture.shape;
      const whole = fixture.backward();
      const parts = Array.from({ length: batch }, (_, i) => fixture.backward(i, 1));
      const total = parts.reduce((sum, part) => sum + part, 0);
      assert.ok(Math.abs(total - whole) < 1e-5 * whole, `${name}: ${total}, not ${whole}`);
    }
  });

  it("is refused without the numbers of its samples, by the layer that draws", async () => {
    using fixture = await Fixture.open("gpt2");
    using _frame = scope();
    const inputIds = tensor(device, [1, 2], { shape: [1, 2], dtype: int32 });
    assert.throws(() => fixture.model.call({ inputIds }), (error) => {
      return error instanceof ArgumentError &&
        /^Cannot draw the dropout of 'transformer.embed_dropout' in training .*'random: \{ seed, firstSample \}'.* model\.eval\(\)$/
          .test(error.message);
    });
    const at = (firstSample: number) => () => fixture.model.call({ inputIds, random: { seed: 0, firstSample } });
    assert.throws(at(-1), /The firstSample must be an integer from 0 to 2\^53 - 1, got -1/);
    assert.throws(at(0.5), ArgumentError);
  });

  it("drops attention of every family whose config asks for it", () => {
    for (const family of ZOO) {
      const [zoo] = zooModels(family);
      const asked = { ...zoo?.hfConfig, attention_dropout: 0.9, attn_pdrop: 0.9 };
      const model = buildModel(device, asked);
      initializeParameters(model, 0);
      using _frame = scope();
      const inputIds = tensor(device, [1, 2, 3, 4, 5, 6], { shape: [1, 6], dtype: int32 });
      const logits = (firstSample: number): string =>
        noGrad(() => model.call({ inputIds, random: { seed: 0, firstSample } })).logits?.toArray().join() ?? "";
      const seen = new Set([1, 2, 3, 4].map(logits));
      assert.equal(seen.size > 1, family !== "lfm2", family);
      model.eval();
      assert.equal(logits(1), logits(2), family);
      for (const parameter of model.parameters()) parameter.dispose();
    }
  });

  it("draws no routing where routers do not, and refuses what is no probability", async () => {
    const sizes = {
      vocab_size: 20,
      hidden_size: 16,
      num_hidden_layers: 1,
      num_attention_heads: 2,
      intermediate_size: 8,
    };
    const llama = { ...sizes, model_type: "llama", max_position_embeddings: 8 };
    const model = buildModel(device, llama);
    initializeParameters(model, 0);
    using _frame = scope();
    const inputIds = tensor(device, [1, 2], { shape: [1, 2], dtype: int32 });
    assert.equal(model.call({ inputIds }).logits?.numel, 40);
    assert.throws(() => buildModel(device, { ...llama, attention_dropout: 1.5 }), ConfigError);
    assert.throws(() => buildModel(device, { ...llama, model_type: "mixtral", router_jitter_noise: -1 }), ConfigError);
    assert.throws(() => new Dropout(-0.1), /Cannot drop out with p -0.1: it must be a probability, from 0 to 1/);
    assert.throws(() => new Dropout(NaN), ArgumentError);
    const random = { seed: 0, firstSample: 0 };
    assert.throws(() => new Dropout(0.5).call(full(device, [3], 1), { random }), /must be \[batch, .., cols\]/);
    assert.ok(new Dropout(1).call(full(device, [3, 2], 1), { random }).toArray().every((value) => value === 0));
  });
});

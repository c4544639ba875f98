/**
 * Adapters against PEFT: what it computes with those that it saved, and the folders that both write; `tests/parity/make_lora.py` makes
 * the fixtures.
 *
 * @module
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync } from "node:fs";
import process from "node:process";
import { after, describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import {
  AdamW,
  addLora,
  type CausalLm,
  int32,
  launch,
  mergeLora,
  noGrad,
  openModel,
  scope,
  type Tensor,
  tensor,
} from "../../mod.ts";
import { readHfConfig } from "../../doors/checkpoint.ts";
import { buildModel } from "../../doors/nn.ts";
import { StoredTensors } from "../../scripts/reference/directory.ts";
import { judgeToScale } from "../../scripts/reference/verdict.ts";
import { main } from "../../src/cli/main.ts";
import { loraOf } from "../../src/adapters/lora.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 28 });
after(() => run[Symbol.asyncDispose]());
const fixtures = fileURLToPath(new URL("../fixtures", import.meta.url));
const CASES = readdirSync(`${fixtures}/lora`).filter((name) => !name.endsWith(".json"));

/** The contents of a fixture. */
interface Facts {
  readonly base: string;
  readonly loss: number;
  readonly losses: readonly number[];
  /** The change of each gradient's elements when every weight is off by its last bit. */
  readonly sensitivity: Readonly<Record<string, number>>;
  readonly merged: Readonly<Record<string, readonly [sum: number, absolute: number]>>;
}

function factsOf(name: string): Facts {
  return JSON.parse(readFileSync(`${fixtures}/lora/${name}/expected.json`, "utf8"));
}

async function open(name: string): Promise<{ model: CausalLm; facts: Facts; stored: StoredTensors }> {
  const facts = factsOf(name);
  const model = await openModel(run, `${fixtures}/${facts.base}`, { adapter: `${fixtures}/lora/${name}` });
  await model.load();
  model.eval(); // as the fixture was made
  return { model, facts, stored: await StoredTensors.read(`${fixtures}/lora/${name}/expected.safetensors`) };
}

function tensorOf(values: Int32Array, stored: StoredTensors): Tensor {
  return tensor(run.device, values, { shape: stored.shape("input_ids"), dtype: int32 });
}

function logitsOf(model: CausalLm, stored: StoredTensors): readonly number[] {
  using _frame = scope();
  return [
    ...noGrad(() => model.call({ inputIds: tensorOf(stored.ints("input_ids"), stored) })).logits?.toArray() ?? [],
  ];
}

/** The mean loss of the fixture's batch, after its backward. */
function backward(model: CausalLm, stored: StoredTensors): number {
  using _frame = scope();
  const ids = stored.ints("input_ids");
  const [batch = 0, seq = 0] = stored.shape("input_ids");
  const labels = ids.map((_, i) => i % seq === seq - 1 ? -100 : ids[i + 1] ?? -100);
  const { loss } = model.call({ inputIds: tensorOf(ids, stored), labels: tensorOf(labels, stored) });
  const mean = loss?.mul(1 / (batch * (seq - 1)));
  mean?.backward();
  return mean?.item() ?? NaN;
}

function assertClose(name: string, actual: ArrayLike<number>, expected: ArrayLike<number>): void {
  const verdict = judgeToScale(name, actual, expected, 0);
  assert.ok(verdict.pass, JSON.stringify(verdict));
}

describe("an adapter of PEFT", () => {
  for (const name of CASES) {
    it(`gives PEFT's logits, gradients and losses: ${name}`, async () => {
      const { model, facts, stored } = await open(name);
      assertClose("logits", logitsOf(model, stored), stored.floats("logits"));
      assertClose("loss", [backward(model, stored)], [facts.loss]);
      const given = stored.names.filter((one) => one.startsWith("grad."));
      const trained = [...model.namedParameters()].filter(([, { grad }]) => grad !== undefined);
      const named = new Map(trained.map(([fqn, { grad }]) => [`grad.base_model.model.${fqn}`, grad?.toArray() ?? []]));
      assert.deepEqual([...named.keys()].sort(), given.sort());
      const largest = Math.max(...given.flatMap((one) => [...stored.floats(one)].map(Math.abs)));
      for (const one of given) {
        const expected = stored.floats(one);
        const actual = named.get(one) ?? [];
        const off = Math.max(...Array.from(expected, (value, i) => Math.abs(value - (actual[i] ?? NaN))));
        const scale = Math.max(...[...expected].map(Math.abs), 1e-2 * largest);
        const allowed = Math.max(2e-5 * scale, 2 * (facts.sensitivity[one] ?? NaN));
        assert.ok(off <= allowed, `${one}: ${off}, allowed ${allowed}`);
      }
      model.zeroGrad();
      const optimizer = new AdamW(model.parameters(), {
        learningRate: 1e-2,
        betas: [0.9, 0.999],
        eps: 1e-8,
        weightDecay: 0.01,
      });
      for (const [step, expected] of facts.losses.entries()) {
        const loss = backward(model, stored);
        optimizer.step();
        optimizer.zeroGrad();
        assert.ok(Math.abs(loss - expected) <= 1e-4, `step ${step}: ${loss}, PEFT ${expected}`);
      }
      optimizer.dispose();
    });

    it(`merges as PEFT does: ${name}`, async () => {
      const { model, facts, stored } = await open(name);
      const before = logitsOf(model, stored);
      mergeLora(model, run.group);
      assert.equal(loraOf(model), undefined);
      assertClose("logits", logitsOf(model, stored), before);
      for (const [fqn, parameter] of model.namedParameters()) {
        const [sum = NaN, absolute = NaN] = facts.merged[fqn] ?? [];
        const values = [...parameter.toArray()];
        const [own, ownAbsolute] = [values.reduce((a, b) => a + b, 0), values.reduce((a, b) => a + Math.abs(b), 0)];
        assert.ok(Math.abs(own - sum) <= 1e-5 * absolute, `${fqn}: ${own}, PEFT ${sum}`);
        assert.ok(Math.abs(ownAbsolute - absolute) <= 1e-5 * absolute, `${fqn}: ${ownAbsolute}, PEFT ${absolute}`);
      }
    });

    it(`is saved as PEFT saved it: ${name}`, async () => {
      using folder = temporaryDirectory();
      const { model } = await open(name);
      await model.save(folder.path);
      const [own, theirs] = await Promise.all(
        [folder.path, `${fixtures}/lora/${name}`].map((path) =>
          StoredTensors.read(`${path}/adapter_model.safetensors`)
        ),
      );
      assert.ok(own !== undefined && theirs !== undefined);
      // The table of an embedding with an adapter is the base model's.
      const names = theirs.names.filter((one) => !one.endsWith(".base_layer.weight"));
      assert.deepEqual([...own.names].sort(), [...names].sort());
      for (const one of names) assert.deepEqual(own.floats(one), theirs.floats(one), one);
      const config = (path: string): Record<string, unknown> =>
        JSON.parse(readFileSync(`${path}/adapter_config.json`, "utf8"));
      const { peft_version: _, ...written } = config(folder.path);
      const { peft_version: __, ...expected } = config(`${fixtures}/lora/${name}`);
      if (Array.isArray(written["target_modules"])) written["target_modules"].sort();
      assert.deepEqual(written, expected);
    });
  }

  it("is merged by fullyshard merge --adapter", async () => {
    using folder = temporaryDirectory();
    const { model, facts, stored } = await open("gpt2");
    const args = [`${fixtures}/${facts.base}`, folder.file("merged"), "--adapter", `${fixtures}/lora/gpt2`];
    assert.equal(await main(["merge", ...args]), 0);
    const merged = await openModel(run, folder.file("merged"));
    await merged.load();
    assertClose("logits", logitsOf(merged, stored), logitsOf(model, stored));
    await assert.rejects(main(["merge", ...args]).then((code) => assert.equal(code, 0)), /2 !== 0/);
  });

  const python = process.env["PEER_PYTHON"];
  it(
    "that is saved here gives the same logits in PEFT",
    { skip: python === undefined && "needs PEER_PYTHON" },
    async () => {
      using folder = temporaryDirectory();
      const own = new Map<string, readonly number[]>();
      for (const name of CASES) {
        const { model, stored } = await open(name);
        await model.save(folder.file(name));
        own.set(name, logitsOf(model, stored));
      }
      const script = fileURLToPath(new URL("../parity/make_lora.py", import.meta.url));
      const { stdout, stderr } = spawnSync(python ?? "", [script, "--read", folder.path], { encoding: "utf8" });
      assert.notEqual(stdout, "", stderr);
      const theirs: Record<string, readonly number[]> = JSON.parse(stdout.trim().split("\n").at(-1) ?? "");
      assert.deepEqual(Object.keys(theirs).sort(), [...CASES].sort());
      for (const [name, logits] of own) assertClose(name, theirs[name] ?? [], logits);
    },
  );

  it("is on the modules that PEFT chooses by all-linear, in every family", async () => {
    const chosen: Record<string, readonly string[]> = JSON.parse(
      readFileSync(`${fixtures}/lora/all_linear.json`, "utf8"),
    );
    for (const [family, names] of Object.entries(chosen)) {
      const model = buildModel(run.device, await readHfConfig(`${fixtures}/zoo/${family}.json`));
      const { layers } = addLora(model, { r: 2 });
      // In these families PEFT goes on to take ends of names for experts, and phimoe's routers for linear layers.
      const isOfExperts = ["deepseek_v2", "glm4_moe_lite", "glm_moe_dsa", "qwen3_moe", "qwen3_next"].includes(family);
      const left = isOfExperts ? /\.(?:gate_proj|up_proj|down_proj)$/ : family === "phimoe" ? /\.router$/ : /^$/;
      assert.deepEqual([...layers.keys()].sort(), names.filter((name) => !left.test(name)), family);
    }
  });
});

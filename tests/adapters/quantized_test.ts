/**
 * Quantized layers: the bytes and values of bitsandbytes, products and gradients against PyTorch, and trainings of an adapter beside
 * them, whatever the number of ranks; `tests/parity/make_quantized.py` makes the fixtures.
 *
 * @module
 */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { after, describe } from "node:test";
import { fileURLToPath } from "node:url";
import {
  AdamW,
  addLora,
  type CausalLm,
  describeSharding,
  fullyShard,
  int32,
  launch,
  mergeLora,
  noGrad,
  openModel,
  type QuantizationOptions,
  quantizeModel,
  scope,
  tensor,
} from "../../mod.ts";
import { getModelStateDict, setModelStateDict } from "../../doors/checkpoint.ts";
import { ArgumentError, UnsupportedError } from "../../doors/errors.ts";
import { Linear, Module } from "../../doors/nn.ts";
import { StoredTensors } from "../../scripts/reference/directory.ts";
import { openSafetensors } from "../../src/checkpoint/format/safetensors.ts";
import { ownedPtr } from "../../src/tensor/write.ts";
import { Parameter } from "../../src/tensor/parameter.ts";
import { longTest, onlyInAll, sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { type Ended, essence, flagsIn, metricLines, run as runScript } from "../train/runs.ts";

const run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 28 });
after(() => run[Symbol.asyncDispose]());
const folder = temporaryDirectory();
after(() => folder[Symbol.dispose]());
const fixtures = fileURLToPath(new URL("../fixtures", import.meta.url));
const stored = await openSafetensors(`${fixtures}/quantized/expected.safetensors`);
after(() => stored[Symbol.dispose]());
const NAMES = ["square", "odd", "wide"] as const;
type Name = typeof NAMES[number];

function bytesOf(name: string): Uint8Array<ArrayBuffer> {
  const { byteLength } = stored.get(name);
  const bytes = new Uint8Array(byteLength);
  stored.readIntoSync(name, 0, byteLength, bytes);
  return bytes;
}

function floatsOf(name: string): Float32Array<ArrayBuffer> {
  return new Float32Array(bytesOf(name).buffer);
}

/** Layers of the fixture's shapes. */
class Layers extends Module<[], undefined> {
  readonly square = new Linear(run.device, 128, 128, { bias: false });
  readonly odd = new Linear(run.device, 33, 20, { bias: false });
  readonly wide = new Linear(run.device, 200, 24, { bias: false });

  forward(): undefined {}
}

/** The layers with the fixture's weights, quantized as they are written. */
function quantizedLayers(options: QuantizationOptions): Layers {
  const layers = new Layers();
  quantizeModel(layers, options);
  const values = new Map(NAMES.map((name) => {
    const { shape } = layers[name].weight;
    const boxes = [{ offsets: [0, 0], sizes: shape }];
    return [`${name}.weight`, { shape, boxes, toArray: () => floatsOf(`${name}.weight`) }] as const;
  }));
  setModelStateDict(layers, values);
  return layers;
}

function valuesOf(layers: Layers, name: Name): readonly number[] {
  return [...getModelStateDict(layers).get(`${name}.weight`)?.toArray() ?? []];
}

function memoryOf(weight: Parameter, byteLength: number): Uint8Array {
  const bytes = new Uint8Array(byteLength);
  weight.storage.flatShard.device.copyOut(bytes, ownedPtr(weight));
  return bytes;
}

function close(actual: ArrayLike<number>, expected: ArrayLike<number>, allowed: number, what: string): void {
  assert.equal(actual.length, expected.length, what);
  const off = Math.max(...Array.from(expected, (value, i) => Math.abs(value - (actual[i] ?? NaN))));
  assert.ok(off <= allowed, `${what}: off by ${off}`);
}

describe("quantizeModel()", () => {
  test("stores the bytes that bitsandbytes stores, and the values that it dequantizes", () => {
    const layers = quantizedLayers({ loadIn4bit: true });
    for (const name of NAMES) {
      const [packed, absmax] = [bytesOf(`${name}.packed`), floatsOf(`${name}.absmax`)];
      const { weight } = layers[name];
      assert.equal(weight.dtype.name, "nf4");
      const memory = memoryOf(weight, absmax.length * 36);
      const view = new DataView(memory.buffer);
      for (const [block, magnitude] of absmax.entries()) {
        assert.equal(view.getFloat32(block * 36, true), magnitude, `${name}: block ${block}`);
        const codes = packed.subarray(block * 32, block * 32 + 32);
        assert.deepEqual(
          memory.subarray(block * 36 + 4, block * 36 + 4 + codes.length),
          codes,
          `${name}: block ${block}`,
        );
      }
      assert.deepEqual(valuesOf(layers, name), [...floatsOf(`${name}.values`)], name);
    }
  });

  test("quantizes magnitudes as bitsandbytes does, where a weight is one group of them", () => {
    const layers = quantizedLayers({ loadIn4bit: true, bnb4bitUseDoubleQuant: true });
    const memory = memoryOf(layers.square.weight, 8 + 256 + 256 * 32);
    const view = new DataView(memory.buffer);
    const [offset = NaN] = floatsOf("square.offset");
    const [factor = NaN] = floatsOf("square.nested_absmax");
    // PyTorch adds up the mean in another order.
    close([view.getFloat32(4, true), view.getFloat32(0, true)], [offset, factor], 2e-8, "offset and factor");
    assert.deepEqual(memory.subarray(8, 8 + 256), bytesOf("square.nested"));
    for (const name of NAMES) {
      const largest = Math.max(...floatsOf(`${name}.absmax`));
      close(valuesOf(layers, name), floatsOf(`${name}.nested_values`), 2e-7 * largest, name);
    }
  });

  test("keeps 8 bits an element to half a step of its block", () => {
    const layers = quantizedLayers({ loadIn8bit: true });
    for (const name of NAMES) {
      const [weight, values] = [floatsOf(`${name}.weight`), valuesOf(layers, name)];
      for (const [block, magnitude] of floatsOf(`${name}.absmax`).entries()) {
        const part = [block * 64, block * 64 + 64] as const;
        close(values.slice(...part), weight.slice(...part), magnitude * 0.5001 / 127, `${name}: block ${block}`);
      }
    }
  });

  test("gives products and input gradients of PyTorch with the dequantized weight", () => {
    const layers = quantizedLayers({ loadIn4bit: true });
    for (const name of NAMES) {
      using _frame = scope();
      const [outFeatures = 0, inFeatures = 0] = layers[name].weight.shape;
      const x = new Parameter(run.device, [5, inFeatures]);
      x.materialize();
      x.copyFromHost(floatsOf(`${name}.x`));
      const dy = tensor(run.device, floatsOf(`${name}.dy`), { shape: [5, outFeatures] });
      const y = layers[name].call(x);
      y.mul(dy).sum().backward();
      close(y.toArray(), floatsOf(`${name}.y`), 2e-6, `${name}: y`);
      close(x.grad?.toArray() ?? [], floatsOf(`${name}.dx`), 2e-6, `${name}: dx`);
      // Finite differences: the layer is linear, so that a wide step is exact.
      const given = floatsOf(`${name}.x`);
      for (const i of [0, 7, inFeatures + 3]) {
        const lossAt = (moved: number): number => {
          const at = tensor(run.device, given.with(i, (given[i] ?? NaN) + moved), { shape: [5, inFeatures] });
          return noGrad(() => layers[name].call(at).mul(dy).sum().item());
        };
        close([x.grad?.toArray()[i] ?? NaN], [(lossAt(1) - lossAt(-1)) / 2], 1e-5, `${name}: difference ${i}`);
      }
      assert.equal(layers[name].weight.grad, undefined);
    }
  });

  test("refuses what contradicts itself, and to train or to cut what is quantized", async () => {
    const model = await openModel(run, `${fixtures}/llama-untied`);
    const refused = (options: QuantizationOptions, message: RegExp): void => {
      assert.throws(
        () => quantizeModel(model, options),
        (error) => error instanceof ArgumentError && message.test(error.message),
      );
    };
    refused({}, /set loadIn4bit or loadIn8bit/);
    refused({ loadIn4bit: true, loadIn8bit: true }, /are both set/);
    refused({ loadIn8bit: true, bnb4bitUseDoubleQuant: true }, /bnb4bitUseDoubleQuant is for loadIn4bit/);
    refused({ loadIn4bit: true, skipModules: ["q_prj"] }, /Cannot leave out 'q_prj'/);
    refused({ loadIn4bit: true, skipModules: ["model"] }, /no linear layer of the model is left/);
    const names = quantizeModel(model, { loadIn4bit: true, skipModules: ["o_proj"] });
    assert.equal(names.length, 12);
    assert.ok(!names.some((name) => name.includes("o_proj") || name.includes("lm_head")));
    const own = new Map(model.namedParameters());
    const [first] = names;
    assert.throws(() => own.get(`${first}.weight`)?.place([]), /Cannot cut '.*' over an axis: it is quantized to nf4/);
    assert.throws(
      () => addLora(model, { targetModules: ["o_proj"], modulesToSave: ["up_proj"] }),
      /Cannot train '.*up_proj.weight' as a whole: it is quantized to nf4; name its module in skipModules/,
    );
    await model.load();
    refused({ loadIn8bit: true }, /has values; quantize it before it is loaded/);
  });

  test("refuses a folder whose weights are quantized already, with the remedy", async () => {
    const hfConfig = JSON.parse(readFileSync(`${fixtures}/llama-untied/config.json`, "utf8"));
    const source = { ...hfConfig, quantization_config: { quant_method: "bitsandbytes", load_in_4bit: true } };
    await assert.rejects(
      openModel(run, source),
      (error) =>
        error instanceof UnsupportedError &&
        /take the model's folder whose weights are not quantized/.test(error.message),
    );
  });
});

/** A model with an adapter that PEFT made beside quantized layers. */
async function adapted(): Promise<CausalLm> {
  const { base } = JSON.parse(readFileSync(`${fixtures}/quantized/expected.json`, "utf8"));
  const adapter = `${fixtures}/lora/llama`;
  const model = await openModel(run, `${fixtures}/${base}`, { adapter, quantization: { loadIn4bit: true } });
  await model.load();
  model.eval();
  return model;
}

/** Token ids of the adapter's fixture, and their shape. */
async function inputs(): Promise<{ readonly ids: Int32Array<ArrayBuffer>; readonly shape: readonly number[] }> {
  const expected = await StoredTensors.read(`${fixtures}/lora/llama/expected.safetensors`);
  return { ids: new Int32Array(expected.ints("input_ids")), shape: expected.shape("input_ids") };
}

function logitsOf(model: CausalLm, ids: Int32Array<ArrayBuffer>, shape: readonly number[]): readonly number[] {
  using _frame = scope();
  const inputIds = tensor(run.device, ids, { shape, dtype: int32 });
  return [...noGrad(() => model.call({ inputIds })).logits?.toArray() ?? []];
}

test("an adapter beside NF4 layers has the losses of PEFT beside what bitsandbytes dequantizes", async () => {
  const { losses }: { readonly losses: readonly number[] } = JSON.parse(
    readFileSync(`${fixtures}/quantized/expected.json`, "utf8"),
  );
  const [model, { ids, shape }] = [await adapted(), await inputs()];
  const [batch = 0, seq = 0] = shape;
  const labels = ids.map((_, i) => i % seq === seq - 1 ? -100 : ids[i + 1] ?? -100);
  const options = { learningRate: 1e-2, betas: [0.9, 0.999], eps: 1e-8, weightDecay: 0.01 } as const;
  const optimizer = new AdamW([...model.parameters()].filter(({ requiresGrad }) => requiresGrad), options);
  for (const [step, expected] of losses.entries()) {
    using _frame = scope();
    const given = { inputIds: tensor(run.device, ids, { shape, dtype: int32 }) };
    const { loss } = model.call({ ...given, labels: tensor(run.device, labels, { shape, dtype: int32 }) });
    const mean = loss?.mul(1 / (batch * (seq - 1)));
    mean?.backward();
    optimizer.step();
    optimizer.zeroGrad();
    const own = mean?.item() ?? NaN;
    assert.ok(Math.abs(own - expected) <= 1e-5, `step ${step}: ${own}, PEFT ${expected}`);
  }
  optimizer.dispose();
});

test("mergeLora() dequantizes the weights of a model in one process, and refuses sharded ones", async () => {
  const [model, { ids, shape }] = [await adapted(), await inputs()];
  const before = logitsOf(model, ids, shape);
  mergeLora(model, run.group);
  assert.ok(
    [...model.parameters()].filter(({ fqn }) => fqn.includes("q_proj")).every(({ dtype }) => dtype.name === "float32"),
  );
  close(logitsOf(model, ids, shape), before, 1e-4, "logits");
  const sharded = await openModel(run, `${fixtures}/llama-untied`, { quantization: { loadIn8bit: true } });
  addLora(sharded, { r: 2 });
  fullyShard(sharded, { mesh: run.mesh });
  await sharded.load();
  assert.throws(
    () => mergeLora(sharded, run.group),
    (error) =>
      error instanceof UnsupportedError && /is quantized to int8 and sharded; merge in a process/.test(error.message),
  );
});

test("a rank keeps as few bytes of a quantized layer as the format says", async () => {
  const sizes = {
    vocab_size: 64,
    hidden_size: 64,
    intermediate_size: 128,
    num_hidden_layers: 1,
    num_attention_heads: 4,
  };
  const bytesWith = async (quantization?: QuantizationOptions): Promise<number> => {
    const given = quantization === undefined ? {} : { quantization };
    const model = await openModel(run, { model_type: "llama", ...sizes }, given);
    addLora(model, { r: 4 });
    for (const layer of model.layers) fullyShard(layer, { mesh: run.mesh });
    fullyShard(model, { mesh: run.mesh });
    await model.load();
    return describeSharding(model).units.reduce((sum, { bytesPerRank }) => sum + bytesPerRank, 0);
  };
  const linear = 4 * 64 * 64 + 3 * 64 * 128;
  const wide = await bytesWith();
  assert.equal(wide - await bytesWith({ loadIn4bit: true }), linear * (4 - 36 / 64));
  assert.equal(wide - await bytesWith({ loadIn8bit: true }), linear * (4 - 68 / 64));
});

function succeeds(ended: Ended): Ended {
  assert.equal(ended.code, 0, ended.stdout + ended.stderr);
  return ended;
}

longTest(
  "a run with quantized layers has the same bits on any number of ranks, sharded and replicated, and the memory that it says",
  { timeout: 180_000 },
  async () => {
    succeeds(await runScript(flagsIn(folder, "--steps", "2", "--out", folder.file("base")), { ranks: 1 }));
    const train = async (out: string, ranks: number, ...more: readonly string[]): Promise<readonly string[]> => {
      const own = [
        "--model",
        folder.file("base/model"),
        "--out",
        folder.file(out),
        "--lora-r",
        "4",
        "--lora-alpha",
        "16",
      ];
      const flags = flagsIn(folder, "--steps", "3", ...own, ...more);
      const { stderr } = succeeds(await runScript(flags, { ranks }));
      const [, used, expected] = /Peak memory of a rank: (.+) \(predicted (.+)\)/.exec(stderr) ?? [];
      assert.ok(used !== undefined);
      if (!more.includes("--cpu-offload")) assert.equal(used, expected, out);
      return metricLines(folder, out).map(essence);
    };
    const wide = await train("wide", 2);
    const same = async (name: string, ranks: number, ...flags: readonly string[]): Promise<void> => {
      const sharded = await train(name, ranks, ...flags);
      assert.notDeepEqual(sharded, wide, name);
      assert.deepEqual(
        await train(`${name}-alone`, 1, ...flags, "--micro-batches", `${ranks}`),
        sharded,
        `${name}: one rank`,
      );
      for (const strategy of onlyInAll(["ddp"])) {
        const replicated = await train(`${name}-ddp`, ranks, ...flags, "--strategy", strategy);
        assert.deepEqual(replicated, sharded, `${name}: replicated`);
      }
    };
    await same("four", 2, "--load-in-4bit");
    const longCases = [
      ["three-ranks", 3, "--load-in-4bit", "--global-batch", "6"],
      ["four-ranks", 4, "--load-in-4bit"],
      ["eight", 2, "--load-in-8bit"],
      ["nested", 2, "--load-in-4bit", "--bnb-4bit-use-double-quant"],
      ["half", 2, "--load-in-4bit", "--precision", "bfloat16"],
    ] as const;
    for (const [name, ranks, ...flags] of onlyInAll(longCases)) await same(name, ranks, ...flags);
    const four = metricLines(folder, "four").map(essence);
    for (const flag of onlyInAll(["--cpu-offload"])) {
      assert.deepEqual(await train("offloaded", 2, "--load-in-4bit", flag), four);
    }
    const resumed = await train("going", 2, "--load-in-4bit", "--stop-after", "2", "--save-every", "2");
    assert.deepEqual(resumed, four.slice(0, 2));
    assert.deepEqual(await train("going", 1, "--load-in-4bit", "--micro-batches", "2", "--resume", "auto"), four);
  },
);

/** The loop of one's own: what `Run`, `openModel` and `textData` do, on one rank and on several. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { describe } from "node:test";
import { initializeParameters } from "../../src/nn/initialize.ts";
import { Linear } from "../../src/nn/linear.ts";
import { AdamW } from "../../src/optim/adamw.ts";
import { cosine } from "../../src/optim/schedule.ts";
import { buildModel } from "../../src/models/registry.ts";
import { tensor } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import { generate } from "../../src/train/generate.ts";
import { openModel } from "../../src/train/open_model.ts";
import { launch, Run } from "../../src/train/run.ts";
import { textData } from "../../src/train/text_data.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { valuesOf, world } from "../support/world.ts";
import { loop, type LoopReport, microBatch, parallelize, SIZES } from "./loop_ranks.ts";
import { sharedTest as it } from "../support/share.ts";

const CPU = { cpuMath: "wasm", memoryBytes: 2 ** 26 } as const;

function close(actual: number | undefined, expected: number | undefined, what: string): void {
  const [a, b] = [actual ?? NaN, expected ?? NaN];
  assert.ok(Math.abs(a - b) <= 1e-5 * Math.abs(b), `${what}: ${a} is not ${b}`);
}

describe("Run.backward()", () => {
  const even = [[[1, 0]], [[2, 0]]] as const;
  const uneven = [[[1, 0], [2, 5], [5, 0]], [[3, 3]]] as const; // 6, 1 and 6 tokens; 3 tokens
  const idle = [[[1, 0], [2, 1]], []] as const; // a rank without tokens
  for (const [name, batches] of Object.entries({ even, uneven, idle })) {
    it(`is the mean over all tokens, in every mode: ${name} ranks`, async () => {
      const [whole] = valuesOf<LoopReport>(
        await world(1, loop, { data: { mode: "plain", batches: [batches.flat()] } }),
      );
      const reports = new Map<string, readonly LoopReport[]>();
      for (const mode of ["fsdp", "ddp"] as const) {
        reports.set(mode, valuesOf<LoopReport>(await world(2, loop, { data: { mode, batches } })));
      }
      for (const [mode, [first, second]] of reports) {
        assert.deepEqual([first?.error, second?.error, whole?.error], ["", "", ""]);
        close(first?.loss, whole?.loss, `loss of ${mode}`);
        close(first?.norm, whole?.norm, `norm of ${mode}`);
        assert.deepEqual([second?.loss, second?.norm], [first?.loss, first?.norm]);
      }
      const [fsdp, ddp] = [reports.get("fsdp"), reports.get("ddp")];
      assert.deepEqual([fsdp?.[0]?.loss, fsdp?.[0]?.norm], [ddp?.[0]?.loss, ddp?.[0]?.norm], "modes differ");
    });
  }

  it("adds to the gradients that there are", async () => {
    const [once, twice] = await Promise.all(
      [1, 2].map(async (passes) =>
        valuesOf<LoopReport>(await world(2, loop, { data: { mode: "fsdp", batches: even, passes } }))[0]
      ),
    );
    close(twice?.norm, 2 * (once?.norm ?? NaN), "norm of two passes");
  });

  it("refuses what nobody reduces, by FQN", async () => {
    for (const { error } of valuesOf<LoopReport>(await world(2, loop, { data: { mode: "plain", batches: even } }))) {
      assert.match(
        error,
        /^ArgumentError: Cannot run a backward: nothing reduces 'model\.embed_tokens\.weight', .* fullyShard/,
      );
    }
  });

  it("is refused with a module of one's own, as textData() is", async () => {
    await using run = await launch(CPU);
    const own = new Linear(run.device, 2, 2);
    const expected = /Cannot use (run\.backward|textData) with a module of your own: it takes models of openModel/;
    assert.throws(() => Reflect.apply(run.backward, run, [own, {}]), expected);
    await assert.rejects(
      async () => await Reflect.apply(textData, undefined, [run, own, "README.md", { sequenceLength: 4, batch: 1 }]),
      expected,
    );
  });

  it("leaves the settings of what it reduces as they were", async () => {
    await using run = await launch(CPU);
    const model = await openModel(run, SIZES);
    parallelize(model, "ddp", run);
    await model.load();
    const reducer = [...model.parameters()][0]?.storage.reducer;
    assert.ok(reducer !== undefined);
    reducer.gradientDivideFactor = 5;
    using _frame = scope();
    run.backward(model, { microBatches: [microBatch(1, 0), microBatch(2, 0)] });
    assert.deepEqual([reducer.gradientDivideFactor, reducer.requiresGradientSync], [5, true]);
  });
});

describe("Run.log()", () => {
  it("prints names and values of the main rank's step", async () => {
    const [first, second] = valuesOf<LoopReport>(
      await world(2, loop, { data: { mode: "fsdp", batches: [[[1, 0]], [[2, 0]]] } }),
    );
    assert.match(first?.lines.join("") ?? "", /^step 7 {2}loss \d\.\d{4} {2}gradNorm \d\.\d{4}\n$/);
    assert.deepEqual(second?.lines, []);
  });

  it("reads scalars late, after the step's scope has ended", async () => {
    await using opened = await launch(CPU);
    const { device, group } = opened;
    const lines: string[] = [];
    let done = false;
    const stream = device.streams.get("compute");
    const streams = {
      ...device.streams,
      get: () => ({
        ...stream,
        record: () => ({
          get done() {
            return done;
          },
        }),
      }),
    };
    const late = Object.create(device, { streams: { value: streams } });
    const run = new Run({ device: late, group, print: (line) => lines.push(line) });
    const before = device.allocator.stats.inUse;
    for (const value of [1, 2]) {
      using _frame = scope();
      run.log({ loss: tensor(device, [value]).sum(), note: "late" });
    }
    assert.deepEqual(lines, []);
    done = true;
    run.log({ small: 0.00001 });
    assert.deepEqual(lines, ["step 0  loss 1  note late\n", "step 0  loss 2  note late\n", "step 0  small 1.000e-5\n"]);
    assert.equal(device.allocator.stats.inUse, before);
  });
});

describe("Run.log() in a loop without batches of textData()", () => {
  it("refuses by name what it cannot print", async () => {
    await using run = await launch(CPU);
    const expected =
      /^ArgumentError: Cannot log 'lr': expected a number, a text or a tensor of one element, got undefined$/;
    assert.throws(() => Reflect.apply(run.log, run, [{ lr: undefined }]), (error) => expected.test(String(error)));
  });

  it("begins with the optimizer's step, or the step that it is given", async () => {
    await using opened = await launch(CPU);
    const { device, group } = opened;
    const lines: string[] = [];
    const run = new Run({ device, group, print: (line) => lines.push(line) });
    const layer = new Linear(device, 1, 1);
    initializeParameters(layer, 1);
    const optimizer = new AdamW(layer.parameters(), { learningRate: 0.5, schedule: (step) => 1 / step });
    const rates: number[] = [];
    for (let i = 0; i < 3; i++) {
      using _frame = scope();
      optimizer.zeroGrad();
      layer.forward(tensor(device, [2])).sum().backward();
      for (const group of optimizer.groups) rates.push(optimizer.learningRateOf(group));
      optimizer.step();
      run.log({ i });
    }
    run.log({ step: 41, i: 3 });
    optimizer.dispose();
    assert.deepEqual(lines, ["step 1  i 0\n", "step 2  i 1\n", "step 3  i 2\n", "step 41  i 3\n"]);
    assert.deepEqual(rates, [0.5, 0.25, 0.5 / 3]);
  });
});

describe("openModel()", () => {
  it("draws the same first values on any number of ranks, saves them, and loads what was saved", async () => {
    using folder = temporaryDirectory();
    await using run = await launch(CPU);
    const model = await openModel(run, SIZES, { seed: 4 });
    await assert.rejects(async () => await buildModel(run.device, SIZES).load(), /open it by openModel/);
    await model.load();
    await model.save(folder.file("saved"));
    const again = await openModel(run, folder.file("saved"));
    parallelize(again, "fsdp", run);
    await again.load();
    await again.save(folder.file("again"));
    const bytes = (name: string): string => readFileSync(folder.file(`${name}/model.safetensors`)).toString("base64");
    assert.equal(bytes("again"), bytes("saved"));
    const sent = await openModel(run, folder.file("saved"));
    parallelize(sent, "fsdp", run);
    await sent.load({ broadcastFromRank0: true });
    await sent.save(folder.file("sent"));
    assert.equal(bytes("sent"), bytes("saved"));
    const drawn = await openModel(run, folder.file("saved/config.json"), { seed: 5 });
    await drawn.load();
    assert.notDeepEqual(drawn.layers.length, 0);
    await drawn.save(folder.file("drawn"));
    assert.notEqual(bytes("drawn"), bytes("saved"));
  });

  it("says which file is missing", async () => {
    await using run = await launch(CPU);
    await assert.rejects(openModel(run, "no/such/folder"), { name: "FileError", message: /no\/such\/folder/ });
  });
});

describe("textData()", () => {
  it("divides bytes among the ranks, and frees what its loop's body makes", async () => {
    using folder = temporaryDirectory();
    folder.write("a.txt", "Each byte is a token. ".repeat(20));
    await using run = await launch(CPU);
    const model = await openModel(run, { ...SIZES, vocab_size: 257 });
    using data = await textData(run, model, new URL(`file://${folder.file("a.txt")}`), {
      sequenceLength: 10,
      batch: 2,
    });
    await model.load();
    const optimizer = new AdamW(model.parameters(), { learningRate: 0.01, schedule: cosine({ steps: 20 }) });
    const losses: number[] = [];
    const inUse: number[] = [];
    for await (const batch of data.take(20)) {
      optimizer.zeroGrad();
      losses.push(run.backward(model, batch).item());
      tensor(run.device, [1, 2, 3]).mul(2);
      optimizer.step();
      inUse.push(run.device.allocator.stats.inUse);
    }
    assert.ok((losses.at(-1) ?? NaN) < 0.8 * (losses[0] ?? NaN), losses.join(" "));
    assert.equal(inUse.at(-1), inUse[2]);
    assert.equal(run.group.step, 20);
    assert.equal(data.tokenizer.decode(data.tokenizer.encode("größer")), "größer");
    assert.throws(() => data.tokenizer.decode([257]), /at most 256, got 257/);
  });

  it("ends documents with the token of eosToken, and lets a model's folder end what is generated", async () => {
    await using run = await launch(CPU);
    using folder = temporaryDirectory();
    const model = await openModel(run, { ...SIZES, vocab_size: 257, eos_token_id: 5 });
    await model.load();
    await model.save(folder.file("model"));
    folder.write("a.txt", "ab");
    const special = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };
    const added_tokens = [{ id: 2, content: "<one>", ...special }, { id: 3, content: "<two>", ...special }];
    const json = { added_tokens, model: { type: "BPE", vocab: { a: 0, b: 1 }, merges: [] } };
    folder.write("model/tokenizer.json", JSON.stringify(json));
    const options = { sequenceLength: 2, batch: 1 };
    for (const [eosToken, last] of [["<two>", 3], ["<one>", 2]] as const) {
      const opened = await openModel(run, folder.file("model"));
      assert.deepEqual(opened.eosIds, [5]);
      using data = await textData(run, opened, folder.file("a.txt"), { ...options, eosToken });
      assert.equal(data.tokenizer.eosId, last);
    }
    const bytes = textData(run, model, folder.file("a.txt"), { ...options, eosToken: "a" });
    await assert.rejects(bytes, {
      name: "ConfigError",
      message: /eosToken: expected a tokenizer that is read from files/,
    });
    const greedy = { maxNewTokens: 6, temperature: 0 };
    const text = generate(model, [1], { ...greedy, eosId: [] });
    const ends = [256, text[3] ?? -1];
    folder.write("model/generation_config.json", JSON.stringify({ eos_token_id: ends }));
    const ending = await openModel(run, folder.file("model"));
    await ending.load();
    assert.deepEqual(ending.eosIds, ends);
    assert.deepEqual(generate(ending, [1], greedy), text.slice(0, text.findIndex((id) => ends.includes(id))));
    folder.write("model/generation_config.json", JSON.stringify({ eos_token_id: null }));
    assert.deepEqual((await openModel(run, folder.file("model"))).eosIds, [5]);
  });

  it("refuses a tokenizer with more ids than the model, and patterns that match nothing", async () => {
    await using run = await launch(CPU);
    const model = await openModel(run, SIZES);
    const options = { sequenceLength: 8, batch: 1 };
    await assert.rejects(textData(run, model, "README.md", options), /at most 32 ids.*\n?.*257 from 'bytes'/s);
    const fitting = await openModel(run, { ...SIZES, vocab_size: 257 });
    await assert.rejects(textData(run, fitting, "no/such/*.txt", options), {
      name: "ConfigError",
      message: /no\/such/,
    });
  });
});

/** The dtype of frozen parameters in memory: the dtype of their file, with the bits of float32. @module */
import assert from "node:assert/strict";
import { after } from "node:test";
import {
  addLora,
  bfloat16,
  type CausalLm,
  float32,
  fullyShard,
  int32,
  launch,
  mergeLora,
  noGrad,
  openModel,
  scope,
  tensor,
} from "../../mod.ts";
import { getModelStateDict, loadCheckpoint, saveCheckpoint, setModelStateDict } from "../../doors/checkpoint.ts";
import { ArgumentError } from "../../doors/errors.ts";
import { fileURLToPath } from "node:url";
import { longTest, onlyInAll, sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { type Ended, essence, flagsIn, metricLines, run as runScript } from "../train/runs.ts";

const run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 28 });
after(() => run[Symbol.asyncDispose]());
const folder = temporaryDirectory();
after(() => folder[Symbol.dispose]());

/** A model in bfloat16. */
let narrow: Promise<string> | undefined;

async function makeNarrow(): Promise<string> {
  const model = await openModel(run, fileURLToPath(new URL("../fixtures/llama-untied", import.meta.url)));
  await model.load();
  await model.save(folder.file("narrow"), { dtype: bfloat16 });
  return folder.file("narrow");
}

/** The model, sharded, with an adapter whose second factors are not zero. */
async function adapted(options: { readonly frozenDtype?: "file" | typeof float32 } = {}): Promise<CausalLm> {
  const model = await openModel(run, await (narrow ??= makeNarrow()), options);
  addLora(model, { r: 4, targetModules: "all-linear" });
  for (const layer of model.layers) fullyShard(layer, { mesh: run.mesh });
  fullyShard(model, { mesh: run.mesh });
  await model.load();
  const values = getModelStateDict(model, { cpuOffload: true });
  for (const [name, tensor] of values) {
    if (name.includes("lora_B")) tensor.toArray().forEach((_, i, all) => all[i] = i % 7 / 50);
  }
  setModelStateDict(model, values, { group: run.group });
  return model;
}

function logitsOf(model: CausalLm): readonly number[] {
  using _frame = scope();
  const inputIds = tensor(run.device, [1, 5, 9, 2, 7, 3], { shape: [1, 6], dtype: int32 });
  return [...noGrad(() => model.call({ inputIds })).logits?.toArray() ?? []];
}

test("frozen parameters are kept in the dtype of their file, and compute what float32 does", async () => {
  const [kept, wide] = [await adapted(), await adapted({ frozenDtype: float32 })];
  const dtypes = (model: CausalLm): readonly string[] =>
    [...model.namedParameters()].map(([name, { storage }]) =>
      `${name.includes("lora_")} ${storage.flatShard.dtype.name}`
    );
  assert.deepEqual([...new Set(dtypes(kept))].sort(), ["false bfloat16", "true float32"]);
  assert.deepEqual([...new Set(dtypes(wide))].sort(), ["false float32", "true float32"]);
  assert.deepEqual(logitsOf(kept), logitsOf(wide));
  const [frozen] = [...kept.parameters()].filter(({ requiresGrad }) => !requiresGrad);
  assert.throws(
    () => frozen !== undefined && (frozen.requiresGrad = true),
    (error) =>
      error instanceof ArgumentError &&
      /it was sharded while it was frozen, and is kept in bfloat16/.test(error.message),
  );
});

test("what is kept in bfloat16 is saved, loaded and merged as float32 is", async () => {
  const [kept, wide] = [await adapted(), await adapted({ frozenDtype: float32 })];
  const values = (model: CausalLm): readonly (readonly [string, readonly number[]])[] =>
    [...getModelStateDict(model, { group: run.group, fullStateDict: true })].map((
      [name, { toArray }],
    ) => [name, [...toArray()]]);
  const before = values(kept);
  assert.deepEqual(before, values(wide));
  const { group } = run;
  await saveCheckpoint({ directory: folder.file("whole"), step: 1, model: kept, group, state: {} });
  setModelStateDict(
    kept,
    new Map(Array.from(getModelStateDict(kept), ([name, { shape, boxes }]) => {
      return [name, { shape, boxes, toArray: () => new Float32Array(shape.reduce((a, b) => a * b, 1)) }] as const;
    })),
    { group },
  );
  assert.notDeepEqual(values(kept), before);
  await loadCheckpoint({ directory: folder.file("whole"), model: kept, group });
  assert.deepEqual(values(kept), before);
  for (const [model, name] of [[kept, "kept"], [wide, "wide"]] as const) {
    mergeLora(model, group);
    await model.save(folder.file(name), { dtype: bfloat16 });
  }
  const [own, other] = await Promise.all(["kept", "wide"].map(async (name) => {
    const model = await openModel(run, folder.file(name));
    await model.load();
    return values(model);
  }));
  assert.deepEqual(own, other);
});

const LORA = ["--lora-r", "4", "--lora-alpha", "16"];

function succeeds(ended: Ended): Ended {
  assert.equal(ended.code, 0, ended.stdout + ended.stderr);
  return ended;
}

longTest(
  "a run keeps frozen weights in bfloat16 with the bits of float32, and says its memory",
  { timeout: 60_000 },
  async () => {
    const wide = flagsIn(folder, "--steps", "2", "--out", folder.file("base"));
    succeeds(await runScript(wide, { ranks: 1 }));
    const model = await openModel(run, folder.file("base/model"));
    await model.load();
    await model.save(folder.file("base16"), { dtype: bfloat16 });
    const peaks = new Map<string, number>();
    const train = async (out: string, ranks: number, ...more: readonly string[]): Promise<readonly string[]> => {
      const flags = flagsIn(
        folder,
        "--steps",
        "3",
        "--model",
        folder.file("base16"),
        "--out",
        folder.file(out),
        ...LORA,
        ...more,
      );
      const { stderr } = succeeds(await runScript(flags, { ranks }));
      const [, used, expected] = /Peak memory of a rank: (.+) \(predicted (.+)\)/.exec(stderr) ?? [];
      assert.ok(used !== undefined);
      if (!more.includes("--cpu-offload")) assert.equal(used, expected, out);
      const line: { readonly peak_bytes: number } = JSON.parse(metricLines(folder, out).at(-1) ?? "");
      peaks.set(out, line.peak_bytes);
      return metricLines(folder, out).map(essence);
    };
    const file = await train("file", 2);
    for (
      const [out, ranks, ...more] of [
        ["float32", 2, "--frozen-dtype", "float32"],
        ...onlyInAll(
          [
            ["replicated", 2, "--strategy", "ddp"],
            ["alone", 1, "--micro-batches", "2"],
            ["offloaded", 2, "--cpu-offload"],
          ] as const,
        ),
      ] as const
    ) assert.deepEqual(await train(out, ranks, ...more), file, out);
    assert.ok((peaks.get("file") ?? NaN) < (peaks.get("float32") ?? NaN));
    const half = await train("half", 2, "--precision", "bfloat16");
    assert.deepEqual(await train("half-wide", 2, "--precision", "bfloat16", "--frozen-dtype", "float32"), half);
    for (const strategy of onlyInAll(["ddp"])) {
      assert.deepEqual(await train("half-replicated", 2, "--precision", "bfloat16", "--strategy", strategy), half);
    }
    assert.ok((peaks.get("half") ?? NaN) < (peaks.get("half-wide") ?? NaN));
  },
);

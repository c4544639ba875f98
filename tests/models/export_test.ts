/**
 * Every family's Hugging Face folder, read and written again: the same tensors under the same names, and a config in which
 * transformers finds floats where it wants floats.
 *
 * @module
 */
import assert from "node:assert/strict";
import { mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { test } from "node:test";
import { loadHfWeights } from "../../src/checkpoint/load_hf.ts";
import { openSafetensors } from "../../src/checkpoint/safetensors.ts";
import { saveHfDirectory } from "../../src/checkpoint/save_hf.ts";
import { openDevice } from "../../src/device/registry.ts";
import { buildModel } from "../../src/models/registry.ts";
import { fixturePath, readJson } from "../support/golden.ts";

const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 26 });

/** The bytes of every tensor of a folder. */
async function tensorsOf(folder: string): Promise<ReadonlyMap<string, Uint8Array>> {
  using file = await openSafetensors(`${folder}/model.safetensors`);
  const tensors = new Map<string, Uint8Array>();
  for (const { name, byteLength } of file.entries) {
    const bytes = new Uint8Array(byteLength);
    await file.readInto(name, 0, byteLength, bytes);
    tensors.set(name, bytes);
  }
  return tensors;
}

const MODELS = readdirSync(fixturePath("")).filter((name) => readdirSync(fixturePath(name)).includes("config.json"));
for (const name of MODELS.sort()) {
  test(`saveHfDirectory() writes what loadHfWeights() read: ${name}`, async () => {
    const into = mkdtempSync(`${tmpdir()}/fullyshard-export-`);
    try {
      const model = buildModel(device, readJson(`${name}/config.json`));
      await loadHfWeights(model, fixturePath(name));
      await saveHfDirectory(model, into);
      const [before, after] = [await tensorsOf(fixturePath(name)), await tensorsOf(into)];
      assert.deepEqual([...after.keys()].sort(), [...before.keys()].sort());
      for (const [tensor, bytes] of before) assert.deepEqual(after.get(tensor), bytes, tensor);
      const text = readFileSync(`${into}/config.json`, "utf8");
      assert.deepEqual(JSON.parse(text), readJson(`${name}/config.json`));
      const floats = (config: string): string[] =>
        [...config.matchAll(/^ {2}"\w+": -?\d+\.0,?$/gm)].map(([line]) => line);
      const wanted = floats(readFileSync(fixturePath(`${name}/config.json`), "utf8"));
      assert.deepEqual(wanted.filter((line) => !floats(text).includes(line)), []);
      for (const parameter of model.parameters()) parameter.dispose();
    } finally {
      rmSync(into, { recursive: true });
    }
  });
}

/**
 * Every family's Hugging Face folder, read and written again: the same tensors under the same names, and a config in which
 * transformers finds floats where it wants floats.
 *
 * @module
 */
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { test } from "node:test";
import { openHfWeights } from "../../src/checkpoint/format/hf_index.ts";
import { openSafetensors } from "../../src/checkpoint/format/safetensors.ts";
import { loadHfWeights } from "../../src/checkpoint/hugging_face/load.ts";
import { nameTensors } from "../../src/checkpoint/hugging_face/names.ts";
import { saveHfDirectory } from "../../src/checkpoint/hugging_face/save.ts";
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

const MODELS = readdirSync(fixturePath("")).filter((name) => existsSync(fixturePath(`${name}/config.json`)));
for (const name of MODELS.sort()) {
  test(`saveHfDirectory() writes what loadHfWeights() read: ${name}`, async () => {
    const into = mkdtempSync(`${tmpdir()}/fullyshard-export-`);
    try {
      const model = buildModel(device, readJson(`${name}/config.json`));
      await loadHfWeights(model, fixturePath(name));
      await saveHfDirectory(model, into);
      const [before, after] = [await tensorsOf(fixturePath(name)), await tensorsOf(into)];
      // Files of others have names of their own, and tensors that the model has not.
      using weights = await openHfWeights(fixturePath(name));
      const { found, undivided } = nameTensors(model, weights.tensors);
      const isWhole = new Set(undivided);
      if (isWhole.size === 0) assert.deepEqual([...after.keys()].sort(), [...found.keys()].sort());
      for (const [tensor, stored] of found) {
        if (!isWhole.has(tensor)) assert.deepEqual(after.get(tensor), before.get(stored.name), tensor);
      }
      const text = readFileSync(`${into}/config.json`, "utf8");
      const { text_config: inside, ...alone } = readJson(`${name}/config.json`);
      assert.deepEqual(JSON.parse(text), inside ?? alone);
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

/**
 * Loads Hugging Face folders and writes them again, for `check_exports.py`, with the losses that this library computes of their
 * `input_ids`: one JSON object a line.
 *
 * Usage: node scripts/runtime.mjs bun scripts/export_reference.ts <folder to write into> <folder> ...
 *
 * @module
 */
import { basename } from "node:path";
import process from "node:process";
import { at } from "../src/at.ts";
import { loadHfWeights, readHfConfig, saveHfDirectory } from "../doors/checkpoint.ts";
import { openDevice } from "../doors/device.ts";
import { buildModel } from "../doors/nn.ts";
import { int32, noGrad, scope, tensor } from "../mod.ts";
import { StoredTensors } from "./reference/directory.ts";

const [into = "", ...folders] = process.argv.slice(2);
const device = await openDevice("cpu", { cpuMath: "wasm" });
for (const folder of folders) {
  using _frame = scope();
  const model = buildModel(device, await readHfConfig(folder));
  await loadHfWeights(model, folder);
  model.eval();
  const written = `${into}/${basename(folder)}`;
  await saveHfDirectory(model, written);
  const stored = await StoredTensors.read(`${folder}/expected.safetensors`);
  const [ids, shape] = [stored.ints("input_ids"), stored.shape("input_ids")];
  const seq = at(shape, 1, "dim of input_ids");
  const labels = ids.map((_, i) => i % seq === seq - 1 ? -100 : at(ids, i + 1, "token"));
  const loss = noGrad(() => {
    const inputIds = tensor(device, ids, { shape, dtype: int32 });
    return model.call({ inputIds, labels: tensor(device, labels, { shape, dtype: int32 }) }).loss?.item() ?? NaN;
  });
  const count = labels.filter((label) => label >= 0).length;
  process.stdout.write(`${JSON.stringify({ folder, written, loss: loss / count })}\n`);
  for (const parameter of model.parameters()) parameter.dispose();
}

/**
 * The loss of a Hugging Face folder on given tokens, as this library computes it: the mean cross-entropy of each token after
 * the first, and the ids that the folder's tokenizer makes of a text. `check_hf_export.py` compares both with transformers.
 *
 * Usage: node scripts/runtime.mjs bun scripts/loss_of_model.ts <folder> <text file> <tokens> [cpu math]
 *
 * @module
 */
import { readFileSync } from "node:fs";
import process from "node:process";
import { buildModel } from "../doors/nn.ts";
import { fullyShard, int32, noGrad, tensor } from "../mod.ts";
import { loadHfWeights, readHfConfig } from "../doors/checkpoint.ts";
import { loadTokenizer } from "../doors/data.ts";
import { openDevice } from "../doors/device.ts";
import { openProcessGroup } from "../doors/comm.ts";

const [folder = "", text = "", count = ""] = process.argv.slice(2);
const device = await openDevice("cpu", { cpuMath: "wasm" });
using group = await openProcessGroup({ device, rank: 0, worldSize: 1 });
const model = buildModel(device, await readHfConfig(folder));
fullyShard(model, { mesh: group });
await loadHfWeights(model, folder, group);
model.eval();
const tokenizer = await loadTokenizer(folder);
const ids = tokenizer.encode(readFileSync(text, "utf8")).slice(0, Number(count));
const shape = [1, ids.length - 1];
const loss = noGrad(() => {
  const inputIds = tensor(device, ids.slice(0, -1), { shape, dtype: int32 });
  const labels = tensor(device, ids.slice(1), { shape, dtype: int32 });
  return model.call({ inputIds, labels }).loss?.item() ?? NaN;
});
process.stdout.write(`${JSON.stringify({ loss: loss / (ids.length - 1), ids })}\n`);

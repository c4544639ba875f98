/**
 * The model of a checkpoint or folder, without values, as commands need it that rewrite weights without ranks.
 *
 * @module
 */
import { refuseAdapter } from "../checkpoint/format/adapters.ts";
import { companionsOf } from "../checkpoint/format/companions.ts";
import { INDEX_FILE, SINGLE_FILE } from "../checkpoint/format/hf_index.ts";
import { openDevice } from "../device/registry.ts";
import { ConfigError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { buildModel } from "../models/registry.ts";
import { pathExists, pathKind } from "../runtime/files.ts";
import { readHfConfig } from "../train/open_model.ts";

/** Bytes of memory for a model without values. */
const MODEL_BYTES = 2 ** 24;

/**
 * Builds the model for as long as `use` takes.
 *
 * @param from the checkpoint or folder
 * @param modelConfig a `config.json` or its folder, in place of the checkpoint's own; a folder's small files go with the model
 * @param use gets undefined for a module of one's own, which is saved with an empty config
 * @throws {CheckpointError} for the folder of an adapter
 * @throws {FileError} if there is no config
 * @throws {UnsupportedError} for a model that there is not
 */
export async function withStoredModel<Result>(
  from: string,
  modelConfig: string | undefined,
  use: (model: CausalLm | undefined) => Promise<Result>,
): Promise<Result> {
  if (pathKind(from) === "directory") refuseAdapter(from);
  const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: MODEL_BYTES });
  try {
    const hfConfig = await readHfConfig(modelConfig ?? from);
    const model = Object.keys(hfConfig).length === 0 ? undefined : buildModel(device, hfConfig);
    if (model !== undefined && modelConfig !== undefined && pathKind(modelConfig) === "directory") {
      model.companions = companionsOf(modelConfig);
    }
    return await use(model);
  } finally {
    device.dispose();
  }
}

/** Refuses a folder that has weights. @throws {ConfigError} naming the key that it was given by */
export function requireWithoutWeights(folder: string, path: string): void {
  if (![SINGLE_FILE, INDEX_FILE].some((name) => pathExists(`${folder}/${name}`))) return;
  const expected = "a folder without weights, or --overwrite to write over them";
  throw new ConfigError([{ path, expected, got: `'${folder}', which has some` }]);
}

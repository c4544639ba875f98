/**
 * `fullyshard merge`: the weights of a sharded checkpoint, of this library or of PyTorch, as a Hugging Face folder; or a model with an
 * adapter merged into it.
 *
 * @module
 */
import process from "node:process";
import * as z from "zod";
import { mergeLora } from "../adapters/merge.ts";
import { MAX_SHARD_BYTES, type SaveHfOptions } from "../checkpoint/hugging_face/save.ts";
import { mergeCheckpoint } from "../checkpoint/offline/merge.ts";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { section } from "../config/section.ts";
import { dtypeFrom } from "../dtype.ts";
import { ConfigError } from "../errors.ts";
import { openModel } from "../train/open_model.ts";
import { launch } from "../train/run.ts";
import { formatBytes } from "../words.ts";
import { averagesKey, placesKey, requirePlaces } from "./places.ts";
import { requireWithoutWeights, withStoredModel } from "./stored_model.ts";
import { path } from "../train/config_values.ts";

const SECTIONS = [section(
  "merge",
  z.strictObject({
    places: placesKey.describe("The checkpoint, then the folder to write, as arguments or by --places"),
    modelConfig: path.optional().describe(
      "config.json of the model, or its folder; the checkpoint's own unless given",
    ),
    adapter: path.optional().describe(
      "Folder of a PEFT adapter, to merge into the model of the first folder, which is a Hugging Face folder then",
    ),
    averages: averagesKey,
    dtype: z.enum(["float32", "bfloat16", "float16"]).default("float32").describe("Dtype of the written weights"),
    maxShardBytes: z.int().positive().default(MAX_SHARD_BYTES).describe("Most bytes of tensors in one file"),
    overwrite: z.boolean().default(false).describe("Write over the weights that are in the folder"),
  }),
)] as const;

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/**
 * Writes the folder.
 *
 * @param argv the arguments after `merge`
 * @returns the exit code
 * @throws {CheckpointError} {@link FileError} if the checkpoint is not complete, or does not fit its config
 * @throws {ConfigError} for arguments that are wrong
 * @throws {UnsupportedError} for a model that there is not
 */
export async function merge(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    process.stdout.write(`${await configHelp(SECTIONS, "fullyshard merge <checkpoint> <folder> [flags]")}\n`);
    return 0;
  }
  const { places, modelConfig, adapter, averages, dtype, maxShardBytes, overwrite } = await resolveConfig(SECTIONS, {
    argv,
    positional: "places",
  });
  requirePlaces(places, ["checkpoint", "folder"]);
  const [from, to] = places;
  if (!overwrite) requireWithoutWeights(to, "folder");
  const options = { dtype: dtypeFrom(dtype), maxShardBytes };
  if (adapter !== undefined) {
    if (modelConfig !== undefined) {
      const got = "both: with an adapter the first folder has the model's config";
      throw new ConfigError([{ path: "--model-config", expected: "nothing beside --adapter", got }]);
    }
    if (averages) {
      const expected = "nothing beside --adapter: a run saves an adapter's averages as the adapter";
      throw new ConfigError([{ path: "averages", expected, got: "both" }]);
    }
    return await mergeAdapter(from, adapter, to, options);
  }
  return await withStoredModel(from, modelConfig, async (model) => {
    const bytes = await mergeCheckpoint(from, to, model, { ...options, averages });
    process.stdout.write(`Wrote ${formatBytes(bytes)} of weights to '${to}'\n`);
    return 0;
  });
}

/** Merges an adapter into its base model, which this process holds in full, in float32. */
async function mergeAdapter(from: string, adapter: string, to: string, options: SaveHfOptions): Promise<number> {
  await using run = await launch();
  const model = await openModel(run, from, { adapter });
  await model.load();
  mergeLora(model, run.group);
  await model.save(to, options);
  process.stdout.write(`Wrote '${from}' with the adapter '${adapter}' merged to '${to}'\n`);
  return 0;
}

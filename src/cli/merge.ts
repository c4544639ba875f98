/**
 * `fullyshard merge`: the weights of a sharded checkpoint, of this library or of PyTorch, as a Hugging Face folder.
 *
 * @module
 */
import process from "node:process";
import * as z from "zod";
import { MAX_SHARD_BYTES } from "../checkpoint/hugging_face/save.ts";
import { mergeCheckpoint } from "../checkpoint/offline/merge.ts";
import { helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { section } from "../config/section.ts";
import { dtypeFrom } from "../dtype.ts";
import { formatBytes } from "../words.ts";
import { placesKey, requirePlaces } from "./places.ts";
import { requireWithoutWeights, withStoredModel } from "./stored_model.ts";

const SECTIONS = [section(
  "merge",
  z.strictObject({
    places: placesKey.describe("The checkpoint, then the folder to write, with or without --places"),
    modelConfig: z.string().optional().describe(
      "config.json of the model, or its folder; the checkpoint's own unless given",
    ),
    dtype: z.enum(["float32", "bfloat16", "float16"]).default("float32").describe("What weights are written in"),
    maxShardBytes: z.int().positive().default(MAX_SHARD_BYTES).describe("Most bytes of tensors in one file"),
    overwrite: z.boolean().default(false).describe("Write over the weights that are in the folder"),
  }),
)] as const;

/**
 * Writes the folder.
 *
 * @param argv the arguments after `merge`
 * @returns the exit code
 * @throws {CheckpointError} {@link FileError} if the checkpoint is not whole, or does not fit its config
 * @throws {ConfigError} for arguments that are wrong
 * @throws {UnsupportedError} for a model that there is not
 */
export async function merge(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    process.stdout.write(`${await configHelp(SECTIONS, "fullyshard merge <checkpoint> <folder> [flags]")}\n`);
    return 0;
  }
  const { places, modelConfig, dtype, maxShardBytes, overwrite } = await resolveConfig(SECTIONS, {
    argv,
    positional: "places",
  });
  requirePlaces(places, ["checkpoint", "folder"]);
  const [from, to] = places;
  if (!overwrite) requireWithoutWeights(to, "folder");
  return await withStoredModel(from, modelConfig, async (model) => {
    const bytes = await mergeCheckpoint(from, to, model, { dtype: dtypeFrom(dtype), maxShardBytes });
    process.stdout.write(`Wrote ${formatBytes(bytes)} of weights to '${to}'\n`);
    return 0;
  });
}

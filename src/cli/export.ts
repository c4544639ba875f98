/**
 * `fullyshard export`: a checkpoint or folder as one GGUF file, which llama.cpp and what is built on it run, or as a Hugging
 * Face folder in a chosen dtype.
 *
 * @module
 */
import process from "node:process";
import * as z from "zod";
import { companionsOf, withMissing } from "../checkpoint/format/companions.ts";
import { ENCODINGS } from "../checkpoint/gguf/encodings.ts";
import { exportGguf } from "../checkpoint/gguf/export.ts";
import { noTokenizer, type TokenizerKeys, tokenizerKeys } from "../checkpoint/gguf/tokenizer.ts";
import { readTokenizerFiles } from "../checkpoint/gguf/tokenizer_files.ts";
import { mergeCheckpoint } from "../checkpoint/offline/merge.ts";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { needs } from "../config/needs.ts";
import { section } from "../config/section.ts";
import { bfloat16, type DType, float16, float32 } from "../dtype.ts";
import { eosIdsOf } from "../eos_ids.ts";
import { ConfigError, UnsupportedError } from "../errors.ts";
import { parseJsonObject } from "../json.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { GGUF_FAMILIES, ggufPlan } from "../models/gguf/families.ts";
import { pathExists, pathKind } from "../runtime/files.ts";
import { formatBytes, whichAre } from "../words.ts";
import { averagesKey, placesKey, requirePlaces } from "./places.ts";
import { requireWithoutWeights, withStoredModel } from "./stored_model.ts";
import { path } from "../train/config_values.ts";

const SECTIONS = [section(
  "export",
  z.strictObject({
    places: placesKey.describe("The checkpoint or Hugging Face folder, as an argument or by --places"),
    out: path.optional().describe("The file to write; with --format hf, the folder"),
    format: z.enum(["gguf", "hf"]).default("gguf").describe("A GGUF file, or a Hugging Face folder"),
    dtype: z.enum(["f32", "f16", "bf16", "q8_0"]).default("f32").describe(
      "Encoding of matrices; vectors of GGUF files are always f32",
    ),
    modelConfig: path.optional().describe(
      "config.json of the model, or its folder; the checkpoint's own unless given",
    ),
    averages: averagesKey,
    tokenizer: path.optional().describe(
      "Folder of the tokenizer, or 'none' for a file without one; the model's own unless given",
    ),
    pre: z.string().min(1).optional().describe(
      "llama.cpp's name of the pre-tokenizer, where it is not known by its regular expression",
    ),
    overwrite: z.boolean().default(false).describe("Write over what is there"),
  }),
)] as const;

/** Dtypes of folders by the names of the flag. */
const DTYPES: ReadonlyMap<string, DType> = new Map([["f32", float32], ["f16", float16], ["bf16", bfloat16]]);

/** Names of tensors that one line shows. */
const MOST_SHOWN = 4;

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/**
 * Writes the file or folder.
 *
 * @param argv the arguments after `export`
 * @returns the exit code
 * @throws {CheckpointError} {@link FileError} if the checkpoint is not complete, or does not fit its config
 * @throws {ConfigError} for arguments that are wrong
 * @throws {UnsupportedError} for a model or tokenizer that llama.cpp does not read, or that is not mapped
 */
export async function exportModel(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    process.stdout.write(`${await configHelp(SECTIONS, "fullyshard export <model> --out <file> [flags]")}\n`);
    return 0;
  }
  const given = await resolveConfig(SECTIONS, { argv, positional: "places" });
  requirePlaces(given.places, ["model"]);
  const { places: [from], out, format, dtype, tokenizer, pre, overwrite, averages } = given;
  if (out === undefined) throw new ConfigError([{ path: "out", expected: "the file to write", got: "nothing" }]);
  return await withStoredModel(from, given.modelConfig, async (model) => {
    if (format === "hf") {
      if (tokenizer !== undefined || pre !== undefined) {
        const path = tokenizer === undefined ? "pre" : "tokenizer";
        throw new ConfigError([needs(path, "--format gguf", tokenizer ?? pre)]);
      }
      return await exportFolder(from, out, model, { dtype, overwrite, averages });
    }
    if (model === undefined) {
      const families = whichAre(GGUF_FAMILIES, "supported");
      throw new UnsupportedError(`Cannot write '${from}' into GGUF: its config names no model_type; ${families}`);
    }
    requireNewFile(out, overwrite);
    const plan = ggufPlan(model);
    const keys = tokenizerOf(from, model, { tokenizer, pre });
    const encoding = ENCODINGS[dtype];
    const { byteLength, tensors, unblocked } = await exportGguf({
      from,
      to: out,
      model,
      plan,
      encoding,
      tokenizer: keys.metadata,
      averages,
    });
    const notes = [...plan.notes, ...keys.notes];
    if (unblocked.length > 0) {
      const more = unblocked.length > MOST_SHOWN ? ` and ${unblocked.length - MOST_SHOWN} more` : "";
      const shown = unblocked.slice(0, MOST_SHOWN).join(", ");
      notes.push(
        `written as F16, as their rows are no multiples of ${encoding.blockLength} elements: ${shown}${more}`,
      );
    }
    process.stdout.write(
      `Wrote ${tensors} tensors, ${
        formatBytes(byteLength)
      }, of architecture '${plan.architecture}' as ${encoding.name} to ` +
        `'${out}'\n${notes.map((note) => `Note: ${note}\n`).join("")}`,
    );
    return 0;
  });
}

async function exportFolder(
  from: string,
  to: string,
  model: CausalLm | undefined,
  { dtype: name, overwrite, averages }: {
    readonly dtype: string;
    readonly overwrite: boolean;
    readonly averages: boolean;
  },
): Promise<number> {
  const dtype = DTYPES.get(name);
  if (dtype === undefined) {
    throw new ConfigError([{ path: "dtype", expected: [...DTYPES.keys()].join(", "), got: `${name}, of GGUF alone` }]);
  }
  if (!overwrite) requireWithoutWeights(to, "out");
  const bytes = await mergeCheckpoint(from, to, model, { dtype, averages });
  process.stdout.write(`Wrote ${formatBytes(bytes)} of weights as ${dtype.name} to '${to}'\n`);
  return 0;
}

function requireNewFile(out: string, overwrite: boolean): void {
  const kind = pathKind(out);
  if (kind === "directory") throw new ConfigError([{ path: "out", expected: "a file", got: `'${out}', a folder` }]);
  if (overwrite || !pathExists(out)) return;
  const expected = "a file that is not there, or --overwrite to replace it";
  throw new ConfigError([{ path: "out", expected, got: `'${out}', which is` }]);
}

/** The keys of the tokenizer that lies with the model, or elsewhere. */
function tokenizerOf(
  from: string,
  model: CausalLm,
  { tokenizer, pre }: { readonly tokenizer: string | undefined; readonly pre: string | undefined },
): TokenizerKeys {
  if (tokenizer === "none") return noTokenizer();
  const own = withMissing(model.companions, companionsOf(from)).read();
  const files = tokenizer === undefined ? own : companionsOf(tokenizer).read();
  const where = tokenizer ?? from;
  const read = readTokenizerFiles(files, where);
  if (read === undefined) {
    throw new ConfigError([{
      path: "tokenizer",
      expected: "a folder with tokenizer.json, or --tokenizer none for a file that takes ids alone",
      got: `'${where}', which has none`,
    }]);
  }
  const { vocabSize, hfConfig } = model;
  return tokenizerKeys(read, { vocabSize, hfConfig, pre, eosIds: endIds(own, from, hfConfig) });
}

/** Ids that end texts, by `generation_config.json`, else by the config. */
function endIds(
  files: ReadonlyMap<string, Uint8Array>,
  folder: string,
  hfConfig: Readonly<Record<string, unknown>>,
): readonly number[] {
  const name = "generation_config.json";
  const bytes = files.get(name);
  const file = `${folder}/${name}`;
  const ids = bytes === undefined
    ? []
    : eosIdsOf(parseJsonObject(bytes, { file, what: "generation config", maxDepth: 32 }), file);
  return ids.length > 0 ? ids : eosIdsOf(hfConfig, `${folder}/config.json`);
}

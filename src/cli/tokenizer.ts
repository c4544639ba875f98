/**
 * `fullyshard tokenizer`: a tokenizer learned from one's own text, for `--tokenizer` of a training run and for
 * `transformers`.
 *
 * @module
 */
import process from "node:process";
import * as z from "zod";
import { datasetPath } from "../checkpoint/hugging_face/hub_cache.ts";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { section } from "../config/section.ts";
import { openDocuments } from "../data/rows/open_documents.ts";
import { MIN_VOCAB_SIZE, trainTokenizer } from "../data/train_tokenizer.ts";
import { ConfigError } from "../errors.ts";
import { pathExists } from "../runtime/files.ts";
import { dataSection } from "../train/config.ts";
import { countOf, formatBytes } from "../words.ts";
import { path } from "../train/config_values.ts";

/** The defaults of a training. */
const usual = dataSection.schema.parse({});

const SECTIONS = [section(
  "tokenizer",
  z.strictObject({
    data: z.array(path).default([]).describe("Text or .jsonl files, folders or globs, as arguments or by --data"),
    textField: z.string().default(usual.textField).describe("Key of a .jsonl line that holds its text"),
    vocab: z.int().min(MIN_VOCAB_SIZE).default(4096).describe("Entries of the vocabulary")
      .meta({ otherNames: ["vocabulary", "vocab-size", "vocabulary-size"] }),
    out: path.default("tokenizer").describe("Folder for tokenizer.json and tokenizer_config.json"),
    overwrite: z.boolean().default(false).describe("Replace the tokenizer that is in the output folder"),
  }),
)] as const;

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/**
 * Learns a tokenizer, writes its folder and says what it makes of the text.
 *
 * @param argv the arguments after `tokenizer`
 * @returns the exit code
 * @throws {ConfigError} for arguments that are wrong, and text that cannot be read
 * @throws {FileError} if the folder cannot be written
 */
export async function tokenizer(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    process.stdout.write(`${await configHelp(SECTIONS, "fullyshard tokenizer <data>... [flags]")}\n`);
    return 0;
  }
  const config = await resolveConfig(SECTIONS, { argv, positional: "data" });
  const { out, vocab, textField } = config;
  if (config.data.length === 0) {
    throw new ConfigError([{
      path: "data",
      expected: "files to learn from, as arguments or by '--data'",
      got: "nothing",
    }]);
  }
  if (!config.overwrite && pathExists(`${out}/tokenizer.json`)) {
    const expected = "a folder without a tokenizer, or --overwrite to replace it";
    throw new ConfigError([{ path: "--out", expected, got: `'${out}', which has one` }]);
  }
  const source = await openDocuments(config.data.map((text) => datasetPath(text, "data")), { textField, name: "data" });
  const { files: { length }, byteLength } = source;
  process.stdout.write(`Reading ${countOf(length, "file")}, ${formatBytes(byteLength)}\n`);
  const trained = await trainTokenizer(source, { vocabSize: vocab });
  trained.save(out);
  const fewer = trained.vocabSize < vocab ? ", as no more pairs occur twice" : "";
  const bytes = (byteLength / trained.tokens).toFixed(2);
  process.stdout.write(
    `${trained.vocabSize} entries${fewer}; a token stands for ${bytes} bytes. Train with --tokenizer ${out}\n`,
  );
  return 0;
}

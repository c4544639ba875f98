/**
 * Opens the data of a run: what it trains on, and what it is evaluated on.
 *
 * @module
 */
import { BYTE_TOKENIZER, type Tokenizer } from "../data/tokenizer.ts";
import type { Packing } from "../data/samples/rows.ts";
import { ConfigError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import type { Logger } from "../runtime/log.ts";
import { countOf, formatBytes } from "../words.ts";
import type { RunConfig } from "./config.ts";
import { requireNoEpochs } from "./evaluation_config.ts";
import { problemsOfText } from "./data_source.ts";
import { HeldOut, heldOutSets } from "./held_out.ts";
import { hasReference, precomputes, preferenceLossOf } from "./preference_config.ts";
import type { Run } from "./run.ts";
import { type TextData, textData } from "./text_data.ts";

/** Opens what a run trains on. Every rank must call it. @throws {ConfigError} as {@link textData} */
export async function openData(config: RunConfig, run: Run, model: CausalLm, log: Logger): Promise<TextData> {
  if (config.tokenizer === undefined && model.files?.folder === undefined) tellBytes(model, log.once());
  const readsAll = hasReference(config) && precomputes(config); // before the first step
  const streaming = readsAll ? false : config.streaming;
  const data = await openOne(config, run, model, log, {
    ...{ files: config.data, name: "data", packing: config.packing, streaming },
  });
  if (data.epoch === undefined) requireNoEpochs(config);
  return data;
}

/**
 * Opens the sets of held-out data. Settings of rows (`chatTemplate`, `lossOn`) may be for any of them, or for the data that is
 * trained on; sets of text are read without. Every rank must call it.
 *
 * @param data what the run trains on
 * @throws {ConfigError} as {@link textData}, and for settings of rows where all data is text
 */
export async function openHeldOut(
  config: RunConfig,
  run: Run,
  model: CausalLm,
  data: TextData,
  log: Logger,
): Promise<HeldOut | undefined> {
  if (config.evalData.length === 0) return undefined;
  using opened = new DisposableStack();
  const sets = new Map<string, TextData>();
  for (const [set, files] of heldOutSets(config.evalData)) {
    const packing = config.packing === "wrapped" ? undefined : config.packing; // sets may be text or rows
    const streaming = config.preference === undefined ? config.streaming : false; // pairs are measured by their numbers
    const part = { files, name: "evalData", packing, streaming, tokenizer: data.tokenizer };
    sets.set(set, opened.use(await openOne(config, run, model, log, part)));
  }
  const heldOut = new HeldOut(sets, preferenceLossOf(config));
  const problems = data.isRows || heldOut.hasRows ? [] : problemsOfText(config);
  if (problems.length > 0) throw new ConfigError(problems);
  opened.move();
  return heldOut;
}

function tellBytes({ vocabSize }: CausalLm, log: Logger): void {
  const unused = vocabSize - BYTE_TOKENIZER.vocabSize;
  if (unused <= 0) log.info("Tokens are bytes: no --tokenizer");
  else {
    const why = "Tokens are bytes, as no --tokenizer is given";
    log.warn(`${why}: ${unused} of the model's ${vocabSize} ids are never used`);
  }
}

interface DataPart {
  readonly files: readonly string[];
  /** Key of the configuration that names them. */
  readonly name: string;
  /** @default wrapped for text, none for chats and prompts */
  readonly packing: Packing | undefined;
  readonly streaming: boolean | undefined;
  /** @default the run's */
  readonly tokenizer?: Tokenizer;
}

function openOne(
  config: RunConfig,
  run: Run,
  model: CausalLm,
  log: Logger,
  { files, name, packing, streaming, tokenizer }: DataPart,
): Promise<TextData> {
  const { sequenceLength, microBatches, textField, seed, cache, chatTemplate, lossOn, skipBadRows, eosToken } = config;
  const isPreference = config.preference !== undefined;
  const hasTextEnds = config.preference === "orpo";
  const hasLabels = config.preference === "kto";
  return textData(run, model, files, {
    ...{
      sequenceLength,
      microBatches,
      packing,
      streaming,
      textField,
      seed,
      cache,
      chatTemplate,
      lossOn,
      skipBadRows,
      isPreference,
      hasTextEnds,
      hasLabels,
    },
    toleratesText: config.evalData.length > 0,
    ...tokenizer === undefined ? { tokenizer: config.tokenizer, eosToken } : { tokenizer },
    name,
    batch: config.globalBatch,
    padTo: config.cudaGraphs ? config.sequenceLength : undefined, // a graph is of one shape
    onTokenize: ({ files, byteLength }) =>
      log.info(`Tokenizing ${countOf(files.length, "file")}, ${formatBytes(byteLength)}`),
  });
}

/**
 * `fullyshard eval`: loss, perplexity and token accuracy of texts and chats, and multiple choice by log-likelihood, of a model that is
 * not being trained.
 *
 * @module
 */
import process from "node:process";
import * as z from "zod";
import { datasetPath } from "../checkpoint/hugging_face/hub_cache.ts";
import { type Flag, helpAsked } from "../config/flags.ts";
import { needs } from "../config/needs.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { type Section, section } from "../config/section.ts";
import { findBeginOfText, requireBeginOfText } from "../data/begin_of_text.ts";
import { loadChatTemplates, noTemplate } from "../data/chat/load_template.ts";
import type { PromptOptions } from "../data/choices/prompts.ts";
import { type ChoiceSource, openChoices } from "../data/choices/open_choices.ts";
import { BYTE_TOKENIZER, loadTokenizer, type Tokenizer } from "../data/tokenizer.ts";
import { ConfigError, type ConfigProblem } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { pathKind } from "../runtime/files.ts";
import { terminal } from "../runtime/terminal.ts";
import { requireVocabulary } from "../train/checks.ts";
import { type AnsweredRow, evaluateChoices, firstQuestions } from "../train/choices.ts";
import { count, path, size } from "../train/config_values.ts";
import { type DataConfig, dataSection, hostSection, type ParallelConfig, parallelSection } from "../train/config.ts";
import { evaluate } from "../train/evaluate.ts";
import { weightProblems } from "../train/evaluation_config.ts";
import { heldOutSets } from "../train/held_out.ts";
import { openModel } from "../train/open_model.ts";
import { launch, type Run } from "../train/run.ts";
import { textData } from "../train/text_data.ts";
import { evaluationJson, evaluationText, type MeasuredSet } from "./eval_output.ts";
import { averagesKey, placesKey, requirePlaces } from "./places.ts";

/** A model and the sets that it is measured on. */
interface EvalConfig
  extends
    Pick<DataConfig, "data" | "textField" | "tokenizer" | "eosToken" | "sequenceLength" | "packing">,
    Pick<DataConfig, "chatTemplate" | "lossOn" | "skipBadRows">,
    Pick<ParallelConfig, "cpuMath" | "threads"> {
  readonly places: readonly string[];
  readonly adapter?: string | undefined;
  readonly averages: boolean;
  readonly batch: number;
  readonly addBosToken: boolean;
  readonly delimiter?: string | undefined;
  readonly truncate: boolean;
  readonly numFewshot: number;
  readonly fewshotData: readonly string[];
  readonly applyChatTemplate: boolean;
  readonly fewshotAsMultiturn: boolean;
  readonly device: string;
  readonly memoryBytes?: number | undefined;
  readonly logSamples: boolean;
  readonly json: boolean;
}

/** The keys that a training has too. */
const { textField, tokenizer, eosToken, sequenceLength, packing, chatTemplate, lossOn } = dataSection.schema.shape;
const { cpuMath, threads } = parallelSection.schema.shape;
const { device, memoryBytes } = hostSection.schema.shape;

const SECTIONS: readonly [Section<EvalConfig>] = [section(
  "eval",
  z.strictObject({
    places: placesKey.describe(
      "The model: Hugging Face folder, name in its cache, or checkpoint, as an argument or by --places",
    ),
    data: z.array(path).default([]).describe(
      "Files of text, of rows of text or chats, or of rows with choices (.jsonl, .json, .parquet); name=path gives " +
        "a set metrics of its own",
    ).meta({ otherNames: ["eval-data", "tasks", "dataset"] }),
    adapter: path.optional().describe("Folder of a LoRA adapter of PEFT, beside the model that it is for").meta({
      otherNames: ["lora", "adapter-name-or-path"],
    }),
    averages: averagesKey,
    ...{ textField, tokenizer, eosToken, sequenceLength, packing, chatTemplate, lossOn },
    skipBadRows: z.boolean().default(false).describe(
      "Skip rows that cannot be used, and print how many; otherwise the first one ends the evaluation",
    ).meta({ otherNames: ["skip-invalid-rows"] }),
    batch: size.default(8).describe("Samples, or texts with a choice, that are computed at once").meta({
      otherNames: ["batch-size", "global-batch"],
    }),
    addBosToken: z.boolean().default(false).describe(
      "Multiple choice: begin every text with the beginning-of-text token; without this, only empty ones begin " +
        "with it",
    ).meta({ otherNames: ["add-bos", "bos"] }),
    delimiter: z.string().optional().describe(
      "Multiple choice: text between a text and each of its choices (default: a blank)",
    ).meta({ otherNames: ["target-delimiter"] }),
    truncate: z.boolean().default(false).describe("Multiple choice: truncate the beginning of texts that do not fit")
      .meta({ otherNames: ["truncation"] }),
    numFewshot: count.default(0).describe(
      "Multiple choice: few-shot examples before each question, the first others of its data",
    ).meta({ otherNames: ["num-few-shot", "fewshot", "shots"] }),
    fewshotData: z.array(path).default([]).describe(
      "Multiple choice: files whose first questions are the few-shot examples, instead of the data's own",
    ).meta({ otherNames: ["fewshot-split"] }),
    applyChatTemplate: z.boolean().default(false).describe(
      "Multiple choice: format each text as a chat, by --chat-template or the tokenizer's; the choice is the start " +
        "of the answer",
    ).meta({ otherNames: ["chat"] }),
    fewshotAsMultiturn: z.boolean().default(false).describe(
      "With --apply-chat-template: each example is a turn of the user and one of the assistant",
    ),
    logSamples: z.boolean().default(false).describe("With --json: each question's log-likelihoods as well"),
    ...{ device, memoryBytes, cpuMath, threads },
    json: z.boolean().default(false).describe("Print one JSON object"),
  }),
)];

/** The text between a question and its choices. */
const BLANK = " ";

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/**
 * Measures a model on each set of data and prints the metrics.
 *
 * @param argv the arguments after `eval`
 * @param write receives the text. @default standard output
 * @returns the exit code
 * @throws {ConfigError} for arguments that are wrong, and a row that does not fit, by file and line
 * @throws {FileError} {@link CheckpointError} if model or data cannot be read
 * @throws {NonFiniteError} if a log-likelihood is not finite
 */
export async function evalModel(
  argv: readonly string[],
  write: (text: string) => void = terminal("stdout").write,
): Promise<number> {
  if (helpAsked(argv)) {
    process.stdout.write(`${await configHelp(SECTIONS, "fullyshard eval <model> --data <file> [flags]")}\n`);
    return 0;
  }
  const config = await resolveConfig(SECTIONS, { argv, positional: "places" });
  requirePlaces(config.places, ["model"]);
  const { places: [folder], adapter, averages, data, json, logSamples } = config;
  if (data.length === 0) throw new ConfigError([{ path: "data", expected: "files to evaluate on", got: "nothing" }]);
  if (logSamples && !json) {
    throw new ConfigError([needs("logSamples", "--json", true)]);
  }
  const problems = weightProblems(data, "data");
  if (problems.length > 0) throw new ConfigError(problems);
  const sets = await openSets(data);
  requireChoices(config, sets);
  const { device, memoryBytes, cpuMath, threads } = config;
  const given = { ...memoryBytes === undefined ? {} : { memoryBytes }, ...threads === undefined ? {} : { threads } };
  await using run = await launch({ device, cpuMath, ...given });
  const model = await openModel(run, folder, { averages, ...adapter === undefined ? {} : { adapter } });
  const tokenizer = await tokenizerOf(config, model);
  requireVocabulary(tokenizer, model);
  await model.load();
  const measured: MeasuredSet[] = [];
  for (const { name, files, choices } of sets) {
    measured.push(
      choices === undefined
        ? { name, files, tokens: await measureTokens(config, run, model, tokenizer, files) }
        : { name, files, choices: await measureChoices(config, model, tokenizer, choices) },
    );
  }
  const subject = { model: folder, adapter };
  write(`${json ? evaluationJson(subject, measured) : evaluationText(subject, measured)}\n`);
  return 0;
}

/**
 * Refuses settings of multiple choice where no set has choices, and settings without others that they need.
 *
 * @throws {ConfigError}
 */
function requireChoices(config: EvalConfig, sets: readonly OpenSet[]): void {
  const { numFewshot, fewshotData, applyChatTemplate, fewshotAsMultiturn } = config;
  const problems: ConfigProblem[] = [];
  const hasChoices = sets.some(({ choices }) => choices !== undefined);
  for (const [path, isGiven] of Object.entries({ numFewshot: numFewshot > 0, applyChatTemplate })) {
    if (isGiven && !hasChoices) problems.push({ path, expected: "rows with choices", got: "none in data" });
  }
  if (fewshotData.length > 0 && numFewshot === 0) {
    problems.push(needs("fewshotData", "numFewshot", fewshotData));
  }
  if (fewshotAsMultiturn && !(applyChatTemplate && numFewshot > 0)) {
    problems.push(needs("fewshotAsMultiturn", "applyChatTemplate and numFewshot", true));
  }
  if (problems.length > 0) throw new ConfigError(problems);
}

/** Examples and template of questions; undefined where texts are taken as they are. */
async function promptOptions(
  config: EvalConfig,
  tokenizer: Tokenizer,
  source: ChoiceSource,
): Promise<PromptOptions | undefined> {
  const { numFewshot, fewshotData, applyChatTemplate, chatTemplate, skipBadRows, delimiter = BLANK } = config;
  if (numFewshot === 0 && !applyChatTemplate) return undefined;
  const isOwn = fewshotData.length === 0;
  const name = isOwn ? "data" : "fewshotData";
  const from = isOwn ? source : await openChoices(fewshotData.map((text) => datasetPath(text, name)), name);
  if (from === undefined) {
    throw new ConfigError([{ path: name, expected: "rows with choices", got: `none in '${fewshotData[0]}'` }]);
  }
  // A question of the same data may be one of its own examples, and is left out.
  const count = numFewshot === 0 ? 0 : numFewshot + Number(isOwn);
  const examples = count === 0 ? [] : await firstQuestions(from, count, { name, skipBadRows });
  const templates = applyChatTemplate ? await loadChatTemplates(tokenizer.path, chatTemplate) : undefined;
  if (applyChatTemplate && templates === undefined) throw noTemplate(tokenizer.path);
  const template = templates?.pick(false);
  return { examples, numFewshot, delimiter, template, isMultiturn: config.fewshotAsMultiturn };
}

/** A set of data, with its questions where it is multiple choice. */
interface OpenSet {
  readonly name: string;
  readonly files: readonly string[];
  readonly choices: ChoiceSource | undefined;
}

/** The sets by their names, known by their first rows before a model is read. */
async function openSets(data: readonly string[]): Promise<readonly OpenSet[]> {
  const sets: OpenSet[] = [];
  for (const [name, files] of heldOutSets(data)) {
    sets.push({ name, files, choices: await openChoices(files.map((text) => datasetPath(text, "data")), "data") });
  }
  return sets;
}

/** The tokenizer that is named, or the model's; bytes for a model that was trained on bytes, and so has none. */
async function tokenizerOf({ tokenizer, eosToken }: EvalConfig, model: CausalLm): Promise<Tokenizer> {
  const folder = model.files?.folder;
  const isBytes = tokenizer === undefined && model.vocabSize === BYTE_TOKENIZER.vocabSize &&
    (folder === undefined || pathKind(`${folder}/tokenizer.json`) === "none");
  if (isBytes && eosToken === undefined) return BYTE_TOKENIZER;
  const place = tokenizer ?? folder;
  if (place !== undefined) return await loadTokenizer(place, { eosToken });
  throw new ConfigError([{
    path: "tokenizer",
    expected: "tokenizer.json, or a folder that holds one",
    got: "nothing",
  }]);
}

async function measureTokens(
  config: EvalConfig,
  run: Run,
  model: CausalLm,
  tokenizer: Tokenizer,
  files: readonly string[],
): Promise<MeasuredSet["tokens"]> {
  const { sequenceLength, batch, packing, textField, chatTemplate, lossOn, skipBadRows } = config;
  using data = await textData(run, model, files, {
    ...{ sequenceLength, batch, packing, textField, chatTemplate, lossOn, skipBadRows, tokenizer },
    toleratesText: heldOutSets(config.data).size > 1,
  });
  return { ...await evaluate(run, model, data), samples: data.numSamples, sequenceLength };
}

async function measureChoices(
  config: EvalConfig,
  model: CausalLm,
  tokenizer: Tokenizer,
  source: ChoiceSource,
): Promise<MeasuredSet["choices"]> {
  const { batch, addBosToken, delimiter = BLANK, truncate: truncates, skipBadRows, logSamples } = config;
  const bosId = await findBeginOfText(tokenizer);
  if (addBosToken) requireBeginOfText(bosId, tokenizer);
  const answers: AnsweredRow[] = [];
  const measured = await evaluateChoices(model, source, {
    ...{ tokenizer, bosId, addBosToken, delimiter, truncates, batch, skipBadRows },
    ...{ maxLength: model.maxPositions, name: "data", prompt: await promptOptions(config, tokenizer, source) },
    ...logSamples ? { onAnswer: (answered) => void answers.push(answered) } : {},
  });
  return { ...measured, answers: logSamples ? answers : undefined };
}

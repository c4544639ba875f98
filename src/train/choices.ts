/**
 * Multiple choice by log-likelihood, measured as EleutherAI's lm-evaluation-harness does (Gao et al. 2024): the model chooses what it
 * finds likeliest behind a text.
 *
 * @module
 */
import { at } from "../at.ts";
import { type ChoiceRow, choiceRow } from "../data/choices/choice_row.ts";
import { type ChoiceEncoding, encodeChoices, type EncodedChoices } from "../data/choices/encode_choices.ts";
import type { ChoiceSource } from "../data/choices/open_choices.ts";
import { promptOf, type PromptOptions } from "../data/choices/prompts.ts";
import { TemplateFailure } from "../data/chat/failure.ts";
import { rowError } from "../data/rows/row.ts";
import { ConfigError, NonFiniteError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { countOf } from "../words.ts";
import { evaluationMode } from "./evaluation_mode.ts";
import { logLikelihoods } from "./log_likelihood.ts";

/** A mean, and its standard error: the sample's standard deviation over the root of the count; undefined for a single question. */
export interface ShareOfRight {
  readonly mean: number;
  readonly stderr: number | undefined;
}

/** Names of the rules by which a choice is made. */
export const CHOICE_RULES = ["acc", "acc_norm", "acc_bytes"] as const;
/**
 * The rule by which a choice is made: the largest log-likelihood (`acc`), or the largest for each character (`acc_norm`) or byte of
 * UTF-8 (`acc_bytes`) of the choice. The first of equal ones counts.
 */
export type ChoiceRule = typeof CHOICE_RULES[number];

/** A question, answered. */
export interface AnsweredRow {
  readonly row: ChoiceRow;
  /** Of each choice, in nats. */
  readonly logLikelihoods: readonly number[];
  /** The place of the chosen one, by rule. */
  readonly chosen: Readonly<Record<ChoiceRule, number>>;
}

/** Result of multiple choice. */
export interface ChoiceEvaluation extends Readonly<Record<ChoiceRule, ShareOfRight>> {
  readonly questions: number;
  /** Questions with a text whose begin was cut off. */
  readonly cut: number;
  /** Rows that did not fit, each with file, line and what was found, where such rows are left out. */
  readonly skipped: readonly string[];
}

/** Options of {@link evaluateChoices}. */
export interface ChoiceOptions extends ChoiceEncoding {
  /** Texts that are computed at once. */
  readonly batch: number;
  /** True if rows that do not fit are left out; the first one is an error otherwise. */
  readonly skipBadRows: boolean;
  /** Puts examples before a question, or makes a chat of it. @default its text is taken as it is */
  readonly prompt?: PromptOptions | undefined;
  /** Called with each question in order. */
  readonly onAnswer?: (answered: AnsweredRow) => void;
}

/**
 * Measures how many questions a model answers rightly. Afterwards each module is in its earlier mode.
 *
 * @throws {ConfigError} naming file and line of a row that does not fit, or files without any row that does
 * @throws {NonFiniteError} if a log-likelihood is not finite
 */
export async function evaluateChoices(
  model: CausalLm,
  source: ChoiceSource,
  options: ChoiceOptions,
): Promise<ChoiceEvaluation> {
  using _mode = evaluationMode(model);
  const { onAnswer } = options;
  const right = { acc: 0, acc_norm: 0, acc_bytes: 0 };
  const skipped: string[] = [];
  let [questions, cut] = [0, 0];
  for await (const group of grouped(encodedRows(source, options, skipped), options.batch)) {
    const scores = scoresOf(model, group, options.batch);
    for (const [i, { row, isCut }] of group.entries()) {
      const answered = answerOf(row, at(scores, i, "scores of question"));
      for (const rule of CHOICE_RULES) if (answered.chosen[rule] === row.answer) right[rule]++;
      questions++;
      if (isCut) cut++;
      onAnswer?.(answered);
    }
  }
  if (questions === 0) throw noQuestions(source, skipped, options.name);
  const share = (count: number): ShareOfRight => shareOf(count, questions);
  return {
    ...{ questions, cut, skipped },
    ...{ acc: share(right.acc), acc_norm: share(right.acc_norm), acc_bytes: share(right.acc_bytes) },
  };
}

/** The encoded questions. With `skipBadRows`, rows that do not fit are left out and listed in `skipped`. */
async function* encodedRows(
  source: ChoiceSource,
  options: ChoiceOptions,
  skipped: string[],
): AsyncGenerator<EncodedChoices> {
  const { name, skipBadRows, prompt } = options;
  // A template ends with what comes before an answer.
  const encoding = prompt?.template === undefined ? options : { ...options, delimiter: "" };
  for await (const row of source.rows()) {
    try {
      if ("problem" in row) throw rowError(name, row, row.problem);
      const question = choiceRow(row, name);
      yield { ...encodeChoices(prompted(question, options), encoding), row: question };
    } catch (error) {
      if (!skipBadRows || !(error instanceof ConfigError)) throw error;
      skipped.push(...error.problems.map(({ where, expected, got }) => `${where}: expected ${expected}, got ${got}`));
    }
  }
}

/** @throws {ConfigError} naming the row, if a template refuses it */
function prompted(question: ChoiceRow, { prompt, name }: ChoiceOptions): ChoiceRow {
  if (prompt === undefined) return question;
  try {
    return promptOf(question, prompt);
  } catch (error) {
    if (!(error instanceof TemplateFailure)) throw error;
    const expected = `a chat that the template of '${prompt.template?.file}' takes`;
    throw rowError(name, question, { expected, got: error.message });
  }
}

/**
 * The first questions of some rows, as examples.
 *
 * @throws {ConfigError} if there are fewer, or naming file and line of a row that does not fit, unless such rows are left out
 */
export async function firstQuestions(
  source: ChoiceSource,
  count: number,
  { name, skipBadRows }: Pick<ChoiceOptions, "name" | "skipBadRows">,
): Promise<readonly ChoiceRow[]> {
  const found: ChoiceRow[] = [];
  for await (const row of source.rows()) {
    try {
      if ("problem" in row) throw rowError(name, row, row.problem);
      found.push(choiceRow(row, name));
    } catch (error) {
      if (!skipBadRows || !(error instanceof ConfigError)) throw error;
    }
    if (found.length === count) return found;
  }
  const expected = `at least ${countOf(count, "question")} to take examples of`;
  const got = `${found.length} in ${source.files.slice(0, 3).map((file) => `'${file}'`).join(", ")}`;
  throw new ConfigError([{ path: name, expected, got }]);
}

/** Questions that together have about as many texts as are computed at once. */
async function* grouped(rows: AsyncIterable<EncodedChoices>, batch: number): AsyncGenerator<EncodedChoices[]> {
  let group: EncodedChoices[] = [];
  let texts = 0;
  for await (const row of rows) {
    if (group.length > 0 && texts + row.texts.length > batch) {
      yield group;
      [group, texts] = [[], 0];
    }
    group.push(row);
    texts += row.texts.length;
  }
  if (group.length > 0) yield group;
}

/** The log-likelihoods of the choices of each question. */
function scoresOf(model: CausalLm, group: readonly EncodedChoices[], batch: number): readonly (readonly number[])[] {
  const texts = group.flatMap((one) => one.texts);
  const all: number[] = [];
  for (let first = 0; first < texts.length; first += batch) {
    all.push(...logLikelihoods(model, texts.slice(first, first + batch)));
  }
  let next = 0;
  return group.map(({ texts: { length } }) => all.slice(next, next += length));
}

function answerOf(row: ChoiceRow, likelihoods: readonly number[]): AnsweredRow {
  const bad = likelihoods.findIndex((likelihood) => !Number.isFinite(likelihood));
  if (bad >= 0) {
    throw new NonFiniteError(
      `${row.file}:${row.line}: the log-likelihood of choice ${bad} is ${likelihoods[bad]}: the model overflows on it`,
    );
  }
  const largestBy = (lengthOf: (choice: string) => number): number => {
    const scores = likelihoods.map((likelihood, i) => likelihood / lengthOf(at(row.choices, i, "choice")));
    return scores.indexOf(Math.max(...scores));
  };
  const chosen = {
    acc: largestBy(() => 1),
    acc_norm: largestBy((choice) => [...choice].length),
    acc_bytes: largestBy((choice) => new TextEncoder().encode(choice).length),
  };
  return { row, logLikelihoods: likelihoods, chosen };
}

/** The mean of numbers of which `ones` are 1 and all others 0. */
function shareOf(ones: number, count: number): ShareOfRight {
  const mean = ones / count;
  // The variance of a sample has one less than the count as divisor, and the error's has the count again.
  return { mean, stderr: count > 1 ? Math.sqrt(mean * (1 - mean) / (count - 1)) : undefined };
}

function noQuestions({ files }: ChoiceSource, skipped: readonly string[], name: string): ConfigError {
  const [first] = skipped;
  const why = first === undefined ? "" : `; the first row that did not fit: ${first}`;
  const got = `none in ${files.slice(0, 3).map((file) => `'${file}'`).join(", ")}${why}`;
  return new ConfigError([{ path: name, expected: "questions with choices", got }]);
}

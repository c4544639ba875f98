/**
 * The metrics of `fullyshard eval` as text and as JSON.
 *
 * @module
 */
import { type AnsweredRow, CHOICE_RULES, type ChoiceEvaluation, type ShareOfRight } from "../train/choices.ts";
import type { Evaluation } from "../train/evaluate.ts";
import { countOf, shown } from "../words.ts";

/** The metrics of a set. */
export interface MeasuredSet {
  /** Empty for what has none. */
  readonly name: string;
  /** As they were named. */
  readonly files: readonly string[];
  /** Of texts or chats. */
  readonly tokens?:
    | (Evaluation & { readonly samples?: number | undefined; readonly sequenceLength: number })
    | undefined;
  /** Of multiple choice, and each question's answer where these are wanted. */
  readonly choices?: (ChoiceEvaluation & { readonly answers: readonly AnsweredRow[] | undefined }) | undefined;
}

/** The model that was measured. */
export interface MeasuredModel {
  readonly model: string;
  readonly adapter: string | undefined;
}

/** Rows that were left out, and that are described in words. */
const MOST_SKIPPED = 3;

/** One JSON object with all metrics; what is not a finite number is null. */
export function evaluationJson({ model, adapter }: MeasuredModel, sets: readonly MeasuredSet[]): string {
  return JSON.stringify({ model, ...adapter === undefined ? {} : { adapter }, sets: sets.map(jsonOf) });
}

function jsonOf({ name, files, tokens, choices }: MeasuredSet): object {
  const set = { ...name === "" ? {} : { name }, files };
  if (tokens !== undefined) {
    const { loss, perplexity, accuracy, correct, samples, sequenceLength } = tokens;
    const figures = { loss, perplexity, mean_token_accuracy: accuracy };
    return { ...set, ...figures, tokens: tokens.tokens, correct, samples, sequence_length: sequenceLength };
  }
  if (choices === undefined) return set;
  const { questions, cut, skipped, answers } = choices;
  const shares = CHOICE_RULES.map((rule) => {
    const { mean, stderr = null } = choices[rule];
    return [[rule, mean], [`${rule}_stderr`, stderr]] as const;
  });
  return {
    ...set,
    ...Object.fromEntries(shares.flat()),
    ...{ questions, cut, skipped: skipped.length },
    ...answers === undefined ? {} : { answers: answers.map(sampleOf) },
  };
}

function sampleOf({ row, logLikelihoods, chosen }: AnsweredRow): object {
  const { file, line, answer } = row;
  return { file, line, answer, log_likelihoods: logLikelihoods, ...chosen };
}

/** Lines for people. */
export function evaluationText({ model, adapter }: MeasuredModel, sets: readonly MeasuredSet[]): string {
  const of = adapter === undefined ? model : `${model} with ${adapter}`;
  return shown([of, ...sets.flatMap(textOf)].join("\n"));
}

function textOf({ name, files, tokens, choices }: MeasuredSet): readonly string[] {
  const more = files.length > MOST_SKIPPED ? ` and ${countOf(files.length - MOST_SKIPPED, "other")}` : "";
  const what = `${name === "" ? "" : `${name}: `}${files.slice(0, MOST_SKIPPED).join(", ")}${more}`;
  if (tokens !== undefined) {
    const { loss, perplexity, accuracy, samples, sequenceLength } = tokens;
    const of = samples === undefined ? "" : ` of ${countOf(samples, "sample")}`;
    const counts = `${countOf(tokens.tokens, "predicted token")}${of}`;
    return [
      `${what}: ${counts} of at most ${countOf(sequenceLength, "token")}`,
      `  loss                 ${loss.toFixed(4)}`,
      `  perplexity           ${perplexity.toFixed(3)}`,
      `  mean_token_accuracy  ${accuracy.toFixed(4)}`,
    ];
  }
  if (choices === undefined) return [what];
  const { questions, cut, skipped } = choices;
  return [
    `${what}: ${countOf(questions, "question")}${cut === 0 ? "" : `, ${cut} of them with begins cut off`}`,
    ...CHOICE_RULES.map((rule) => `  ${rule.padEnd(9)}  ${shareText(choices[rule])}`),
    ...skipped.length === 0
      ? []
      : [`  left out ${countOf(skipped.length, "row")} that did not fit: ${skipped.slice(0, MOST_SKIPPED).join("; ")}`],
  ];
}

function shareText({ mean, stderr }: ShareOfRight): string {
  return `${mean.toFixed(4)}${stderr === undefined ? "" : ` ± ${stderr.toFixed(4)}`}`;
}

/**
 * The text before the choices of a question, as EleutherAI's lm-evaluation-harness makes it: behind some questions with their right
 * choices, and under a chat template.
 *
 * @module
 */
import { at } from "../../at.ts";
import type { ChatMessage } from "../chat/columns.ts";
import type { ChatTemplate } from "../chat/template.ts";
import type { ChoiceRow } from "./choice_row.ts";

/** Options of {@link promptOf}. */
export interface PromptOptions {
  /** Rows that examples are taken of, in their order: one more than examples, where a question may be among them. */
  readonly examples: readonly ChoiceRow[];
  /** Examples before a question, the harness's `num_fewshot`. */
  readonly numFewshot: number;
  /** The text between an example and its right choice, the harness's `target_delimiter`. */
  readonly delimiter: string;
  /** Makes a chat of the text. @default it stays a text */
  readonly template?: ChatTemplate | undefined;
  /** With a template: true if each example is a turn of the user and one of the assistant. @default all is one user's turn */
  readonly isMultiturn?: boolean;
}

/** The harness's `fewshot_delimiter`. */
const BETWEEN_EXAMPLES = "\n\n";

/**
 * A question whose text has examples before it, and is a chat's where there is a template. The examples are the first ones that are not
 * the question, as by the harness's sampler `first_n`.
 *
 * @throws {TemplateFailure} if the template refuses the chat
 */
export function promptOf(row: ChoiceRow, options: PromptOptions): ChoiceRow {
  const { numFewshot, delimiter, template, isMultiturn = false } = options;
  const examples = options.examples.filter((example) => !isSame(example, row)).slice(0, numFewshot);
  const shown = examples.map((example) => `${example.context}${delimiter}${rightOf(example)}${BETWEEN_EXAMPLES}`);
  const context = shown.join("") + row.context;
  if (template === undefined) return { ...row, context };
  const turns: readonly ChatMessage[] = examples.flatMap((example) => [
    { role: "user", content: example.context },
    { role: "assistant", content: rightOf(example) },
  ]);
  const messages = isMultiturn
    ? [...turns, { role: "user", content: row.context }]
    : [{ role: "user", content: context }];
  return { ...row, context: template.render({ messages, tools: undefined, variables: {}, addGenerationPrompt: true }) };
}

function rightOf({ choices, answer }: ChoiceRow): string {
  return at(choices, answer, "choice");
}

/** True for rows with one text, the same choices and the same right one. */
function isSame(one: ChoiceRow, other: ChoiceRow): boolean {
  return one.context === other.context && one.answer === other.answer && one.choices.length === other.choices.length &&
    one.choices.every((choice, i) => choice === other.choices[i]);
}

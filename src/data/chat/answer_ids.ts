/**
 * Tokens of a prompt, and of the prompt with each of some answers, as TRL's trainers of preferences make them.
 *
 * @module
 */
import type { ChatExtras, ChatMessage, RefuseRow } from "./columns.ts";
import { ended, type RowEncoding } from "./encode_row.ts";
import { TemplateFailure } from "./failure.ts";
import { noTemplate } from "./load_template.ts";

/** A prompt with answers. */
export type Answered =
  | { readonly kind: "text"; readonly prompt: string; readonly answers: readonly string[] }
  | (ChatExtras & {
    readonly kind: "chat";
    readonly prompt: readonly ChatMessage[];
    readonly answers: readonly (readonly ChatMessage[])[];
  });

/** Ids of the prompt alone, and of the prompt with each answer. */
export interface AnswerIds {
  readonly prompt: readonly number[];
  readonly answers: readonly (readonly number[])[];
}

/**
 * Tokenizes a prompt and its answers: chats by the template, where the prompt's text ends with what begins an assistant's turn, and texts
 * with the end-of-text token behind each, unless the encoding has ends of its own.
 *
 * @throws {ConfigError} for a row that the template refuses; or if there is no template
 */
export function answerIds(answered: Answered, encoding: RowEncoding, refuse: RefuseRow): AnswerIds {
  const { tokenizer, templates, ends } = encoding;
  if (answered.kind === "text") {
    const { prompt, answers } = answered;
    const whole = (answer: string): readonly number[] => {
      const ids = tokenizer.encode(prompt + answer);
      return ends === undefined ? ended(ids, tokenizer) : ids;
    };
    return { prompt: tokenizer.encode(prompt), answers: answers.map(whole) };
  }
  if (templates === undefined) throw noTemplate(tokenizer.path);
  const { prompt, answers, tools, variables } = answered;
  const template = templates.pick(tools !== undefined);
  try {
    return {
      prompt: tokenizer.encode(template.render({ messages: prompt, tools, variables, addGenerationPrompt: true })),
      answers: answers.map((answer) => {
        return tokenizer.encode(template.render({ messages: [...prompt, ...answer], tools, variables }));
      }),
    };
  } catch (error) {
    if (!(error instanceof TemplateFailure)) throw error;
    throw refuse(`a chat that the template of '${template.file}' takes`, error.message);
  }
}

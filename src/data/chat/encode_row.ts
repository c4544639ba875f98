/**
 * A row as a sample: its text by the template, the text's tokens, and which of them are trained on.
 *
 * @module
 */
import type { ConfigError } from "../../errors.ts";
import { rowError, type RowPlace } from "../rows/row.ts";
import { IGNORED, type TokenSample } from "../samples/sample.ts";
import { eosOf } from "../token_stream.ts";
import type { Tokenizer } from "../tokenizer.ts";
import { commonLength, tokensIn } from "./boundaries.ts";
import type { Chat, PlainText, PromptCompletion, RefuseRow, RowContents } from "./columns.ts";
import { TemplateFailure } from "./failure.ts";
import { type ChatTemplates, noTemplate } from "./load_template.ts";
import type { ChatTemplate, MarkedText, TemplateInputs, TextSpan } from "./template.ts";
import { renderTurns, requirePrefix } from "./turns.ts";

/** The tokens that the loss is on: an assistant's messages of a chat, the completion after a prompt, or all tokens. */
export type LossPart = "assistant" | "completion" | "all";

/** The values of {@link LossPart}. */
export const LOSS_PARTS: readonly ["assistant", "completion", "all"] = ["assistant", "completion", "all"];

/** Tokens around a sample, unless it has them already; the last one is the tokenizer's end of text. */
export interface PairEnds {
  /** Undefined where the tokenizer has no begin-of-text token. */
  readonly beginId: number | undefined;
}

/** Options for encoding rows as samples. */
export interface RowEncoding {
  readonly tokenizer: Tokenizer;
  /** The templates that turn chats into text. */
  readonly templates: ChatTemplates | undefined;
  /**
   * The tokens that the loss is on. @default an assistant's turns of chats, the completion of a row with a prompt, all of a text
   */
  readonly lossOn: LossPart | undefined;
  /** Most tokens of a sample: what is behind them is cut off. */
  readonly maxLength: number;
  /** The name of the data in errors. */
  readonly name: string;
  /** Tokens that are put around both samples of a pair. @default the end-of-text token behind texts alone */
  readonly ends?: PairEnds | undefined;
}

/** A sample, and the tokens that were cut off. */
export interface EncodedRow extends TokenSample {
  readonly cut: number;
}

/**
 * Makes a sample of a row.
 *
 * @throws {ConfigError} naming file and line of a row that the template refuses, that has no token to train on, or that has not
 * what the loss is to be on; or if there is no template
 */
export function encodeRow(contents: RowContents, place: RowPlace, encoding: RowEncoding): EncodedRow {
  const refuse = (expected: string, got: string): ConfigError => rowError(encoding.name, place, { expected, got });
  const { ids, isTarget } = targetsOf(contents, encoding, refuse);
  const { maxLength } = encoding;
  if (!isTarget.includes(true)) throw refuse("a token to train on", describeNone(contents, encoding));
  const kept = Int32Array.from(ids.slice(0, maxLength));
  const labels = kept.map((id, i) => isTarget[i] === true ? id : IGNORED);
  // The first token is never predicted, as nothing comes before it.
  if (!labels.subarray(1).some((label) => label !== IGNORED)) {
    const got = ids.length > maxLength
      ? `${ids.length} tokens, and the first to train on is number ${
        isTarget.indexOf(true) + 1
      }: take a longer sequenceLength`
      : `${ids.length} of them, and only the first is one: nothing comes before it that it could be predicted from`;
    throw refuse(`a token to train on among the first ${maxLength}`, got);
  }
  return { ids: kept, labels, cut: ids.length - kept.length };
}

/** Ids of a row, and for each whether it is trained on. */
interface Targets {
  readonly ids: readonly number[];
  readonly isTarget: readonly boolean[];
}

function targetsOf(contents: RowContents, encoding: RowEncoding, refuse: RefuseRow): Targets {
  if (contents.kind === "chat") return chatTargets(contents, encoding, refuse);
  return contents.kind === "text"
    ? textTargets(contents, encoding, refuse)
    : completionTargets(contents, encoding, refuse);
}

/** A text and the end-of-text token, all trained on. */
function textTargets({ text }: PlainText, { tokenizer, lossOn }: RowEncoding, refuse: RefuseRow): Targets {
  if (lossOn !== undefined && lossOn !== "all") {
    throw refuse(rowFor(lossOn), "a text: train on all of it ('--loss-on all')");
  }
  const ids = ended(tokenizer.encode(text), tokenizer);
  return { ids, isTarget: ids.map(() => true) };
}

/** A prompt, its completion and the end-of-text token. */
function completionTargets(row: PromptCompletion, { tokenizer, lossOn }: RowEncoding, refuse: RefuseRow): Targets {
  if (lossOn === "assistant") {
    throw refuse(rowFor(lossOn), "a prompt and a completion without roles: '--loss-on completion'");
  }
  const ids = ended(tokenizer.encode(row.prompt + row.completion), tokenizer);
  if (lossOn === "all") return { ids, isTarget: ids.map(() => true) };
  const from = commonLength(ids, tokenizer.encode(row.prompt));
  return { ids, isTarget: ids.map((_, i) => i >= from) };
}

function chatTargets(chat: Chat, encoding: RowEncoding, refuse: RefuseRow): Targets {
  const { tokenizer, templates, lossOn } = encoding;
  if (templates === undefined) throw noTemplate(tokenizer.path);
  const template = templates.pick(chat.tools !== undefined);
  const { messages, tools, variables, promptLength } = chat;
  if (lossOn === "completion" && promptLength === undefined) {
    throw refuse(rowFor(lossOn), "a chat under \"messages\": name its turns by '--loss-on assistant'");
  }
  const part = lossOn ?? (promptLength === undefined ? "assistant" : "completion");
  try {
    const { text, spans } = spansOf(template, { messages, tools, variables }, part, promptLength);
    const ids = tokenizer.encode(text);
    return { ids, isTarget: tokensIn(tokenizer, text, ids, spans) };
  } catch (error) {
    if (!(error instanceof TemplateFailure)) throw error;
    throw refuse(`a chat that the template of '${template.file}' takes`, error.message);
  }
}

function spansOf(
  template: ChatTemplate,
  inputs: TemplateInputs,
  part: LossPart,
  promptLength: number | undefined,
): MarkedText {
  if (part === "assistant") {
    return template.marksAssistant ? template.renderMarked(inputs) : renderTurns(template, inputs);
  }
  const text = template.render(inputs);
  const whole: TextSpan = { start: 0, end: text.length };
  if (part === "all" || promptLength === undefined) return { text, spans: [whole] };
  const messages = inputs.messages.slice(0, promptLength);
  const prompt = template.render({ ...inputs, messages, addGenerationPrompt: true });
  requirePrefix(text, prompt, "the prompt");
  return { text, spans: [{ start: prompt.length, end: text.length }] };
}

/** Ids with the end of text behind them, if they do not end with it. */
export function ended(ids: readonly number[], tokenizer: Tokenizer): readonly number[] {
  const eosId = eosOf(tokenizer);
  return ids.at(-1) === eosId ? ids : [...ids, eosId];
}

function rowFor(part: LossPart): string {
  return part === "assistant"
    ? "a chat, as the loss is on its assistant's turns"
    : "a prompt and a completion, as the loss is on it";
}

function describeNone(contents: RowContents, { templates }: RowEncoding): string {
  if (contents.kind !== "chat") return "none: the text is empty";
  const roles = contents.messages.map(({ role }) => role);
  const list = [...new Set(roles)].map((role) => `'${role}'`).join(", ");
  if (!roles.includes("assistant")) {
    return `messages of ${list} only: an assistant's are those with the role 'assistant'; leave such rows out by '--skip-bad-rows'`;
  }
  const template = templates?.pick(contents.tools !== undefined);
  return `none that '${template?.file}' writes for the messages of ${list}: correct the template, or name another by '--chat-template'`;
}

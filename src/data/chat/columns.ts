/**
 * Rows by their columns: which of the conventions of TRL, ShareGPT and Alpaca a row follows, and its contents as a chat, a prompt with
 * its completion, or text.
 *
 * @module
 */
import { isJsonObject, type JsonObject, kindOf } from "../../json.ts";
import { COLUMNS_REMEDY, type Row, rowError } from "../rows/row.ts";
import { alpacaMessages } from "./alpaca.ts";
import { readMessages } from "./messages.ts";
import { shareGptMessages } from "./share_gpt.ts";

/** A message of a chat: a role, most often content, and what else a template reads. */
export type ChatMessage = JsonObject & { readonly role: string };

/** Values of a row that a template gets besides messages. */
export interface ChatExtras {
  /** Descriptions of functions. */
  readonly tools: readonly JsonObject[] | undefined;
  /** Further variables of the row that the template reads. */
  readonly variables: JsonObject;
}

/** A chat, as a template is given it. */
export interface Chat extends ChatExtras {
  readonly kind: "chat";
  readonly messages: readonly ChatMessage[];
  /** Messages of the prompt, where the row parts prompt and completion. */
  readonly promptLength: number | undefined;
}

/** A text that is to follow an earlier text. */
export interface PromptCompletion {
  readonly kind: "completion";
  readonly prompt: string;
  readonly completion: string;
}

/** A text. */
export interface PlainText {
  readonly kind: "text";
  readonly text: string;
}

/** The contents of a row. */
export type RowContents = Chat | PromptCompletion | PlainText;

/** Options for reading rows. */
export interface ColumnOptions {
  /** The column of rows that are text. */
  readonly textField: string;
  /** The name of the data in errors. */
  readonly name: string;
}

/** Makes the error for a row. */
export type RefuseRow = (expected: string, got: string) => Error;

/** Columns by which a row is known, as errors list them. */
const known = (textField: string): string =>
  `the columns "messages", "prompt" and "completion", "conversations", "instruction" and "output", or "${textField}"`;

/** All columns that are read of rows, besides the text column. */
const COLUMNS = [
  ...["messages", "prompt", "completion", "conversations", "system", "tools", "chat_template_kwargs"],
  ...["instruction", "input", "output", "history", "chosen", "rejected", "label"],
];

/** The columns that are read of rows: the others need not be decoded. */
export function columnsRead(textField: string): readonly string[] {
  return [...COLUMNS, textField];
}

/** The convention that a row follows; undefined for none. */
export function conventionOf(
  value: JsonObject,
  textField: string,
): "messages" | "completion" | "conversations" | "alpaca" | "text" | "preference" | undefined {
  const has = (key: string): boolean => value[key] !== undefined && value[key] !== null;
  if (has("messages")) return "messages";
  if (has("conversations")) return "conversations";
  if (has("prompt") && has("completion")) return "completion";
  if (has("instruction") && has("output")) return "alpaca";
  if (has(textField)) return "text";
  return has("chosen") && has("rejected") ? "preference" : undefined;
}

/**
 * The contents of a row.
 *
 * @throws {ConfigError} naming file and line of a row that follows no convention or breaks the one that it follows
 */
export function contentsOf(row: Row, { textField, name }: ColumnOptions): RowContents {
  const { value } = row;
  const refuse: RefuseRow = (expected, got) => rowError(name, row, { expected, got });
  const convention = conventionOf(value, textField);
  if (convention === undefined) {
    const keys = Object.keys(value).slice(0, 20).map((key) => JSON.stringify(key)).join(", ");
    throw refuse(known(textField), `${keys || "no column"}: ${COLUMNS_REMEDY}`);
  }
  if (convention === "text") return { kind: "text", text: textOf(value, textField, refuse) };
  if (convention === "preference") {
    throw refuse(known(textField), 'a preference, with "chosen" and "rejected": train on it by \'--preference dpo\'');
  }
  const rest = extrasOf(value, refuse);
  if (convention === "messages") {
    return {
      kind: "chat",
      messages: readMessages(value["messages"], "messages", refuse),
      promptLength: undefined,
      ...rest,
    };
  }
  if (convention === "conversations") {
    return { kind: "chat", messages: shareGptMessages(value, refuse), promptLength: undefined, ...rest };
  }
  if (convention === "alpaca") {
    return { kind: "chat", messages: alpacaMessages(value, refuse), promptLength: undefined, ...rest };
  }
  const { prompt, completion } = value;
  if (typeof prompt === "string" && typeof completion === "string") {
    return {
      kind: "completion",
      prompt: textOf(value, "prompt", refuse),
      completion: textOf(value, "completion", refuse),
    };
  }
  if (!Array.isArray(prompt) || !Array.isArray(completion)) {
    const got = `${kindOf(prompt)} and ${kindOf(completion)}`;
    throw refuse('two texts or two lists of messages under "prompt" and "completion"', got);
  }
  const messages = [readMessages(prompt, "prompt", refuse), readMessages(completion, "completion", refuse)].flat();
  return { kind: "chat", messages, promptLength: prompt.length, ...rest };
}

/** Values of a row that a template gets besides messages. */
export function extrasOf(value: JsonObject, refuse: RefuseRow): ChatExtras {
  return { tools: toolsOf(value, refuse), variables: variablesOf(value, refuse) };
}

/** The text of a column. */
export function textOf(value: JsonObject, field: string, refuse: RefuseRow): string {
  const text = value[field];
  if (typeof text !== "string") throw refuse(`a string under "${field}"`, kindOf(text));
  if (!text.isWellFormed()) throw refuse(`valid Unicode text under "${field}"`, "half of a surrogate pair");
  return text;
}

/** Tools as a list; TRL's rows may hold them as JSON text. */
function toolsOf(value: JsonObject, refuse: RefuseRow): readonly JsonObject[] | undefined {
  const tools = fromJson(value["tools"], "tools", refuse);
  if (tools === undefined || tools === null) return undefined;
  if (Array.isArray(tools) && tools.every(isJsonObject)) return tools;
  throw refuse('a list of objects under "tools", or its JSON', kindOf(tools));
}

function variablesOf(value: JsonObject, refuse: RefuseRow): JsonObject {
  const variables = fromJson(value["chat_template_kwargs"], "chat_template_kwargs", refuse) ?? {};
  if (!isJsonObject(variables)) throw refuse('an object under "chat_template_kwargs"', kindOf(variables));
  const taken = ["messages", "tools", "add_generation_prompt"].find((key) => key in variables);
  if (taken === undefined) return variables;
  throw refuse('other names under "chat_template_kwargs"', `"${taken}", which a template is given anyway`);
}

function fromJson(value: unknown, field: string, refuse: RefuseRow): unknown {
  if (typeof value !== "string") return value;
  try {
    return JSON.parse(value);
  } catch (cause) {
    throw refuse(`JSON under "${field}"`, cause instanceof Error ? cause.message : String(cause));
  }
}

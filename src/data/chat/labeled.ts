/**
 * Rows of one answer with a label: a prompt, a completion, and whether it is desirable, as TRL's `KTOTrainer` takes them.
 *
 * @module
 */
import { kindOf } from "../../json.ts";
import { type Row, rowError } from "../rows/row.ts";
import { type ChatExtras, type ChatMessage, type ColumnOptions, extrasOf, type RefuseRow, textOf } from "./columns.ts";
import { readMessages } from "./messages.ts";

/** An answer to a prompt of messages. */
export interface LabeledChat extends ChatExtras {
  readonly kind: "chat";
  readonly prompt: readonly ChatMessage[];
  readonly completion: readonly ChatMessage[];
  readonly isDesirable: boolean;
}

/** A text that may follow an earlier text. */
export interface LabeledText {
  readonly kind: "text";
  readonly prompt: string;
  readonly completion: string;
  readonly isDesirable: boolean;
}

/** The contents of a row with a label. */
export type LabeledContents = LabeledChat | LabeledText;

const COLUMNS = ["prompt", "completion", "label"];

/**
 * The contents of a row with a label.
 *
 * @throws {ConfigError} naming file and line of a row that is none, and what was found
 */
export function labeledOf(row: Row, { name }: Pick<ColumnOptions, "name">): LabeledContents {
  const { value } = row;
  const refuse: RefuseRow = (expected, got) => rowError(name, row, { expected, got });
  const missing = COLUMNS.filter((key) => value[key] === undefined || value[key] === null);
  if (missing.length > 0) {
    const keys = Object.keys(value).slice(0, 20).map((key) => JSON.stringify(key)).join(", ");
    const remedy = "chosen" in value ? "pairs are learned by '--preference dpo'" : "rename columns";
    throw refuse('the columns "prompt", "completion" and "label"', `${keys || "no column"}: ${remedy}`);
  }
  const { prompt, completion, label } = value;
  const isDesirable = label === true || label === 1;
  if (!isDesirable && label !== false && label !== 0) {
    throw refuse('true or false under "label"', typeof label === "string" ? JSON.stringify(label) : kindOf(label));
  }
  if (typeof prompt === "string" && typeof completion === "string") {
    const texts = { prompt: textOf(value, "prompt", refuse), completion: textOf(value, "completion", refuse) };
    return { kind: "text", ...texts, isDesirable };
  }
  if (!Array.isArray(prompt) || !Array.isArray(completion)) {
    const got = `${kindOf(prompt)} and ${kindOf(completion)}`;
    throw refuse('two texts or two lists of messages under "prompt" and "completion"', got);
  }
  const messages = {
    prompt: readMessages(prompt, "prompt", refuse),
    completion: readMessages(completion, "completion", refuse),
  };
  return { kind: "chat", ...messages, isDesirable, ...extrasOf(value, refuse) };
}

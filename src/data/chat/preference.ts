/**
 * Rows of preferences by their columns: a prompt, an answer that was chosen and one that was rejected, as TRL's `DPOTrainer` takes
 * them, and as ShareGPT and Alpaca write them in LLaMA-Factory.
 *
 * @module
 */
import { type JsonObject, kindOf, sameJson } from "../../json.ts";
import { type Row, rowError } from "../rows/row.ts";
import { alpacaMessages } from "./alpaca.ts";
import { type ChatExtras, type ChatMessage, type ColumnOptions, extrasOf, type RefuseRow, textOf } from "./columns.ts";
import { readMessages } from "./messages.ts";
import { shareGptMessages } from "./share_gpt.ts";

/** Two answers to a prompt of messages. */
export interface ChatPair extends ChatExtras {
  readonly kind: "chat";
  readonly prompt: readonly ChatMessage[];
  readonly chosen: readonly ChatMessage[];
  readonly rejected: readonly ChatMessage[];
}

/** Two texts that may follow an earlier text. */
export interface TextPair {
  readonly kind: "text";
  readonly prompt: string;
  readonly chosen: string;
  readonly rejected: string;
}

/** The contents of a row of preferences. */
export type PairContents = ChatPair | TextPair;

/** The columns by which a row of preferences is known, as errors list them. */
const KNOWN = 'the columns "chosen" and "rejected", and "prompt" unless both begin with it';

/**
 * The contents of a row of preferences. Where there is no column for the prompt, the prompt is what both answers begin with.
 *
 * @throws {ConfigError} naming file and line of a row that is none, and what was found
 */
export function pairOf(row: Row, { name }: Pick<ColumnOptions, "name">): PairContents {
  const { value } = row;
  const refuse: RefuseRow = (expected, got) => rowError(name, row, { expected, got });
  const has = (key: string): boolean => value[key] !== undefined && value[key] !== null;
  if (!has("chosen") || !has("rejected")) {
    const keys = Object.keys(value).slice(0, 20).map((key) => JSON.stringify(key)).join(", ");
    throw refuse(KNOWN, `${keys || "no column"}: rename columns`);
  }
  const { chosen, rejected, prompt } = value;
  if (typeof chosen === "string" && typeof rejected === "string") {
    const texts = { chosen: textOf(value, "chosen", refuse), rejected: textOf(value, "rejected", refuse) };
    if (!has("prompt") && has("instruction")) return alpacaPair(value, texts, refuse);
    if (has("prompt")) return { kind: "text", prompt: textOf(value, "prompt", refuse), ...texts };
    return { kind: "text", ...divided(texts, refuse) };
  }
  const isList = Array.isArray(chosen) && Array.isArray(rejected);
  const isSingle = isMessage(chosen) && isMessage(rejected);
  if (!isList && !isSingle) {
    throw refuse(
      'two texts, two lists of messages or two messages under "chosen" and "rejected"',
      `${kindOf(chosen)} and ${kindOf(rejected)}`,
    );
  }
  const extras = extrasOf(value, refuse);
  const both = { chosen: messagesOf(chosen, "chosen", refuse), rejected: messagesOf(rejected, "rejected", refuse) };
  if (has("conversations")) return { kind: "chat", prompt: shareGptMessages(value, refuse), ...both, ...extras };
  if (Array.isArray(prompt)) {
    return { kind: "chat", prompt: readMessages(prompt, "prompt", refuse), ...both, ...extras };
  }
  // Some data sets have the prompt as a text besides, where both chats begin with it.
  if (has("prompt") && typeof prompt !== "string") {
    throw refuse('a list of messages under "prompt", as "chosen" is one', kindOf(prompt));
  }
  return { kind: "chat", ...dividedChats(both, refuse), ...extras };
}

function isMessage(value: unknown): boolean {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/** Messages of a list, or one message; with `from` and `value` they are ShareGPT's. */
function messagesOf(value: unknown, column: string, refuse: RefuseRow): readonly ChatMessage[] {
  const list: readonly unknown[] = Array.isArray(value) ? value : [value];
  const [first] = list;
  const isShareGpt = typeof first === "object" && first !== null && "from" in first && !("role" in first);
  if (isShareGpt) {
    return shareGptMessages({ conversations: list }, (expected, got) => {
      return refuse(expected.replaceAll("conversations", column), got);
    });
  }
  return readMessages(list, column, refuse);
}

/** Alpaca's instruction as prompt: its answers are texts. */
function alpacaPair(
  value: JsonObject,
  { chosen, rejected }: { readonly chosen: string; readonly rejected: string },
  refuse: RefuseRow,
): ChatPair {
  const prompt = alpacaMessages({ ...value, output: "" }, refuse).slice(0, -1);
  const answer = (content: string): readonly ChatMessage[] => [{ role: "assistant", content }];
  return { kind: "chat", prompt, chosen: answer(chosen), rejected: answer(rejected), ...extrasOf(value, refuse) };
}

/**
 * What both texts begin with, and the rests, as TRL's `extract_prompt` divides them: each keeps at least its last character, and a
 * blank before the first difference belongs to the answers.
 */
function divided(
  { chosen, rejected }: { readonly chosen: string; readonly rejected: string },
  refuse: RefuseRow,
): Omit<TextPair, "kind"> {
  const least = Math.min(chosen.length, rejected.length);
  if (least === 0) throw refuse('texts under "chosen" and "rejected" that begin with the prompt', "an empty one");
  let end = 0;
  while (end < least && chosen[end] === rejected[end]) end++;
  const isSame = end === least;
  if (isSame) end--;
  // A pair of halves is one character.
  if (end > 0 && /[\uD800-\uDBFF]/.test(chosen.charAt(end - 1))) end--;
  if (!isSame && end > 0 && chosen[end - 1] === " ") end--;
  return { prompt: chosen.slice(0, end), chosen: chosen.slice(end), rejected: rejected.slice(end) };
}

/** The messages that both chats begin with, and the rests, each of at least one message. */
function dividedChats(
  { chosen, rejected }: Pick<ChatPair, "chosen" | "rejected">,
  refuse: RefuseRow,
): Pick<ChatPair, "prompt" | "chosen" | "rejected"> {
  const least = Math.min(chosen.length, rejected.length);
  let end = 0;
  while (end < least - 1 && sameJson(chosen[end], rejected[end])) end++;
  if (end === 0) {
    const expected = 'messages under "prompt", or lists under "chosen" and "rejected" that begin with the same ones';
    throw refuse(expected, "lists that differ in their first message, or have one alone");
  }
  return { prompt: chosen.slice(0, end), chosen: chosen.slice(end), rejected: rejected.slice(end) };
}

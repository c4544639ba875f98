/**
 * Lists of messages: roles and contents as templates take them.
 *
 * @module
 */
import { isJsonObject, type JsonObject, kindOf } from "../../json.ts";
import type { ChatMessage, RefuseRow } from "./columns.ts";

/** Names under which a message's reasoning is given; templates read the first, and templates of gpt-oss the second. */
const REASONING = ["reasoning_content", "thinking", "reasoning"] as const;

/**
 * Reads a list of messages as `transformers` prepares it for a template: keys without a value are left out, and reasoning has the
 * names that templates read.
 *
 * @param column the column of the list
 */
export function readMessages(value: unknown, column: string, refuse: RefuseRow): readonly ChatMessage[] {
  if (!Array.isArray(value) || value.length === 0) {
    throw refuse(`a list of messages under "${column}", at least one`, kindOf(value));
  }
  return value.map((message: unknown, i) => readMessage(message, `${column}[${i}]`, refuse));
}

function readMessage(value: unknown, place: string, refuse: RefuseRow): ChatMessage {
  if (!isJsonObject(value)) throw refuse(`an object with "role" and "content" as ${place}`, kindOf(value));
  const { role } = value;
  if (typeof role !== "string" || role === "") {
    const keys = Object.keys(value).map((key) => JSON.stringify(key)).join(", ");
    const hint = "from" in value ? '; "from" and "value" stand under "conversations"' : "";
    throw refuse(`a text under "role" of ${place}`, role === undefined ? `the keys ${keys}${hint}` : kindOf(role));
  }
  requireContent(value["content"], `${place}.content`, refuse);
  const { weight } = value;
  if (weight !== undefined && weight !== null && weight !== 1) {
    const expected = `no "weight" but 1 in ${place}, as the loss counts all turns of a kind alike (lossOn)`;
    throw refuse(expected, typeof weight === "number" ? String(weight) : kindOf(weight));
  }
  const kept = Object.entries(value).filter(([, one]) => one !== null);
  const reasoning = REASONING.map((key) => value[key]).find((one) => one !== undefined && one !== null);
  const aliases = reasoning === undefined ? {} : { reasoning_content: reasoning };
  const first = reasoning === undefined ? {} : { thinking: reasoning };
  return { ...first, ...Object.fromEntries(kept), ...aliases, role };
}

/** Refuses content that is neither text nor a list of parts with text: a text model sees nothing else. */
function requireContent(content: unknown, place: string, refuse: RefuseRow): void {
  if (content === undefined || content === null) return;
  const texts = Array.isArray(content) ? content.map(partText) : [content];
  for (const [i, text] of texts.entries()) {
    const where = Array.isArray(content) ? `${place}[${i}]` : place;
    if (typeof text !== "string") {
      const got = kindOf(Array.isArray(content) ? content[i] : content);
      throw refuse(`text as ${where}, or a list of {"type": "text", "text": …}`, got);
    }
    if (!text.isWellFormed()) throw refuse(`valid Unicode text as ${where}`, "half of a surrogate pair");
  }
}

function partText(part: unknown): unknown {
  const isText = (value: unknown): value is JsonObject => isJsonObject(value) && value["type"] === "text";
  return isText(part) ? part["text"] : undefined;
}

/**
 * ShareGPT's rows: `conversations` of `from` and `value`, as messages.
 *
 * @module
 */
import { isJsonObject, type JsonObject, kindOf } from "../../json.ts";
import type { ChatMessage, RefuseRow } from "./columns.ts";

/** Roles of messages by speaker. */
const ROLES: Readonly<Record<string, string>> = {
  human: "user",
  user: "user",
  gpt: "assistant",
  chatgpt: "assistant",
  assistant: "assistant",
  model: "assistant",
  system: "system",
  observation: "tool",
  tool: "tool",
  function_response: "tool",
};

/** The speaker of a function call: an assistant's message with a call, whose value is JSON. */
const CALL = "function_call";

/** The messages of a row. */
export function shareGptMessages(row: JsonObject, refuse: RefuseRow): readonly ChatMessage[] {
  const list = row["conversations"];
  if (!Array.isArray(list) || list.length === 0) {
    throw refuse('a list of messages under "conversations", at least one', kindOf(list));
  }
  const messages = list.map((value: unknown, i) => toMessage(value, `conversations[${i}]`, refuse));
  const { system } = row;
  if (typeof system !== "string" || system === "") return messages;
  return [{ role: "system", content: system }, ...messages];
}

function toMessage(value: unknown, place: string, refuse: RefuseRow): ChatMessage {
  if (!isJsonObject(value)) throw refuse(`an object with "from" and "value" as ${place}`, kindOf(value));
  // Some data sets name the column so and have messages all the same.
  const from = value["from"] ?? value["role"];
  const text = value["value"] ?? value["content"];
  const known = [...Object.keys(ROLES), CALL].join(", ");
  if (typeof from !== "string") throw refuse(`one of ${known} under "from" of ${place}`, kindOf(from));
  if (typeof text !== "string") throw refuse(`text under "value" of ${place}`, kindOf(text));
  if (!text.isWellFormed()) throw refuse(`valid Unicode text as ${place}`, "half of a surrogate pair");
  if (from === CALL) return { role: "assistant", tool_calls: callsOf(text, place, refuse) };
  const role = Object.hasOwn(ROLES, from) ? ROLES[from] : undefined;
  if (role === undefined) throw refuse(`one of ${known} under "from" of ${place}`, JSON.stringify(from));
  return { role, content: text };
}

function callsOf(text: string, place: string, refuse: RefuseRow): readonly JsonObject[] {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch {
    value = undefined;
  }
  const calls: readonly unknown[] = Array.isArray(value) ? value : [value];
  return calls.map((call) => {
    if (isJsonObject(call) && typeof call["name"] === "string" && isJsonObject(call["arguments"])) {
      return { type: "function", function: { name: call["name"], arguments: call["arguments"] } };
    }
    throw refuse(`JSON of {"name", "arguments"} under "value" of ${place}, as it is from ${CALL}`, kindOf(text));
  });
}

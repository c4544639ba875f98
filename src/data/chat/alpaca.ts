/**
 * Alpaca's rows: `instruction`, `input` and `output`, with `system` and `history` of earlier turns, as messages.
 *
 * @module
 */
import { type JsonObject, kindOf } from "../../json.ts";
import type { ChatMessage, RefuseRow } from "./columns.ts";

/** The messages of a row. The user's is the instruction, and the input on a line of its own where there is one. */
export function alpacaMessages(row: JsonObject, refuse: RefuseRow): readonly ChatMessage[] {
  const text = (key: string): string => {
    const value = row[key] ?? "";
    if (typeof value !== "string") throw refuse(`a string under "${key}"`, kindOf(value));
    if (!value.isWellFormed()) throw refuse(`valid Unicode text under "${key}"`, "half of a surrogate pair");
    return value;
  };
  const [system, instruction, input, output] = [text("system"), text("instruction"), text("input"), text("output")];
  const history = row["history"] ?? [];
  if (!Array.isArray(history)) throw refuse('a list of pairs under "history"', kindOf(history));
  const earlier = history.flatMap((pair: unknown): ChatMessage[] => {
    const [user, assistant]: unknown[] = Array.isArray(pair) ? pair : [];
    if (typeof user !== "string" || typeof assistant !== "string") {
      throw refuse('pairs of an instruction and an answer under "history"', kindOf(pair));
    }
    return [{ role: "user", content: user }, { role: "assistant", content: assistant }];
  });
  return [
    ...system === "" ? [] : [{ role: "system", content: system }],
    ...earlier,
    { role: "user", content: input === "" ? instruction : `${instruction}\n${input}` },
    { role: "assistant", content: output },
  ];
}

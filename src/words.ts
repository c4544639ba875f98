/**
 * Words of messages that depend on what is counted or listed.
 *
 * @module
 */

/** A number with its noun: `1 rank`, `2 ranks`. */
export function countOf(count: number, noun: string, plural: string = `${noun}s`): string {
  return `${count} ${count === 1 ? noun : plural}`;
}

/** Ranks in words: `rank 2`, `ranks 0, 3`. */
export function rankList(ranks: readonly number[]): string {
  return `rank${ranks.length === 1 ? "" : "s"} ${ranks.toSorted((a, b) => a - b).join(", ")}`;
}

/** Lists the names that there are: `only 'cpu' is available`, `'llama' and 'qwen2' are supported`. */
export function whichAre(names: readonly string[], what: string): string {
  const quoted = names.map((name) => `'${name}'`);
  const last = quoted.pop() ?? "nothing";
  return quoted.length === 0 ? `only ${last} is ${what}` : `${quoted.join(", ")} and ${last} are ${what}`;
}

/** First and last of characters that a terminal or a reader would obey: C0 and C1 controls but tab and line feed, directions. */
const OBEYED: readonly (readonly [number, number])[] = [
  [0x00, 0x08],
  [0x0b, 0x1f],
  [0x7f, 0x9f],
  [0x200e, 0x200f],
  [0x2028, 0x202e],
  [0x2066, 0x2069],
];

/**
 * Text that others have written, as it may be shown: characters that control a terminal or the direction of text become escapes
 * such as `\\u001b`. Tabs and line breaks stay.
 */
export function shown(text: string): string {
  const isObeyed = (code: number): boolean => OBEYED.some(([first, last]) => code >= first && code <= last);
  let from = 0;
  let safe = "";
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i);
    if (code > 0x1f && code < 0x7f || !isObeyed(code)) continue;
    safe += `${text.slice(from, i)}\\u${code.toString(16).padStart(4, "0")}`;
    from = i + 1;
  }
  return from === 0 ? text : safe + text.slice(from);
}

/** The same for a name: on one line, and no longer than a number of characters. */
export function shownName(text: string, longest: number = 80): string {
  const line = shown(text).replaceAll("\n", "\\n").replaceAll("\t", "\\t");
  return line.length > longest ? `${line.slice(0, longest)}…` : line;
}

/** Bytes in the largest unit that they fill. */
export function formatBytes(bytes: number): string {
  if (bytes < 2 ** 10) return countOf(bytes, "byte");
  if (bytes < 2 ** 20) return `${(bytes / 2 ** 10).toFixed(1)} KiB`;
  return bytes >= 2 ** 30 ? `${(bytes / 2 ** 30).toFixed(2)} GiB` : `${(bytes / 2 ** 20).toFixed(1)} MiB`;
}

/** A value of a wrong type, for messages: a short one itself, else its kind. */
export function valueText(value: unknown): string {
  if (typeof value === "string") return JSON.stringify(shownName(value, 40));
  if (typeof value === "bigint") return `${value}n`;
  if (typeof value === "function") return "a function";
  if (typeof value !== "object" || value === null) return String(value);
  if (Array.isArray(value)) return "an array";
  const { name } = value.constructor ?? Object;
  return name === "Object" ? "an object" : `an instance of ${name}`;
}

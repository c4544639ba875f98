/**
 * JSON of files that may be damaged or hostile: a duplicate key or deep nesting, which JSON.parse lets pass or dies
 * of, is refused with the file's name. What the values mean is left to the reader of each format.
 *
 * @module
 */
import { ArgumentError, CheckpointError } from "./errors.ts";
import { foreignContent } from "./runtime/file_kind.ts";

/** A JSON object whose values have not been looked at. */
export type JsonObject = Readonly<Record<string, unknown>>;

/**
 * Parses a JSON object strictly.
 *
 * @param rules the file and what the text is, e.g. `header`, for errors; and how many objects and arrays may lie in each other
 * @throws {CheckpointError} if it is not UTF-8, not JSON, not an object, nested too deep, or an object has a key twice
 */
export function parseJsonObject(
  bytes: Uint8Array,
  rules: { readonly file: string; readonly what: string; readonly maxDepth: number },
): JsonObject {
  const { file, what, maxDepth } = rules;
  const refuse = (detail: string, options?: ErrorOptions): CheckpointError =>
    new CheckpointError(file, `The ${what} ${detail}`, undefined, options);
  const foreign = foreignContent(bytes);
  if (foreign !== undefined) throw refuse(`must be JSON, but the file is ${foreign}`);
  let text: string;
  try {
    text = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch (cause) {
    throw refuse("must be UTF-8, got bytes that are not", { cause });
  }
  const { depth, duplicate } = scan(text);
  if (depth > maxDepth) throw refuse(`may nest ${maxDepth} levels deep, got ${depth}`);
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw refuse(`must be JSON: ${cause instanceof Error ? cause.message : String(cause)}`, { cause });
  }
  if (duplicate !== undefined) throw refuse(`must have each key once, got ${JSON.stringify(duplicate)} twice`);
  if (!isJsonObject(value)) throw refuse(`must be a JSON object, got ${kindOf(value)}`);
  return value;
}

/** True if a parsed value is a JSON object, not an array and not null. */
export function isJsonObject(value: unknown): value is JsonObject {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

/**
 * Refuses a value of which JSON keeps something else, or nothing, or what is nested too deep to be read again. A key whose value is
 * undefined is as good as none.
 *
 * @param name what the value is called
 * @param maxDepth how many objects and arrays may lie in each other; one that lies in itself has too many
 * @throws {ArgumentError} naming the part that is not kept
 */
export function requireJson(value: unknown, name: string, maxDepth: number): void {
  if (value === null || typeof value === "string" || typeof value === "boolean" || Number.isFinite(value)) return;
  if (typeof value !== "object" || !(Array.isArray(value) || isPlain(value))) {
    const got = typeof value === "object"
      ? "an instance of a class"
      : typeof value === "function"
      ? "a function"
      : value;
    throw new ArgumentError(
      `${name} must be null, a boolean, a finite number, a string, an array or a plain object, as JSON keeps no other; ` +
        `got ${String(got)}`,
    );
  }
  if (maxDepth === 0) throw new ArgumentError(`${name} is nested too deep, or lies in itself`);
  for (const [key, item] of Object.entries(value)) {
    if (item === undefined && !Array.isArray(value)) continue;
    requireJson(item, `${name}.${key}`, maxDepth - 1);
  }
}

function isPlain(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

/** True if two parsed values are equal, whatever the order of keys. */
export function sameJson(a: unknown, b: unknown): boolean {
  if (a === b) return true;
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((item, i) => sameJson(item, b[i]));
  if (!isJsonObject(a) || !isJsonObject(b)) return false;
  const keys = Object.keys(a);
  return keys.length === Object.keys(b).length &&
    keys.every((key) => Object.hasOwn(b, key) && sameJson(a[key], b[key]));
}

/** Describes a parsed value in an error: a short value itself, else its kind. */
export function kindOf(value: unknown): string {
  if (value === undefined) return "nothing";
  if (Array.isArray(value) && value.length > 8) return `an array of ${value.length}`;
  const text = JSON.stringify(value);
  if (text.length <= 60) return text;
  return typeof value === "object" ? "an object" : `${text.slice(0, 60)}…`;
}

/**
 * Deepest nesting, up to the first 64 levels, and the first key that an object has twice. Purely lexical: of text that
 * is not JSON it says nothing useful, so its answer on keys counts only after JSON.parse has agreed.
 */
function scan(text: string): { readonly depth: number; readonly duplicate: string | undefined } {
  const stack: Set<string>[] = [];
  let depth = 0;
  let duplicate: string | undefined;
  // A string's end is known to be a key's only at the colon, so the last string is kept until the next mark.
  let literal: string | undefined;
  for (let at = 0; at < text.length && depth < 64; at++) {
    const char = text[at];
    if (char === '"') {
      const start = at++;
      while (at < text.length && text[at] !== '"') at += text[at] === "\\" ? 2 : 1;
      literal = text.slice(start, at + 1);
    } else if (char === ":" && literal !== undefined) {
      const key = unescape(literal);
      const keys = stack.at(-1);
      if (keys?.has(key)) duplicate ??= key;
      keys?.add(key);
      literal = undefined;
    } else if (char === "{" || char === "[") {
      stack.push(new Set());
      depth = Math.max(depth, stack.length);
    } else if (char === "}" || char === "]") {
      stack.pop();
    }
  }
  return { depth, duplicate };
}

/** The value of a JSON string literal; the literal itself if it is none. */
function unescape(literal: string): string {
  if (!literal.includes("\\")) return literal.slice(1, -1);
  try {
    return String(JSON.parse(literal));
  } catch {
    return literal;
  }
}

/**
 * Rewrites a template before it is parsed, in the places where the library's Jinja silently differs from Python's, so that both
 * write the same:
 *
 * - `{{ x }}` writes None, True, False, lists and dictionaries as Python does;
 * - `strip`, `lstrip` and `rstrip` take the characters that they are to strip;
 * - line ends of the file are `\n`.
 *
 * @module
 */
import { tokenize } from "@huggingface/jinja";
import { TemplateFailure } from "./failure.ts";

/** A token of a template. */
export type JinjaToken = ReturnType<typeof tokenize>[number];

/** Functions that rewritten templates call: of these names no template has any. */
export const FUNCTIONS: Readonly<Record<string, (...args: readonly unknown[]) => unknown>> = {
  __fullyshard_text: textOf,
  __fullyshard_strip: (text, chars) => stripped(text, chars, true, true),
  __fullyshard_lstrip: (text, chars) => stripped(text, chars, true, false),
  __fullyshard_rstrip: (text, chars) => stripped(text, chars, false, true),
};

const STRIPS = ["strip", "lstrip", "rstrip"];
/** Tokens of names, members and subscripts. */
const SIMPLE: readonly string[] = [
  ...["Identifier", "Dot", "OpenSquareBracket", "CloseSquareBracket", "StringLiteral", "NumericLiteral"],
];
const OPENING: Readonly<Record<string, string>> = { CloseParen: "OpenParen", CloseSquareBracket: "OpenSquareBracket" };

/** Tokens of a template, rewritten. @throws {SyntaxError} if it is not Jinja */
export function tokensOf(source: string): JinjaToken[] {
  const tokens = tokenize(source.replace(/\r\n?/g, "\n"), { lstrip_blocks: true, trim_blocks: true });
  return rewriteStrips(rewriteOutput(tokens));
}

/** Tokens of some Jinja within `{{` and `}}`, to be put elsewhere. */
function inner(expression: string): JinjaToken[] {
  return tokenize(`{{ ${expression} }}`).slice(1, -1);
}

/** Puts a call around what each `{{ }}` writes. */
function rewriteOutput(tokens: readonly JinjaToken[]): JinjaToken[] {
  const before = inner("__fullyshard_text(");
  const after = inner(")");
  const all: JinjaToken[] = [];
  let start = 0;
  for (const token of tokens) {
    if (token.type === "CloseExpression") {
      const written = all.slice(start);
      // A function receives None as undefined. A further argument says that it is None, if the value can be evaluated twice.
      const isNone = written.every(({ type }) => SIMPLE.includes(type))
        ? [...inner(","), ...written, ...inner("is none")]
        : [];
      all.push(...isNone, ...after);
    }
    all.push(token);
    if (token.type !== "OpenExpression") continue;
    all.push(...before);
    start = all.length;
  }
  return all;
}

/** Makes calls of functions of the methods that take characters to strip. */
function rewriteStrips(tokens: readonly JinjaToken[]): JinjaToken[] {
  const all = [...tokens];
  for (let i = 0; i < all.length; i++) {
    const [dot, name, open, next] = all.slice(i, i + 4);
    const isStrip = dot?.type === "Dot" && name !== undefined && STRIPS.includes(name.value) &&
      open?.type === "OpenParen";
    if (!isStrip || next?.type === "CloseParen") continue;
    const start = beginningOf(all, i);
    const subject = all.slice(start, i);
    all.splice(start, i + 3 - start, ...inner(`__fullyshard_${name.value}(`), ...subject, ...inner(","));
    i = start;
  }
  return all;
}

/**
 * The place at which the value begins whose method is called at a dot: a name or a text, with members, calls and subscripts
 * after it.
 */
function beginningOf(tokens: readonly JinjaToken[], dot: number): number {
  let at = dot - 1;
  for (;;) {
    for (
      let opening = OPENING[tokens[at]?.type ?? ""];
      opening !== undefined;
      opening = OPENING[tokens[at]?.type ?? ""]
    ) {
      const isCallOrSubscript = (type: string | undefined): boolean =>
        type === "Identifier" || type === "StringLiteral" || type === "CloseParen" || type === "CloseSquareBracket";
      at = matching(tokens, at, opening);
      if (!isCallOrSubscript(tokens[at - 1]?.type)) break; // a value in brackets
      at--;
    }
    if (tokens[at - 1]?.type !== "Dot") return at;
    at -= 2;
  }
}

function matching(tokens: readonly JinjaToken[], close: number, opening: string): number {
  const closing = tokens[close]?.type;
  let depth = 0;
  for (let at = close; at >= 0; at--) {
    const type = tokens[at]?.type;
    if (type === closing) depth++;
    else if (type === opening && --depth === 0) return at;
  }
  throw new SyntaxError("a bracket is closed that was not opened");
}

function stripped(text: unknown, chars: unknown, atStart: boolean, atEnd: boolean): string {
  if (typeof text !== "string") throw new TemplateFailure(`it fails: strip() is of texts, got ${String(text)}`);
  const isBlank = /\s/;
  if (chars !== null && chars !== undefined && typeof chars !== "string") {
    throw new TemplateFailure(`it fails: strip() takes characters, got ${String(chars)}`);
  }
  const letters = [...text];
  const isStripped = (letter: string): boolean =>
    typeof chars === "string" ? chars.includes(letter) : isBlank.test(letter);
  let [start, end] = [0, letters.length];
  while (atStart && start < end && isStripped(letters[start] ?? "")) start++;
  while (atEnd && start < end && isStripped(letters[end - 1] ?? "")) end--;
  return letters.slice(start, end).join("");
}

/** The text that Python writes for a value that a function receives: a text unchanged, an undefined value as nothing. */
function textOf(value: unknown, isNone: unknown = false): string {
  if (typeof value === "string") return value;
  if (isNone === true) return "None";
  return value === undefined ? "" : reprOf(value);
}

/** Python's `repr`. */
function reprOf(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "number") return String(value);
  if (typeof value === "string") return reprOfText(value);
  if (Array.isArray(value)) return `[${value.map((one: unknown) => reprOf(valueOf(one))).join(", ")}]`;
  if (value instanceof Map) {
    const entries = Array.from(value, ([key, one]: [unknown, unknown]) => `${reprOf(key)}: ${reprOf(valueOf(one))}`);
    return `{${entries.join(", ")}}`;
  }
  throw new TemplateFailure("it fails: it writes a function");
}

/** The value in a value of the library. */
function valueOf(value: unknown): unknown {
  return typeof value === "object" && value !== null && "value" in value ? value.value : value;
}

function reprOfText(text: string): string {
  const quote = text.includes("'") && !text.includes('"') ? '"' : "'";
  const escapes: Readonly<Record<string, string>> = {
    "\\": "\\\\",
    "\n": "\\n",
    "\r": "\\r",
    "\t": "\\t",
    [quote]: `\\${quote}`,
  };
  const written = Array.from(text, (letter) => escapes[letter] ?? letter).join("");
  return `${quote}${written}${quote}`;
}

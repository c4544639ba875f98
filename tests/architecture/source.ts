/**
 * Reads a TypeScript file just far enough for the house rules: its code without comments and texts, and its imports.
 * Positions in the blanked code are those of the file.
 *
 * @module
 */

/** One import or re-export of a file. */
export interface Import {
  /** The module that it names, e.g. `../errors.ts`. */
  readonly specifier: string;
  /** `type` is erased, `value` is loaded at once, `lazy` by `import()`, `export` passes on what it names. */
  readonly kind: "type" | "value" | "lazy" | "export";
}

/** A file that was read. */
export interface Source {
  /** Path from the root of the project. */
  readonly path: string;
  /** Its text. */
  readonly text: string;
  /** Its text with comments, and what is between quotes, replaced by spaces. */
  readonly code: string;
  /** Its imports, in order. */
  readonly imports: readonly Import[];
}

/**
 * Reads a file.
 *
 * @param path its path from the root of the project
 * @param text its text
 * @returns code and imports
 */
export function readSource(path: string, text: string): Source {
  const code = blank(text);
  const imports: Import[] = [];
  for (const match of code.matchAll(statement)) {
    const { keyword, type, quote = "" } = match.groups ?? {};
    const start = match.index + match[0].length;
    const specifier = text.slice(start, code.indexOf(quote, start));
    const kind = keyword === "export"
      ? "export"
      : keyword === undefined
      ? "lazy"
      : type === undefined
      ? "value"
      : "type";
    imports.push({ specifier, kind });
  }
  return { path, text, code, imports };
}

const names = String.raw`(?:\{[^}]*\}|\*(?:\s*as\s+\w+)?|\w+(?:\s*,\s*(?:\{[^}]*\}|\*\s*as\s+\w+))?)`;
/** Up to the quote before what is named: `import … from "`, `export … from "`, `import "` and `import("`. */
const statement = new RegExp(
  String.raw`(?<![.\w$])(?:(?<keyword>import|export)(?<type>\s+type\b(?!\s*(?:,|from\b)))?\s*${names}\s*from\s*|` +
    String.raw`(?<keyword>import)\s*|import\s*\(\s*)(?<quote>["'])`,
  "g",
);

/** Replaces comments and what is between quotes by spaces; line breaks and quotes stay. */
function blank(text: string): string {
  const out = [...text.split("")];
  /** Depths of braces at which a `${` of a template began. */
  const templates: number[] = [];
  let depth = 0;
  let at = 0;
  const erase = (from: number, to: number): void => {
    for (let index = from; index < to; index++) if (out[index] !== "\n") out[index] = " ";
  };
  const skipQuoted = (quote: string): void => {
    const from = ++at;
    while (at < text.length && text[at] !== quote && text[at] !== "\n") at += text[at] === "\\" ? 2 : 1;
    erase(from, Math.min(at, text.length));
    at++;
  };
  const skipTemplate = (): void => {
    const from = at;
    while (at < text.length && text[at] !== "`" && !text.startsWith("${", at)) at += text[at] === "\\" ? 2 : 1;
    erase(from, Math.min(at, text.length));
    if (text[at] === "$") {
      templates.push(depth++);
      at += 2;
    } else at++;
  };
  while (at < text.length) {
    const letter = text[at];
    if (text.startsWith("//", at)) {
      const end = text.indexOf("\n", at);
      erase(at, end < 0 ? text.length : end);
      at = end < 0 ? text.length : end;
    } else if (text.startsWith("/*", at)) {
      const end = text.indexOf("*/", at + 2);
      erase(at, end < 0 ? text.length : end + 2);
      at = end < 0 ? text.length : end + 2;
    } else if (letter === '"' || letter === "'") skipQuoted(letter);
    else if (letter === "`") {
      at++;
      skipTemplate();
    } else if (letter === "/" && isPattern(text.slice(Math.max(0, at - 40), at))) {
      const length = /^\/(?:[^\\/[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+\/\w*/.exec(text.slice(at))?.[0].length ?? 1;
      erase(at, at + length);
      at += length;
    } else {
      if (letter === "{") depth++;
      if (letter === "}" && --depth === templates.at(-1)) {
        templates.pop();
        at++;
        skipTemplate();
      } else at++;
    }
  }
  return out.join("");
}

/** True if a slash begins a regular expression, judged by the text before it. */
function isPattern(before: string): boolean {
  return /(^|[(,=:[!&|?{};+*%~^<>-]|\b(return|typeof|case|in|of|void|throw))\s*$/.test(before);
}

/**
 * Which files a list of paths, directories and patterns means. What their text is, is left to `documents.ts`.
 *
 * Invariant: the answer depends on what is on the disk only, sorted by code unit, so every rank and runtime sees the same
 * files in the same order.
 *
 * @module
 */
import { ConfigError } from "../errors.ts";
import { listDirectory, openReadable, pathKind, resolveLinks } from "../runtime/files.ts";
import { countOf } from "../words.ts";

/** What directories and patterns leave out, by path. */
export interface SkippedFiles {
  /** Files that are no UTF-8 text. */
  readonly binary: ReadonlySet<string>;
  /** `node_modules` below a directory. */
  readonly packages: ReadonlySet<string>;
  /** Hidden directories below a directory. */
  readonly hidden: ReadonlySet<string>;
}

/** Files that were found. */
export interface FoundFiles {
  /** Sorted, each once. */
  readonly files: readonly string[];
  readonly skipped: SkippedFiles;
}

/** What is skipped while files are found. */
type Skipping = { readonly [Kind in keyof SkippedFiles]: Set<string> };

/** Bytes from which a file is judged to be text. */
const HEAD_BYTES = 8192;

/**
 * Finds files.
 *
 * @param inputs paths of files; directories, which stand for every text file below them that is neither hidden nor in
 *   `node_modules`; or patterns, in which `*` and `?` stand for characters of a name and `**` for any such directories
 * @throws {ConfigError} naming every input that matches no file
 */
export function findFiles(inputs: readonly string[]): FoundFiles {
  const found = new Set<string>();
  const skipped: Skipping = { binary: new Set(), packages: new Set(), hidden: new Set() };
  const empty: string[] = [];
  for (const input of inputs) {
    const files = expand(input, skipped);
    if (files.length === 0) empty.push(input);
    for (const file of files) found.add(file);
  }
  if (empty.length > 0 || found.size === 0) {
    const problems = empty.length > 0 ? empty.map((input) => `'${input}'`) : ["nothing"];
    const expected = "a text file, a directory with text files, or a pattern that matches some";
    const left = describeSkipped(skipped);
    const suffix = left === undefined ? "" : ` (skipped ${left})`;
    throw new ConfigError(problems.map((got) => ({ path: "data", expected, got: `${got}${suffix}` })));
  }
  return { files: [...found].sort(), skipped };
}

/** What was skipped in words, or undefined where nothing was. */
export function describeSkipped({ binary, packages, hidden }: SkippedFiles): string | undefined {
  const name = (path: string): string => path.slice(path.lastIndexOf("/") + 1);
  const some = [...binary].slice(0, 3).map(name).join(", ");
  const parts = [
    ...binary.size === 0
      ? []
      : [`${countOf(binary.size, "file")} without UTF-8 text (${some}${binary.size > 3 ? ", …" : ""})`],
    ...packages.size === 0 ? [] : [countOf(packages.size, "node_modules folder")],
    ...hidden.size === 0 ? [] : [countOf(hidden.size, "hidden folder")],
  ];
  return parts.length === 0 ? undefined : parts.join(", ");
}

function expand(input: string, skipped: Skipping): string[] {
  // A file may be named like a pattern, so what lies there counts first.
  const kind = input === "" ? "none" : pathKind(input);
  if (kind === "file") return [input];
  const plain = input.replace(/(?<=.)\/+$/, "");
  if (kind === "directory") {
    const files = walk(plain, ["**", "*"], new Set(), skipped);
    return files.filter((file) => {
      if (looksLikeText(file)) return true;
      skipped.binary.add(file);
      return false;
    });
  }
  if (!/[*?]/.test(input)) return [];
  const absolute = plain.startsWith("/");
  return walk(absolute ? "/" : ".", plain.split("/").filter((part) => part !== ""), new Set(), skipped);
}

/** Whether a file begins with UTF-8 text without zero bytes, which no text has. */
function looksLikeText(file: string): boolean {
  using reader = openReadable(file);
  const head = new Uint8Array(Math.min(HEAD_BYTES, reader.byteLength));
  reader.read(0, head);
  if (head.includes(0)) return false;
  try {
    // As a stream, since the head may end inside a character.
    new TextDecoder("utf-8", { fatal: true }).decode(head, { stream: true });
    return true;
  } catch (error) {
    if (error instanceof TypeError) return false;
    throw error;
  }
}

/** Files below `directory` whose remaining path matches `parts`. */
function walk(
  directory: string,
  parts: readonly string[],
  above: ReadonlySet<string>,
  skipped: Skipping,
): string[] {
  const [part, ...rest] = parts;
  if (part === undefined) return [];
  if (part === "**") {
    // A link may lead back up; a directory is not entered below itself.
    const real = resolveLinks(directory);
    if (above.has(real)) return [];
    const inside = new Set([...above, real]);
    const deeper = listDirectory(directory).flatMap((name) => {
      const path = join(directory, name);
      if (pathKind(path) !== "directory") return [];
      const left = name.startsWith(".") ? skipped.hidden : name === "node_modules" ? skipped.packages : undefined;
      left?.add(path);
      return left === undefined ? walk(path, parts, inside, skipped) : [];
    });
    return [...walk(directory, rest.length === 0 ? ["*"] : rest, above, skipped), ...deeper];
  }
  const pattern = new RegExp(
    `^${part.replace(/[.+^${}()|[\]\\]/g, "\\$&").replaceAll("*", ".*").replaceAll("?", ".")}$`,
    "su",
  );
  const matches = /[*?]/.test(part)
    ? names(directory, part.startsWith(".")).filter((name) => pattern.test(name))
    : [part];
  return matches.map((name) => join(directory, name)).flatMap((path) => {
    const kind = pathKind(path);
    if (rest.length === 0) return kind === "file" ? [path] : [];
    return kind === "directory" ? walk(path, rest, above, skipped) : [];
  });
}

function names(directory: string, hidden: boolean = false): string[] {
  return listDirectory(directory).filter((name) => hidden || !name.startsWith("."));
}

function join(directory: string, name: string): string {
  return directory === "." ? name : directory === "/" ? `/${name}` : `${directory}/${name}`;
}

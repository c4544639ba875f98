/**
 * Finds the files that a list of paths, directories and patterns means. Reading their text is left to `documents.ts`.
 *
 * Invariant: the answer depends on what is on the disk only, sorted by code unit, so every rank and runtime sees the same
 * files in the same order.
 *
 * @module
 */
import { ConfigError, type ConfigProblem, FileError } from "../errors.ts";
import { type EntryKind, entryKind, listEntries } from "../runtime/entries.ts";
import { openReadable, resolveLinks } from "../runtime/files.ts";
import { countOf } from "../words.ts";
import { type Format, formatOf, HEAD_BYTES } from "./formats.ts";

/** The files that directories and patterns leave out, by path. A file that is named itself is taken or refused. */
export interface SkippedFiles {
  /** Files that are no UTF-8 text. */
  readonly binary: ReadonlySet<string>;
  /** Files of a format that is known and not read, with its name, e.g. `gzip`. */
  readonly formats: ReadonlyMap<string, string>;
  /** `node_modules` below a directory. */
  readonly packages: ReadonlySet<string>;
  /** Hidden directories below a directory. */
  readonly hidden: ReadonlySet<string>;
  /** Names that are not UTF-8, by which the runtimes open nothing. */
  readonly unnamed: ReadonlySet<string>;
  /** Links whose target is not there, or that lead back to themselves. */
  readonly links: ReadonlySet<string>;
  /** Pipes, sockets and devices. */
  readonly special: ReadonlySet<string>;
  /** Files and directories that this user may not read. */
  readonly unreadable: ReadonlySet<string>;
}

/** Files that were found. */
export interface FoundFiles {
  /** Sorted, each once. */
  readonly files: readonly string[];
  readonly skipped: SkippedFiles;
}

/** Options for finding files. */
export interface FindOptions {
  /** The key of a JSONL line that holds the text. @default `text` */
  readonly field?: string | undefined;
  /** The name of the list of paths in errors. @default `data` */
  readonly name?: string | undefined;
  /** True if a file may be of a format that is otherwise not read. @default no file may */
  readonly takes?: ((file: string, format: string) => boolean) | undefined;
}

/** The files skipped so far while files are found. */
type Skipping = { readonly [Kind in Exclude<keyof SkippedFiles, "formats">]: Set<string> } & {
  readonly formats: Map<string, string>;
};

/**
 * Finds files.
 *
 * @param inputs paths of files; directories, which stand for every text file below them that is neither hidden nor in
 *   `node_modules`; or patterns, in which `*` and `?` stand for characters of a name and `**` for any such directories
 * @throws {ConfigError} naming every input that matches no file, and every file that is of a format which is not read
 * @throws {FileError} if a file that is named cannot be read
 */
export function findFiles(
  inputs: readonly string[],
  { field = "text", name = "data", takes = () => false }: FindOptions = {},
): FoundFiles {
  const found = new Set<string>();
  const skipped: Skipping = {
    binary: new Set(),
    formats: new Map(),
    packages: new Set(),
    hidden: new Set(),
    unnamed: new Set(),
    links: new Set(),
    special: new Set(),
    unreadable: new Set(),
  };
  const problems: ConfigProblem[] = [];
  const empty: string[] = [];
  for (const input of inputs) {
    // A file may be named like a pattern, so what lies there counts first.
    if (input !== "" && entryKind(input) === "file") {
      const format = formatOfFile(input, field);
      if (format !== undefined && !takes(input, format.name)) {
        const expected = "UTF-8 text, or one JSON object a line in a .jsonl file";
        problems.push({ path: name, where: input, expected, got: `${format.name}; ${format.remedy}` });
      }
      found.add(input);
      continue;
    }
    const files = expand(input, skipped).filter((file) => isText(file, field, skipped, takes));
    if (files.length === 0) empty.push(input);
    for (const file of files) found.add(file);
  }
  if (empty.length > 0 || found.size === 0) {
    const nothing = empty.length > 0 ? empty.map(describeMissing) : ["nothing"];
    const expected = "a text file, a directory with text files, or a pattern that matches some";
    const left = describeSkipped(skipped);
    const suffix = left === undefined ? "" : ` (skipped ${left})`;
    problems.push(...nothing.map((got) => ({ path: name, expected, got: `${got}${suffix}` })));
  }
  if (problems.length > 0) throw new ConfigError(problems);
  return { files: [...found].sort(), skipped };
}

/** Describes the skipped files in words; undefined if there are none. */
export function describeSkipped(skipped: SkippedFiles): string | undefined {
  const list = (paths: readonly string[], one: string, many: string = `${one}s`): string[] => {
    if (paths.length === 0) return [];
    const some = paths.slice(0, 3).map((path) => path.slice(path.lastIndexOf("/") + 1)).join(", ");
    return [`${countOf(paths.length, one, many)} (${some}${paths.length > 3 ? ", …" : ""})`];
  };
  const formats = Map.groupBy(skipped.formats, ([, format]) => format);
  const parts = [
    ...list([...skipped.binary], "file without UTF-8 text", "files without UTF-8 text"),
    ...[...formats].flatMap(([format, files]) => list(files.map(([file]) => file), `${format} file`)),
    ...list([...skipped.unnamed], "name that is not UTF-8", "names that are not UTF-8"),
    ...list([...skipped.links], "link to nowhere", "links to nowhere"),
    ...list([...skipped.special], "pipe, socket or device", "pipes, sockets or devices"),
    ...list([...skipped.unreadable], "name without permission to read", "names without permission to read"),
    ...skipped.packages.size === 0 ? [] : [countOf(skipped.packages.size, "node_modules folder")],
    ...skipped.hidden.size === 0 ? [] : [countOf(skipped.hidden.size, "hidden folder")],
  ];
  return parts.length === 0 ? undefined : parts.join(", ");
}

/** An input that gave no file, with what lies there. */
function describeMissing(input: string): string {
  const kind = input === "" ? undefined : entryKind(input);
  if (kind === "special") {
    return `'${input}', a pipe, a socket or a device: text is read several times, so save it to a file`;
  }
  if (kind === "nowhere") return `'${input}', a link that leads nowhere`;
  if (kind === "unreadable") return `'${input}', which this user may not read`;
  const lost = input.includes("\ufffd") ? ": a name that is not UTF-8 opens nothing, so rename the file" : "";
  return `'${input}'${lost}`;
}

/** Files that an input stands for, in any order. */
function expand(input: string, skipped: Skipping): string[] {
  const plain = input.replace(/(?<=.)\/+$/, "");
  if (input !== "" && entryKind(plain) === "directory") return walk(plain, ["**", "*"], new Set(), skipped);
  if (!/[*?]/.test(input)) return [];
  const absolute = plain.startsWith("/");
  return walk(absolute ? "/" : ".", plain.split("/").filter((part) => part !== ""), new Set(), skipped);
}

/** The format of a file, if it is one that is known and not read. */
function formatOfFile(file: string, field: string): Format | undefined {
  using reader = openReadable(file);
  return formatOf(file, headOf(reader), reader.byteLength <= HEAD_BYTES, field);
}

function headOf(reader: ReturnType<typeof openReadable>): Uint8Array {
  const head = new Uint8Array(Math.min(HEAD_BYTES, reader.byteLength));
  reader.read(0, head);
  return head;
}

/** True if a file begins with UTF-8 text without zero bytes, or is of a format that `takes` allows. Records others as skipped. */
function isText(
  file: string,
  field: string,
  skipped: Skipping,
  takes: (file: string, format: string) => boolean,
): boolean {
  let head;
  let isAll;
  try {
    using reader = openReadable(file);
    [head, isAll] = [headOf(reader), reader.byteLength <= HEAD_BYTES];
  } catch (error) {
    if (!(error instanceof FileError) || (error.code !== "EACCES" && error.code !== "EPERM")) throw error;
    skipped.unreadable.add(file);
    return false;
  }
  const format = formatOf(file, head, isAll, field);
  if (format !== undefined && takes(file, format.name)) return true;
  if (format !== undefined) skipped.formats.set(file, format.name);
  else if (!isUtf8(head)) skipped.binary.add(file);
  return format === undefined && !skipped.binary.has(file);
}

function isUtf8(head: Uint8Array): boolean {
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
    const deeper = list(directory, skipped).flatMap(({ name, kind }) => {
      const path = join(directory, name);
      // The entry may have been meant as a directory.
      if (kind !== "file" && kind !== "special" && !name.startsWith(".")) skip(path, kind, skipped);
      if (kind !== "directory") return [];
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
  const isPattern = /[*?]/.test(part);
  const entries = isPattern
    ? list(directory, skipped).filter(({ name }) =>
      pattern.test(name) && (part.startsWith(".") || !name.startsWith("."))
    )
    : [{ name: part, kind: entryKind(join(directory, part)) }];
  return entries.flatMap(({ name, kind }) => {
    const path = join(directory, name);
    skip(path, kind, skipped);
    if (rest.length === 0) return kind === "file" ? [path] : [];
    return kind === "directory" ? walk(path, rest, above, skipped) : [];
  });
}

/** Lists a directory; empty if this user may not list it. */
function list(directory: string, skipped: Skipping): ReturnType<typeof listEntries> {
  try {
    return listEntries(directory);
  } catch (error) {
    if (!(error instanceof FileError) || (error.code !== "EACCES" && error.code !== "EPERM")) throw error;
    skipped.unreadable.add(directory);
    return [];
  }
}

function skip(path: string, kind: EntryKind | "unnamed" | undefined, skipped: Skipping): void {
  if (kind === "nowhere") skipped.links.add(path);
  else if (kind === "special" || kind === "unreadable" || kind === "unnamed") skipped[kind].add(path);
}

function join(directory: string, name: string): string {
  return directory === "." ? name : directory === "/" ? `/${name}` : `${directory}/${name}`;
}

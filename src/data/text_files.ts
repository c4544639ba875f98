/**
 * Which files a list of paths, directories and patterns means. Their contents are left to `dataset.ts`.
 *
 * Invariant: the answer depends on the names on the disk only, sorted by code unit, so every rank and runtime sees the
 * same files in the same order.
 *
 * @module
 */
import { ConfigError } from "../errors.ts";
import { listDirectory, pathKind, resolveLinks } from "../runtime/files.ts";

/**
 * Finds files.
 *
 * @param inputs paths of files; directories, which stand for every file below them that is not hidden; or patterns, in which
 *   `*` and `?` stand for characters of a name and `**` for any directories
 * @returns the files, sorted, each once
 * @throws {ConfigError} naming every input that matches no file
 */
export function findFiles(inputs: readonly string[]): string[] {
  const found = new Set<string>();
  const empty: string[] = [];
  for (const input of inputs) {
    const files = expand(input);
    if (files.length === 0) empty.push(input);
    for (const file of files) found.add(file);
  }
  if (empty.length > 0 || found.size === 0) {
    const problems = empty.length > 0 ? empty : ["(nothing)"];
    const expected = "a text file, a directory with text files, or a pattern that matches some";
    throw new ConfigError(problems.map((got) => ({ path: "data", expected, got })));
  }
  return [...found].sort();
}

function expand(input: string): string[] {
  // A file may be named like a pattern, so what lies there counts first.
  const kind = input === "" ? "none" : pathKind(input);
  if (kind === "file") return [input];
  const plain = input.replace(/(?<=.)\/+$/, "");
  if (kind === "directory") return walk(plain, ["**", "*"], new Set());
  if (!/[*?]/.test(input)) return [];
  const absolute = plain.startsWith("/");
  return walk(absolute ? "/" : ".", plain.split("/").filter((part) => part !== ""), new Set());
}

/** Files below `directory` whose remaining path matches `parts`. */
function walk(directory: string, parts: readonly string[], above: ReadonlySet<string>): string[] {
  const [part, ...rest] = parts;
  if (part === undefined) return [];
  if (part === "**") {
    // A link may lead back up; a directory is not entered below itself.
    const real = resolveLinks(directory);
    if (above.has(real)) return [];
    const inside = new Set([...above, real]);
    const deeper = names(directory).map((name) => join(directory, name))
      .filter((path) => pathKind(path) === "directory").flatMap((path) => walk(path, parts, inside));
    return [...walk(directory, rest.length === 0 ? ["*"] : rest, above), ...deeper];
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
    return kind === "directory" ? walk(path, rest, above) : [];
  });
}

function names(directory: string, hidden: boolean = false): string[] {
  return listDirectory(directory).filter((name) => hidden || !name.startsWith("."));
}

function join(directory: string, name: string): string {
  return directory === "." ? name : directory === "/" ? `/${name}` : `${directory}/${name}`;
}

/**
 * Compares a library's tables with the facts about it: each mismatch is one line that names the symbol, what the table
 * says and what the headers of which release say.
 *
 * @module
 */
import type { ArgumentType, Binding, PlaceType, ResultType, StructLayout } from "../../src/ffi/types.ts";
import { factAt, type Facts, type LibraryFacts } from "./facts.ts";
import { namesOf } from "./probe.ts";
import type { Audited } from "./tables.ts";

/** All that the tables and the facts disagree on. */
export function mismatches(library: Audited, facts: LibraryFacts): string[] {
  const names = namesOf(library);
  const { spec, structs, constants } = library;
  const numbers = [
    ...Object.entries(constants),
    ...Object.entries(spec.statuses?.names ?? {}).map(([value, name]) => [name, Number(value)] as const),
  ];
  return [
    ...differentReleases(library, facts),
    ...unequalNames("function", names.functions, facts.functions),
    ...unequalNames("constant", names.constants, facts.constants),
    ...unequalNames("struct", structs.map(({ name }) => name), facts.structs),
    ...Object.entries(spec.bindings).flatMap(([key, binding]) => functionMismatches(key, binding, facts)),
    ...numbers.flatMap(([name, value]) => numberMismatches(name, value, facts.constants, facts.releases)),
    ...structs.flatMap((layout) => structMismatches(layout, facts)),
  ].map((line) => `${spec.name}: ${line}`);
}

const REGENERATE = "regenerate the facts with scripts/cuda_facts/main.ts";

function differentReleases({ spec: { oldest }, releases }: Audited, facts: LibraryFacts): string[] {
  const versions = releases.map(({ version }) => version);
  const [first = ""] = versions;
  const [ours, theirs] = [versions.join(", "), facts.releases.join(", ")];
  return [
    ...ours === theirs ? [] : [`releases ${ours} in the tables, ${theirs} in the facts: ${REGENERATE}`],
    ...`${first}.`.startsWith(`${oldest}.`) ? [] : [`the oldest that serves is ${oldest}, the oldest audited ${first}`],
  ];
}

function unequalNames(kind: string, names: readonly string[], facts: Facts): string[] {
  const absent = names.filter((name) => facts[name] === undefined);
  const stale = Object.keys(facts).filter((name) => !names.includes(name));
  return [
    ...absent.map((name) => `${kind} ${name} is in the table, and no release has it, or there are no facts of it yet`),
    ...stale.map((name) => `${kind} ${name} is in the facts, and not in the table: ${REGENERATE}`),
  ];
}

function functionMismatches(key: string, binding: Binding, { functions, structs, releases }: LibraryFacts): string[] {
  const { symbol = key, since, args, result } = binding;
  const history = functions[symbol];
  if (history === undefined) return [];
  return firstOfEach(releases, (release) => {
    const fact = factAt(history, releases, release);
    const isDue = since === undefined || !isOlder(release, since);
    if (fact === null) {
      return isDue ? `${symbol} is in the table${since === undefined ? "" : ` since ${since}`}, and absent` : undefined;
    }
    if (!isDue) return `${symbol} is there since ${since} by the table, and there already`;
    const signature = /^([^()]*)\((.*)\)$/.exec(fact);
    if (signature === null || fact.startsWith("not exported")) return `${symbol} is ${fact}`;
    const [, returned = "", list = ""] = signature;
    const parameters = list === "" ? [] : list.split(", ");
    if (!takesResult(result, returned)) return `${symbol} returns ${result} in the table, ${returned} in ${fact}`;
    if (parameters.length !== args.length) {
      return `${symbol} takes ${args.length} arguments in the table, and is ${fact}`;
    }
    const wrong = args.findIndex((type, index) => !takesArgument(type, parameters[index] ?? "", structs));
    if (wrong < 0) return undefined;
    return `argument ${wrong + 1} of ${symbol} is ${describe(args[wrong])} in the table, ${
      parameters[wrong]
    } in ${fact}`;
  });
}

function describe(type: ArgumentType | PlaceType | undefined): string {
  return typeof type === "string" ? type : JSON.stringify(type);
}

/** True if a table's argument type fits a header's. A struct that is passed by value has one size in all releases. */
function takesArgument(type: ArgumentType, kind: string, structs: Facts): boolean {
  if (typeof type === "object") {
    if ("pointer" in type) return kind === `${type.pointer}*` || kind === `const ${type.pointer}*`;
    if ("value" in type) return kind === type.value && structs[kind] === String(type.byteLength);
    return kind.endsWith("*") && !kind.startsWith("const ") && takesPlace(type.out, kind.slice(0, -1));
  }
  if (type === "cstring") return kind === "const char*";
  if (type === "buffer" || type === "optionalBuffer") return kind.endsWith("*");
  return takesPlace(type, kind);
}

function takesResult(type: ResultType, kind: string): boolean {
  if (type === "cstring") return kind === "const char*";
  return type === "void" ? kind === "void" : takesPlace(type, kind);
}

/** True if a table's type of a place, or of a value that is passed by value, fits a header's. */
function takesPlace(type: PlaceType, kind: string): boolean {
  if (typeof type === "object") return kind === `${type.bytes} bytes`;
  if (type === "i32") return kind === "i32" || kind === "enum";
  if (type === "usize") return kind === "u64";
  return type === "address" ? kind.endsWith("*") : kind === type;
}

function numberMismatches(name: string, value: number, facts: Facts, releases: readonly string[]): string[] {
  const history = facts[name];
  if (history === undefined) return [];
  return firstOfEach(releases, (release) => {
    const fact = factAt(history, releases, release);
    if (fact === null) return release === releases.at(-1) ? `${name} is in the table, and absent` : undefined;
    return fact === String(value) ? undefined : `${name} is ${value} in the table, ${fact}`;
  });
}

function structMismatches(layout: StructLayout, { structs, members, initials, releases }: LibraryFacts): string[] {
  const { name, byteLength, fields, prefixes, initializer } = layout;
  const history = structs[name];
  if (history === undefined) return [];
  return releases.flatMap((release) => {
    const size = factAt(history, releases, release);
    if (size === null) return release === releases.at(-1) ? [`${name} is in the table, and absent, in ${release}`] : [];
    const found: string[] = [];
    const expected = prefixes === undefined ? byteLength : prefixes[release];
    if (expected !== undefined && size !== String(expected)) {
      found.push(`${name} has ${expected} bytes in the table, ${size} in ${release}`);
    }
    for (const [field, { offset, type, initial = 0 }] of Object.entries(fields)) {
      const member = `${name}.${field}`;
      const fact = members[member] === undefined ? null : factAt(members[member], releases, release);
      const isLater = prefixes !== undefined && Number(size) < byteLength;
      const [kind = "", at = ""] = fact?.split("@") ?? [];
      if (fact === null ? !isLater : at !== String(offset) || !takesPlace(type, kind)) {
        found.push(`${member} is ${describe(type)}@${offset} in the table, ${fact ?? "absent"} in ${release}`);
      }
      if (initializer === undefined || size !== String(byteLength) || prefixes?.[release] !== byteLength) continue;
      const value = initials[member] === undefined ? null : factAt(initials[member], releases, release);
      if (value !== String(initial)) {
        found.push(
          `${member} is initially ${initial} in the table, ${value ?? "unknown"} in ${initializer} of ${release}`,
        );
      }
    }
    return found;
  });
}

/** The first release of each finding, so that one mistake is one line. */
function firstOfEach(releases: readonly string[], find: (release: string) => string | undefined): string[] {
  const found = new Map<string, string>();
  for (const release of releases) {
    const line = find(release);
    if (line !== undefined && !found.has(line)) found.set(line, `${line} in ${release}`);
  }
  return [...found.values()];
}

/** True if a release comes before another release, by the numbers in both. */
function isOlder(release: string, other: string): boolean {
  const [a, b] = [release, other].map((text) => text.split(/[.+]/).map(Number));
  for (const [index, number] of (b ?? []).entries()) {
    const own = a?.[index] ?? 0;
    if (own !== number) return own < number;
  }
  return false;
}

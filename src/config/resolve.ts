/**
 * Resolves a configuration: defaults, then a file, then flags. Every problem of file, flags and values is reported at
 * once; what comes out is complete, typed and frozen, so nothing further in carries optional settings.
 *
 * @module
 */
import { ConfigError, type ConfigProblem, FileError } from "../errors.ts";
import { readText } from "../runtime/files.ts";
import { type ConfigFile, readConfigText } from "./file.ts";
import { describeFlags, type FlagReading, readFlags } from "./flags.ts";
import { type Origin, problemsOf } from "./problems.ts";
import { builtinFlags, type JsonSchema, readSections, type SectionKeys, valueOf } from "./schema.ts";
import { npmProblem } from "./npm_flags.ts";
import type { Section, SectionValue } from "./section.ts";

/** The sources of values. */
export interface ResolveOptions {
  /** Flags, without program and script. */
  readonly argv?: readonly string[];
  /** The flag that arguments which are no flags are values of. Without it they are problems. */
  readonly positional?: string;
  /** Configuration file that is read where `--config` names none. */
  readonly file?: string;
  /** Values of other programs' files, which file and flags win over; called with what those give. */
  readonly presets?: (given: Readonly<Record<string, unknown>>) => Promise<ConfigFile>;
  /** Folder that relative file names start from; the working directory where none is given. */
  readonly cwd?: string;
}

/** The values of all sections in one frozen object. */
export type ResolvedConfig<Sections extends readonly Section<object>[]> = Readonly<
  Intersection<{ [Index in keyof Sections]: (value: SectionValue<Sections[Index]>) => void }[number]>
>;

/**
 * The values of all sections together. The tuples keep the union of functions whole, so that inference intersects their parameters.
 *
 * @internal
 */
export type Intersection<Takers> = [Takers] extends [(value: infer Value) => void] ? Value : never;

/**
 * Resolves the configuration of an application from the sections of its components.
 *
 * @param sections the sections; no two may declare the same key
 * @param options flags, file and folder
 * @returns the values of all sections in one frozen object
 * @throws {ConfigError} listing everything wrong with the file, the flags and the values
 * @example
 * ```ts
 * import { z } from "zod";
 * import { resolveConfig, section } from "fullyshard/config";
 *
 * const train = section("train", z.strictObject({ steps: z.int().positive().default(100).describe("Steps") }));
 * const config = await resolveConfig([train], { argv: ["--steps", "200"] });
 * console.assert(config.steps === 200);
 * ```
 */
export async function resolveConfig<const Sections extends readonly Section<object>[]>(
  sections: Sections,
  options: ResolveOptions = {},
): Promise<ResolvedConfig<Sections>> {
  return (await resolveWithOrigins(sections, options)).config;
}

/**
 * Resolves a configuration as {@link resolveConfig} does, and tells which keys were set.
 *
 * @returns the values, and by key the flag, the place in a file or the program that set it; keys with their defaults are left out
 * @throws {ConfigError} listing everything wrong with the file, the flags and the values
 * @internal
 */
export async function resolveWithOrigins<const Sections extends readonly Section<object>[]>(
  sections: Sections,
  options: ResolveOptions = {},
): Promise<{ readonly config: ResolvedConfig<Sections>; readonly set: Readonly<Record<string, string>> }> {
  const parts = await readSections(sections);
  const keys = parts.flatMap((part) => part.keys);
  const { argv = [], positional } = options;
  const forgotten = options.argv === undefined ? undefined : npmProblem(keys.map((key) => key.flag));
  if (forgotten !== undefined) throw new ConfigError([forgotten]);
  const reading = readFlags([...builtinFlags, ...keys.map((key) => key.flag)], argv, { positional });
  const file = await readFile(reading.uses.get("config")?.texts.at(-1) ?? options.file, options.cwd, parts);

  const values: Record<string, unknown> = { ...file.values };
  const flags = new Map<string, string>();
  for (const key of keys) {
    const use = reading.uses.get(key.flag.name);
    if (use === undefined) continue;
    values[key.name] = valueOf(use.texts, key.schema);
    flags.set(key.name, use.typed);
  }

  const presets = await options.presets?.(values);
  for (const [name, value] of Object.entries(presets?.values ?? {})) {
    if (!Object.hasOwn(values, name)) values[name] = value;
  }
  const places = new Map([...presets?.places ?? [], ...file.places]);
  const origin = (path: readonly PropertyKey[]): Origin => originOf(path, flags, places);
  const problems: ConfigProblem[] = [...file.problems, ...reading.problems, ...presets?.problems ?? []];
  const parsed: object[] = [];
  sections.forEach((section, index) => {
    const names = Object.keys(parts[index]?.schema.properties ?? {});
    const own = Object.fromEntries(Object.entries(values).filter(([name]) => names.includes(name)));
    const result = section.schema.safeParse(own);
    if (result.success) parsed.push(result.data);
    else problems.push(...result.error.issues.flatMap((issue) => problemsOf(issue, own, origin)));
  });
  if (problems.length > 0) throw new ConfigError(problems.map((problem) => withRemedy(problem, parts, reading)));
  const set = Object.fromEntries(
    Object.keys(values).map((name) => [name, flags.get(name) ?? places.get(name) ?? "another program's settings"]),
  );
  return { config: deepFreeze(Object.assign({}, ...parsed)), set };
}

/**
 * The help text of an application, derived from its sections; without a final line break.
 *
 * @param usage the first line, e.g. `train.ts [flags]`
 * @param width columns that the text may take. @default 80
 */
export async function configHelp(
  sections: readonly Section<object>[],
  usage: string,
  width?: number,
): Promise<string> {
  const parts = await readSections(sections);
  const groups = parts.map((part) => `${part.name}:\n${describeFlags(part.keys.map((key) => key.flag), width)}`);
  return [`Usage: ${usage}`, ...groups, `general:\n${describeFlags(builtinFlags, width)}`].join("\n\n");
}

async function readFile(
  file: string | undefined,
  cwd: string | undefined,
  parts: readonly SectionKeys[],
): Promise<ConfigFile> {
  if (file === undefined) return { values: {}, places: new Map(), problems: [] };
  const schema: JsonSchema = {
    properties: Object.fromEntries(parts.flatMap((part) => Object.entries(part.schema.properties ?? {}))),
  };
  try {
    const text = await readText(cwd === undefined || file.startsWith("/") ? file : `${cwd}/${file}`);
    return await readConfigText(file, text, schema);
  } catch (error) {
    if (!(error instanceof FileError)) throw error;
    const problem = { path: "--config", expected: "a readable file", got: error.message };
    return { values: {}, places: new Map(), problems: [problem] };
  }
}

/** A missing value says how to give one. */
function withRemedy(problem: ConfigProblem, parts: readonly SectionKeys[], reading: FlagReading): ConfigProblem {
  if (problem.got !== "nothing") return problem;
  const key = parts.flatMap((part) => part.keys).find(({ name }) => name === problem.path);
  if (key === undefined || reading.uses.has(key.flag.name)) return problem;
  return { ...problem, got: `nothing. Set '--${key.flag.name}', or '${problem.path}' in the file of '--config'` };
}

/** The flag or place that set a value, or the value that holds it. */
function originOf(
  path: readonly PropertyKey[],
  flags: ReadonlyMap<string, string>,
  places: ReadonlyMap<string, string>,
): Origin {
  const flag = flags.get(String(path[0]));
  if (flag !== undefined) return { flag };
  for (let length = path.length; length > 0; length--) {
    const where = places.get(path.slice(0, length).map(String).join("."));
    if (where !== undefined) return { where };
  }
  return {};
}

function deepFreeze<Value>(value: Value): Value {
  if (typeof value === "object" && value !== null && !Object.isFrozen(value) && !ArrayBuffer.isView(value)) {
    Object.freeze(value);
    Object.values(value).forEach(deepFreeze);
  }
  return value;
}

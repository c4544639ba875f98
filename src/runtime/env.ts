/**
 * The only reader of environment variables: typed readers over the table of `variables.ts`. A value that cannot be parsed is a
 * ConfigError naming the variable. Nothing is read at import time, and nothing is written but the
 * variables of a process that takes another rank's place: C code does not see a runtime's changes to its own copy (see
 * `src/ffi/posix.ts` for `setenv`).
 *
 * Permission on Deno: `--allow-env` for the names of {@link ENV}. A variable that may not be read counts as not set. The
 * exception are variables that give a rank its number or name a launcher: a process that cannot read them would train alone, so
 * permission for them is requested, and a refusal is an error.
 *
 * @module
 */
import process from "node:process";
import { ConfigError } from "../errors.ts";
import { isPermitted, requestPermission } from "./permissions.ts";
import { ENV, type EnvName, type EnvVariable } from "./variables.ts";

type NamesOf<K extends EnvVariable["kind"]> = {
  [N in EnvName]: (typeof ENV)[N]["kind"] extends K ? N : never;
}[EnvName];

/** Returns the raw text of a variable; undefined if it is not set. */
export type EnvSource = (name: EnvName) => string | undefined;

/** Typed readers over a source. */
export interface Environment {
  /** The text, or undefined when unset or empty. */
  text(name: NamesOf<"text">): string | undefined;
  /** A non-negative integer. @throws {ConfigError} if it is anything else */
  integer(name: NamesOf<"integer">): number | undefined;
  /** A positive number of seconds. @throws {ConfigError} if it is anything else */
  seconds(name: NamesOf<"seconds">): number | undefined;
  /** True if the variable is set to anything but the empty string. */
  flag(name: NamesOf<"flag">): boolean;
}

export function processEnvironment(): Environment {
  return environmentFrom(processSource);
}

/** Readers over any source, e.g. a plain object in tests. */
export function environmentFrom(source: EnvSource): Environment {
  const text = (name: EnvName): string | undefined => {
    const raw = source(name);
    return raw === undefined || raw === "" ? undefined : raw;
  };
  const number = (name: EnvName, expected: string, holds: (raw: string) => boolean): number | undefined => {
    const raw = text(name);
    if (raw === undefined) return undefined;
    if (holds(raw)) return Number(raw);
    throw new ConfigError([{ path: name, expected, got: JSON.stringify(raw) }]);
  };
  const isPositive = (raw: string): boolean => Number.isFinite(Number(raw)) && Number(raw) > 0;
  return {
    text,
    integer: (name) => number(name, "a whole number from 0", isInteger),
    seconds: (name) => number(name, "a positive number of seconds", isPositive),
    flag: (name) => text(name) !== undefined,
  };
}

/** Variables that the package `yaml` reads when it parses a file. */
const YAML_NAMES = ["LOG_STREAM", "LOG_TOKENS"];

/** The names of all variables that are read, for `--allow-env=`. */
export function environmentNames(): readonly string[] {
  return [...Object.keys(ENV), ...YAML_NAMES];
}

/** Flags that `npm run` took from its command line before `--`. */
export interface NpmConfiguration {
  /** The script that npm runs, e.g. `train`. */
  readonly script: string;
  /** Texts by name, in npm's spelling: `--save-every=2` is `save_every`, a switch is `true`. */
  readonly values: Readonly<Record<string, string>>;
}

/** Flags that npm took from its command line; undefined if npm did not start this process, or they may not be read. */
export function npmConfiguration(): NpmConfiguration | undefined {
  const given = processEnvironment().text("FULLYSHARD_NPM");
  if (given !== undefined) return JSON.parse(given);
  if (!isPermitted({ name: "env" })) return undefined;
  const { npm_lifecycle_event: script, npm_command: command, npm_config_user_agent: agent } = process.env;
  if (script === undefined || command === undefined || !/^(run|run-script|start|test)$/.test(command)) return undefined;
  // Other programs set some of the same variables, and hand flags on.
  if (agent?.startsWith("npm/") !== true) return undefined;
  const values = Object.entries(process.env).flatMap(([name, value]) => {
    const key = /^npm_config_(.+)$/.exec(name)?.[1];
    return key === undefined || value === undefined ? [] : [[key, value] as const];
  });
  return { script, values: Object.fromEntries(values) };
}

/** Gives this process the variables of another rank's place; an empty text is a variable that is not set. */
export function takeVariables(values: Readonly<Record<string, string>>): void {
  for (const [name, value] of Object.entries(values)) {
    if (isPermitted({ name: "env", variable: name })) process.env[name] = value;
  }
}

/** All variables of this process, for processes that it starts; the library decides nothing by them. */
export function inheritedVariables(): Readonly<Record<string, string | undefined>> {
  return { ...process.env };
}

/** True if a text is a non-negative integer. */
export function isInteger(text: string): boolean {
  return /^\d{1,15}$/.test(text.trim());
}

/** The text of a variable of this process. @throws {ConfigError} if a variable that must be readable is not */
export function processSource(name: EnvName): string | undefined {
  const declared: EnvVariable = ENV[name];
  if (isPermitted({ name: "env", variable: name })) return process.env[name];
  if (declared.mustBeReadable !== true) return undefined;
  // One request for all variables, instead of one for each.
  if (requestPermission({ name: "env" })) return process.env[name];
  throw new ConfigError([{
    path: name,
    expected: `permission to read it (${declared.meaning})`,
    got: "none: run Deno with --allow-env",
  }]);
}

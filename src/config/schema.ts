/**
 * Describes a configuration, derived from its sections: every key with its path, flag and
 * description. Reads only the JSON schema that zod makes, never zod's internals.
 *
 * @module
 */
import { at } from "../at.ts";
import { ArgumentError } from "../errors.ts";
import type { Flag } from "./flags.ts";
import type { Section } from "./section.ts";

/** The keywords of a JSON schema that are read here. */
export interface JsonSchema {
  readonly type?: string | readonly string[];
  readonly enum?: readonly unknown[];
  readonly const?: unknown;
  readonly default?: unknown;
  readonly description?: string;
  /** The key's names in other programs, in kebab case: given to zod as `.meta({ otherNames })`. */
  readonly otherNames?: readonly string[];
  /** The type's name in help and messages, e.g. `path`: given to zod as `.meta({ shown })`. @default by `type` */
  readonly shown?: string;
  readonly properties?: Readonly<Record<string, JsonSchema>>;
  readonly required?: readonly string[];
  readonly items?: JsonSchema | boolean;
  readonly anyOf?: readonly JsonSchema[];
  readonly oneOf?: readonly JsonSchema[];
}

/** One key of a configuration that a flag can set. */
export interface Key {
  readonly name: string;
  readonly schema: JsonSchema;
  /** The flag that sets it. */
  readonly flag: Flag;
}

/** A section as the resolver needs it. */
export interface SectionKeys {
  readonly name: string;
  readonly schema: JsonSchema;
  /** The section's keys, in the order of declaration. */
  readonly keys: readonly Key[];
}

/** Flags that every configuration has. */
export const builtinFlags: readonly Flag[] = [
  { name: "config", takes: "one", placeholder: "<file>", description: "YAML or JSON file with values; flags win" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

/**
 * Reads the keys of sections.
 *
 * @throws {ArgumentError} where two sections declare one key or flag
 */
export async function readSections(sections: readonly Section<object>[]): Promise<readonly SectionKeys[]> {
  const { z } = await import("zod");
  const owners = new Map(builtinFlags.map((flag) => [flag.name, "every command"]));
  return sections.map((section) => {
    // Through text, because zod types every keyword of the standard and the parts read here are few.
    const text = JSON.stringify(z.toJSONSchema(section.schema, { io: "input", unrepresentable: "any" }));
    const schema: JsonSchema = JSON.parse(text);
    const keys = Object.entries(schema.properties ?? {}).map(([name, key]): Key => ({
      name,
      schema: key,
      flag: flagOf(name, key),
    }));
    for (const { flag } of keys) {
      const owner = owners.get(flag.name);
      if (owner !== undefined) {
        throw new ArgumentError(`Flag '--${flag.name}' is declared by '${owner}' and again by '${section.name}'`);
      }
      owners.set(flag.name, section.name);
    }
    return { name: section.name, schema, keys };
  });
}

/** All flags of a configuration, `--config` and `--help` included. */
export async function flagsOf(sections: readonly Section<object>[]): Promise<readonly Flag[]> {
  const parts = await readSections(sections);
  return [...parts.flatMap(({ keys }) => keys.map(({ flag }) => flag)), ...builtinFlags];
}

/**
 * Turns the texts of a flag into the value that the schema checks. A text that does not fit stays a text, so that
 * the check names it.
 */
export function valueOf(texts: readonly string[], schema: JsonSchema): unknown {
  if (!isList(schema)) return scalar(at(texts, texts.length - 1, "text of flag"), schema);
  const items = itemsOf(schema);
  // Commas and blanks are parts of a text. A comma separates everything else: `--sizes 8,16`.
  const parts = names(items).has("string")
    ? texts
    : texts.flatMap((text) => text.split(",").map((part) => part.trim()));
  return parts.map((part) => scalar(part, items));
}

/** The name that a key has in code, whatever spelling a file used: `learningRate` for `learning_rate` or `learning-rate`. */
export function camelCase(name: string): string {
  return name.replace(/[-_]+([a-zA-Z0-9])/g, (_, letter: string) => letter.toUpperCase());
}

/** The name that a key has as a flag: `learning-rate` for `learningRate`, `load-in-4bit` for `loadIn4bit`. */
export function kebabCase(name: string): string {
  return name.replace(/([a-z0-9])([A-Z])/g, "$1-$2").replace(/([a-z])(\d+[a-z])/g, "$1-$2").toLowerCase();
}

function flagOf(name: string, schema: JsonSchema): Flag {
  const takes = isList(schema) ? "many" : schema.type === "boolean" ? "switch" : "one";
  const shown = schema.default === undefined || (Array.isArray(schema.default) && schema.default.length === 0)
    ? {}
    : { default: typeof schema.default === "string" ? schema.default : JSON.stringify(schema.default) };
  return {
    name: kebabCase(name),
    takes,
    ...(takes === "switch" ? {} : { placeholder: `<${describeType(schema)}>` }),
    description: schema.description ?? "",
    ...(schema.otherNames === undefined ? {} : { otherNames: schema.otherNames }),
    ...shown,
  };
}

/** The type of a value in a word or two, e.g. `int`, `auto|int`. */
function describeType(schema: JsonSchema): string {
  if (schema.shown !== undefined) return schema.shown;
  const choices = schema.anyOf ?? schema.oneOf;
  if (choices !== undefined) {
    return choices.filter((choice) => !holdsObjects(choice)).map(describeType).join("|");
  }
  if (schema.const !== undefined) return String(schema.const);
  if (schema.enum !== undefined) return schema.enum.map(String).join("|");
  if (isList(schema)) return describeType(itemsOf(schema));
  const words: Readonly<Record<string, string>> = { integer: "int", string: "text", boolean: "true|false" };
  return [...names(schema)].map((name) => words[name] ?? name).join("|") || "value";
}

function scalar(text: string, schema: JsonSchema): unknown {
  const types = names(schema);
  if ((types.has("number") || types.has("integer")) && /^[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(text)) {
    return Number(text);
  }
  if (types.has("boolean") && (text === "true" || text === "false")) return text === "true";
  if (types.has("object") && text.startsWith("{")) return parsed(text);
  return text;
}

/** The value of a JSON text; a text that is none stays as it is. */
function parsed(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch (error) {
    if (error instanceof SyntaxError) return text;
    throw error;
  }
}

/** True if a value is an object, which help texts do not spell out. */
function holdsObjects(schema: JsonSchema): boolean {
  return [...names(schema)].every((name) => name === "object") && names(schema).has("object");
}

/** True if a key holds a list, for which a file may give a single value. */
export function isList(schema: JsonSchema): boolean {
  return names(schema).has("array");
}

/** The schema of a list's items; any item where the schema does not say. */
function itemsOf({ items }: JsonSchema): JsonSchema {
  return typeof items === "object" ? items : {};
}

/** All type names that a schema allows. */
function names(schema: JsonSchema): ReadonlySet<string> {
  const choices = [...schema.anyOf ?? [], ...schema.oneOf ?? []];
  const own = typeof schema.type === "string" ? [schema.type] : schema.type ?? [];
  return new Set([...own, ...choices.flatMap((choice) => [...names(choice)])]);
}

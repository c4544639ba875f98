/**
 * The JSON schema of a configuration file, by which editors complete its keys and mark wrong values. See
 * https://json-schema.org/draft/2020-12.
 *
 * @module
 */
import type { Section } from "./section.ts";

/** A JSON schema of an object, as far as it is built here. */
export interface FileSchema {
  readonly $schema: string;
  readonly title: string;
  readonly type: "object";
  /** The schema of each key. */
  readonly properties: Readonly<Record<string, object>>;
  /** Keys in another spelling, such as `learning_rate`: files may have them, and they are not checked by editors. */
  readonly patternProperties: Readonly<Record<string, object>>;
  readonly additionalProperties: false;
}

/** Keywords that only this library's help reads. */
const OWN_KEYWORDS = ["otherNames", "shown"];

/**
 * Makes the schema of a file that has the keys of some sections.
 *
 * @param title the schema's title
 * @param sections the sections, whose keys differ
 */
export async function fileSchema(title: string, sections: readonly Section<object>[]): Promise<FileSchema> {
  const { z } = await import("zod");
  const properties: Record<string, object> = { $schema: { type: "string", description: "Address of this schema" } };
  for (const { schema } of sections) {
    // Through text, which drops what JSON cannot hold.
    const text = JSON.stringify(
      z.toJSONSchema(schema, { io: "input", unrepresentable: "any" }),
      (key, value: unknown) => OWN_KEYWORDS.includes(key) ? undefined : value,
    );
    const made: { readonly properties?: Readonly<Record<string, ListSchema>> } = JSON.parse(text);
    for (const [name, key] of Object.entries(made.properties ?? {})) properties[name] = withSingle(key);
  }
  return {
    $schema: "https://json-schema.org/draft/2020-12/schema",
    title,
    type: "object",
    properties,
    patternProperties: { "^[a-z0-9]+(?:[-_][a-z0-9]+)+$": {} },
    additionalProperties: false,
  };
}

/** A list's schema that also allows a single item, as files do. */
function withSingle(key: ListSchema): object {
  const { type, items, ...about } = key;
  return type === "array" && typeof items === "object" ? { ...about, anyOf: [{ type, items }, items] } : key;
}

interface ListSchema {
  readonly type?: unknown;
  readonly items?: object | boolean;
}

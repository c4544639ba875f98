/**
 * Lets a component declare its part of the configuration: a zod object with defaults and descriptions. Types, checks,
 * flags and help text derive from it (`schema.ts`, `resolve.ts`). Importing this loads nothing: zod is
 * needed only where a section is declared.
 *
 * @module
 */
import type { z } from "zod";

/** Part of a configuration, owned by the component that it configures. */
export interface Section<Value extends object> {
  /** Name of the part, as a heading in the help text. */
  readonly name: string;
  /** The schema, a `z.strictObject`. Its keys are the names in a config file. */
  readonly schema: SectionSchema<Value>;
}

/**
 * The schema of a section: a zod object whose parsed value is `Value`.
 *
 * @internal
 */
export type SectionSchema<Value extends object> = z.ZodObject & z.ZodType<Value>;

/** The value of a section. */
export type SectionValue<Part> = Part extends Section<infer Value> ? Value : never;

/**
 * Declares a section.
 *
 * @param name heading in the help text
 * @param schema a `z.strictObject` in which every key has a description, and a default where there is one
 * @returns the section, to be handed to `resolveConfig`
 * @example
 * ```ts
 * import { z } from "zod";
 * import { section, type Section } from "fullyshard/config";
 *
 * interface DataConfig {
 *   readonly sequenceLength: number;
 * }
 * const dataSection: Section<DataConfig> = section(
 *   "data",
 *   z.strictObject({ sequenceLength: z.int().positive().default(256).describe("Tokens a sample") }),
 * );
 * console.assert(dataSection.name === "data");
 * ```
 */
export function section<Value extends object>(name: string, schema: SectionSchema<Value>): Section<Value> {
  return { name, schema };
}

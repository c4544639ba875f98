/**
 * The problem of a setting that has an effect only if another one is set.
 *
 * @module
 */
import type { ConfigProblem } from "../errors.ts";

/**
 * Describes a setting that was given without the setting that it needs.
 *
 * @param path key or flag that was given
 * @param other the setting that it needs, such as `loraR` or `tpSize of at least 2`
 * @param value the value that was given
 */
export function needs(path: string, other: string, value: unknown): ConfigProblem {
  const given = typeof value === "string" ? `'${value}'` : JSON.stringify(value) ?? String(value);
  return { path, expected: `${other} to be set too`, got: `${given} without it; set ${other}, or remove ${path}` };
}

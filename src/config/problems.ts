/**
 * Words for what a schema refuses: each issue that zod finds becomes one problem with what was expected, what was
 * found and where it was set.
 *
 * @module
 */
import type { z } from "zod";
import type { ConfigProblem } from "../errors.ts";
import { countOf } from "../words.ts";
import { didYouMean } from "./nearest.ts";

/** The origin of a value. */
export interface Origin {
  /** The flag as typed, where a flag set it. */
  readonly flag?: string;
  /** Place in the file, where the file set it. */
  readonly where?: string;
}

/**
 * Describes what zod found: one problem, or one for each unknown key.
 *
 * @param values the values that were checked
 * @param origin the source of the value at a path
 */
export function problemsOf(
  issue: z.core.$ZodIssue,
  values: unknown,
  origin: (path: readonly PropertyKey[]) => Origin,
): readonly ConfigProblem[] {
  const value = valueAt(values, issue.path);
  const { flag, where } = origin(issue.path);
  const path = flag ?? (issue.path.map(String).join(".") || "configuration");
  const place = where === undefined ? {} : { where };
  if (issue.code === "unrecognized_keys") {
    return issue.keys.map((key) => ({ path, expected: "a known key", got: `'${key}'`, ...place }));
  }
  return [{ path, expected: expectation(issue), got: found(issue, value), ...place }];
}

function expectation(issue: z.core.$ZodIssue): string {
  switch (issue.code) {
    case "invalid_type":
      return typeName(issue.expected);
    case "invalid_value":
      return issue.values.map((value) => `'${String(value)}'`).join(" or ");
    case "too_small":
      return bound(issue.origin, issue.inclusive === false ? ">" : ">=", issue.minimum);
    case "too_big":
      return bound(issue.origin, issue.inclusive === false ? "<" : "<=", issue.maximum);
    case "not_multiple_of":
      return `a multiple of ${issue.divisor}`;
    case "invalid_union": {
      const choices = issue.errors.flatMap((issues) => issues.slice(0, 1).map(expectation));
      return [...new Set(choices)].join(" or ") || issue.message;
    }
    default:
      return issue.message;
  }
}

function found(issue: z.core.$ZodIssue, value: unknown): string {
  if (value === undefined) return "nothing";
  const text = typeof value === "string" ? `'${value}'` : JSON.stringify(value) ?? String(value);
  const short = text.length > 80 ? `${text.slice(0, 77)}...` : text;
  if (issue.code !== "invalid_value" || typeof value !== "string") return short;
  return `${short}${didYouMean(value, issue.values.map(String))}`;
}

function typeName(name: string): string {
  if (name === "int" || name === "array" || name === "object") return `an ${name === "int" ? "integer" : name}`;
  return name === "string" ? "a text" : `a ${name}`;
}

function bound(origin: string, relation: string, limit: number | bigint): string {
  if (origin === "string") return `a text of ${relation} ${countOf(Number(limit), "character")}`;
  if (origin === "array" || origin === "set") return `a list of ${relation} ${countOf(Number(limit), "item")}`;
  return `${origin === "int" ? "an integer" : "a number"} ${relation} ${limit}`;
}

function valueAt(values: unknown, path: readonly PropertyKey[]): unknown {
  let value = values;
  for (const key of path) {
    if (typeof value !== "object" || value === null) return undefined;
    value = Reflect.get(value, key);
  }
  return value;
}

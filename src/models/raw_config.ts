/**
 * Checks a `config.json` by the schema of a family, in the words of every other configuration.
 *
 * A folder's config carries keys that change nothing which is computed, and more with each version of transformers: so an
 * unknown key is refused only where it reads like one that is not there.
 *
 * @module
 */
import type { z } from "zod";
import { nearestName } from "../config/nearest.ts";
import { problemsOf } from "../config/problems.ts";
import { ConfigError, type ConfigProblem } from "../errors.ts";

/** Letters by which a mistyped key differs: `bos_token_id` is three from `pad_token_id`. */
const MOST_TYPOS = 2;

/** A parsed JSON object. */
type RawConfig = Readonly<Record<string, unknown>>;

/**
 * Checks a config.
 *
 * @param schema the keys that matter, a `z.looseObject`
 * @throws {ConfigError} with every key that is missing, wrong or mistyped
 */
export function parseRawConfig<Schema extends z.ZodObject>(schema: Schema, hfConfig: RawConfig): z.infer<Schema> {
  const mistyped = mistypedKeys(hfConfig, Object.keys(schema.shape));
  const meant = new Set(mistyped.values());
  const problems: ConfigProblem[] = [...mistyped].map(([key, known]) => ({
    path: key,
    expected: "a known key",
    got: `'${key}'. Did you mean '${known}'?`,
  }));
  const parsed = schema.safeParse(hfConfig);
  if (!parsed.success) {
    const others = parsed.error.issues.filter((issue) => !meant.has(String(issue.path[0])));
    problems.push(...others.flatMap((issue) => problemsOf(issue, hfConfig, () => ({}))));
  } else if (problems.length === 0) return parsed.data;
  throw new ConfigError(problems.map((problem) => ({ ...problem, path: `config.json ${problem.path}` })));
}

/** Unknown keys with the known ones that were probably meant. */
function mistypedKeys(hfConfig: RawConfig, known: readonly string[]): ReadonlyMap<string, string> {
  const absent = known.filter((key) => hfConfig[key] === undefined);
  return new Map(
    // Keys of transformers' own, like _name_or_path, begin with '_'.
    Object.keys(hfConfig).filter((key) => !known.includes(key) && !key.startsWith("_")).flatMap((key) => {
      const meant = nearestName(key, absent, MOST_TYPOS);
      return meant === undefined ? [] : [[key, meant] as const];
    }),
  );
}

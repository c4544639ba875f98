/**
 * Arguments that are places and no flags, as commands about checkpoints take them.
 *
 * @module
 */
import * as z from "zod";
import { resolveConfig } from "../config/resolve.ts";
import type { Section } from "../config/section.ts";
import { ConfigError } from "../errors.ts";
import { path } from "../train/config_values.ts";

/** The key that such arguments are values of. */
export const placesKey: z.ZodDefault<z.ZodArray<z.ZodString>> = z.array(path).default([]);

/** The key of commands that take averages of a checkpoint's weights. */
export const averagesKey: z.ZodDefault<z.ZodBoolean> = z.boolean().default(false).describe(
  "Take the averages of a checkpoint's weights, which a run with emaDecay keeps beside them, in place of the weights",
).meta({ otherNames: ["ema", "use-ema", "ema-weights"] });

/** Refuses more or fewer arguments than the command takes. @throws {ConfigError} */
export function requirePlaces<const Names extends readonly string[]>(
  places: readonly string[],
  names: Names,
): asserts places is { readonly [Index in keyof Names]: string } {
  if (places.length === names.length) return;
  const got = places.length === 0 ? "nothing" : places.map((place) => `'${place}'`).join(" ");
  throw new ConfigError([{ path: "arguments", expected: names.map((name) => `<${name}>`).join(" "), got }]);
}

/**
 * The configuration of a command that takes one model, as its first argument or by `--model`.
 *
 * @throws {ConfigError} for flags that are wrong, no model, or two
 */
export async function resolveWithModel<Config extends { readonly model?: string | undefined }>(
  sections: readonly [Section<Config>],
  argv: readonly string[],
): Promise<Config & { readonly folder: string }> {
  const [first] = argv;
  const isPlace = first !== undefined && !first.startsWith("-");
  const config = await resolveConfig(sections, { argv: isPlace ? argv.slice(1) : argv });
  const folder = isPlace ? first : config.model;
  const expected = "a folder of a model, as an argument or by '--model'";
  if (folder === undefined) throw new ConfigError([{ path: "model", expected, got: "nothing" }]);
  if (isPlace && config.model !== undefined) throw new ConfigError([{ path: "model", expected, got: "2 of them" }]);
  return { ...config, folder };
}

/**
 * Arguments that are places and no flags, as commands about checkpoints take them.
 *
 * @module
 */
import * as z from "zod";
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

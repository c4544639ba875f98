/**
 * Arguments that are places and no flags, as commands about checkpoints take them.
 *
 * @module
 */
import * as z from "zod";
import { ConfigError } from "../errors.ts";

/** The key that such arguments are values of. */
export const placesKey: z.ZodDefault<z.ZodArray<z.ZodString>> = z.array(z.string()).default([]);

/** The arguments, of which there must be as many as the command takes. @throws {ConfigError} if there are more or fewer */
export function requirePlaces(places: readonly string[], names: readonly string[]): readonly string[] {
  if (places.length === names.length) return places;
  const got = places.length === 0 ? "nothing" : places.map((place) => `'${place}'`).join(" ");
  throw new ConfigError([{ path: "arguments", expected: names.map((name) => `<${name}>`).join(" "), got }]);
}

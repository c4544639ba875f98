/**
 * `fullyshard reshard`: a sharded checkpoint rewritten for another number of ranks. Loading does not need it.
 *
 * @module
 */
import process from "node:process";
import * as z from "zod";
import { reshardCheckpoint } from "../checkpoint/offline/reshard.ts";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { section } from "../config/section.ts";
import { ConfigError } from "../errors.ts";
import { pathExists } from "../runtime/files.ts";
import { countOf, formatBytes } from "../words.ts";
import { placesKey, requirePlaces } from "./places.ts";

const SECTIONS = [section(
  "reshard",
  z.strictObject({
    places: placesKey.describe("The checkpoint, then the one to write, as arguments or by --places"),
    nproc: z.int().positive().describe("Ranks that it is cut for"),
  }),
)] as const;

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(SECTIONS);

/**
 * Rewrites the checkpoint.
 *
 * @param argv the arguments after `reshard`
 * @returns the exit code
 * @throws {CheckpointError} {@link FileError} if the checkpoint is not complete
 * @throws {ConfigError} for arguments that are wrong
 */
export async function reshard(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    process.stdout.write(`${await configHelp(SECTIONS, "fullyshard reshard <checkpoint> <checkpoint> --nproc <n>")}\n`);
    return 0;
  }
  const { places, nproc } = await resolveConfig(SECTIONS, { argv, positional: "places" });
  requirePlaces(places, ["checkpoint", "checkpoint"]);
  const [from, to] = places;
  if (pathExists(to)) {
    const expected = "a name that is free: give another, or remove what has it";
    throw new ConfigError([{ path: "checkpoint", expected, got: `'${to}', which exists` }]);
  }
  const bytes = await reshardCheckpoint(from, to, nproc);
  process.stdout.write(`Wrote ${formatBytes(bytes)} for ${countOf(nproc, "rank")} to '${to}'\n`);
  return 0;
}

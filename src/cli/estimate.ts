/**
 * `fullyshard estimate`: what a training step of a model takes on one rank of any number of them: memory, communication and
 * calculation, from a dry run of the step itself. Needs no weights, and none of the memory.
 *
 * @module
 */
import process from "node:process";
import { type Flag, helpAsked } from "../config/flags.ts";
import { configHelp, resolveConfig } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { processEnvironment } from "../runtime/env.ts";
import { terminal } from "../runtime/terminal.ts";
import { foreignPresets } from "../train/presets.ts";
import { ESTIMATE_SECTIONS } from "./estimate_config.ts";
import { estimateOf } from "./estimate_of.ts";
import { estimateJson, estimateLines } from "./estimate_text.ts";

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => flagsOf(ESTIMATE_SECTIONS);

/**
 * Estimates a step and prints what it takes.
 *
 * @param argv the arguments after `estimate`
 * @returns the exit code
 * @throws {ConfigError} for arguments that are wrong, and sizes that do not fit the model
 * @throws {FileError} {@link CheckpointError} if there is no model configuration
 * @throws {UnsupportedError} for a model that there is not
 */
export async function estimate(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    const out = terminal("stdout");
    const usage = "fullyshard estimate --model <folder> --nproc <n> [flags]";
    out.write(`${await configHelp(ESTIMATE_SECTIONS, usage, out.columns())}\n`);
    return 0;
  }
  const config = await resolveConfig(ESTIMATE_SECTIONS, { argv, presets: foreignPresets({}, []) });
  const found = await estimateOf(config, { localWorldSize: processEnvironment().integer("LOCAL_WORLD_SIZE") });
  const text = config.json ? [JSON.stringify(estimateJson(found))] : estimateLines(found);
  process.stdout.write(`${text.join("\n")}\n`);
  return 0;
}

/**
 * The flags of a script, told where they are wrong or asked for.
 *
 * @module
 */
import process from "node:process";
import { describeFlags, type Flag, type FlagUse, readFlags } from "../src/config/flags.ts";

/**
 * Reads a script's flags, of which `help` is one.
 *
 * @returns their uses, or the status to end with: what is wrong, or the help, was printed
 */
export function readScriptFlags(
  flags: readonly Flag[],
  argv: readonly string[],
): ReadonlyMap<string, FlagUse> | number {
  const { uses, problems } = readFlags(flags, argv, { stopAtPositional: true });
  if (problems.length === 0 && !uses.has("help")) return uses;
  for (const { path, expected, got } of problems) process.stdout.write(`${path}: expected ${expected}, got ${got}\n`);
  process.stdout.write(`${describeFlags(flags)}\n`);
  return uses.has("help") ? 0 : 2;
}

/**
 * `fullyshard doctor`: prints the findings of `doctor.ts`, as text or as JSON.
 *
 * @module
 */
import { describeFlags, type Flag, readFlags } from "../config/flags.ts";
import { ConfigError } from "../errors.ts";
import { terminal } from "../runtime/terminal.ts";
import { doctor } from "./doctor.ts";

const flags: readonly Flag[] = [
  { name: "json", takes: "switch", description: "Print one JSON object" },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => Promise.resolve(flags);

/**
 * Examines this machine and prints what was found.
 *
 * @returns the exit code
 * @throws {ConfigError} for arguments that are wrong
 */
export async function runDoctor(argv: readonly string[]): Promise<number> {
  const { uses, problems } = readFlags(flags, argv);
  if (problems.length > 0) throw new ConfigError(problems);
  const out = terminal("stdout");
  if (uses.has("help")) {
    out.write(`Usage: fullyshard doctor [flags]\n\n${describeFlags(flags, out.columns())}\n`);
    return 0;
  }
  return await doctor({ json: uses.get("json")?.texts.at(-1) === "true", width: out.columns() }, out.write);
}

/**
 * The command line: finds the command, runs it and turns its outcome into an exit code. A command is loaded when it is
 * asked for, so that none pays for the others.
 *
 * @module
 */
import process from "node:process";
import { wrapWords } from "../config/flags.ts";
import { ENV } from "../runtime/variables.ts";
import { scriptArguments } from "../runtime/processes.ts";
import { terminal } from "../runtime/terminal.ts";
import { VERSION } from "../version.ts";
import { COMMANDS } from "./commands.ts";

/** The text before the variables, with the list of commands. */
const usage = (list: string): string =>
  `Usage: fullyshard [--runtime <bun|deno|auto>] <command> [flags]

${list}

  fullyshard <command> --help   the flags of a command
  fullyshard --version          the version

--runtime, before the command, chooses the runtime of the command and its
ranks; auto, the default: the present runtime, else Bun, else Deno.

Environment variables:`;

/** The variables that a user sets; `run` sets a rank's variables. */
const shownVariables = [
  "FULLYSHARD_LOG",
  "FULLYSHARD_RUNTIME",
  "FULLYSHARD_TIMEOUT_SECONDS",
  "FULLYSHARD_FLIGHT_DIRECTORY",
  "NO_COLOR",
] as const;

function help(): string {
  const column = 32;
  const lines = shownVariables.flatMap((name) => {
    const meaning = wrapWords(ENV[name].meaning, terminal("stdout").columns() - column);
    return meaning.map((text, line) => `  ${(line === 0 ? name : "").padEnd(column - 2)}${text}`);
  });
  const list = Object.entries(COMMANDS).map(([name, { does }]) => `  ${name.padEnd(12)}  ${does}`);
  return [usage(list.join("\n")), ...lines].join("\n");
}

/** Runs a command line, given without the program; returns the exit code: 2 where the arguments are wrong. */
export async function main(argv: readonly string[]): Promise<number> {
  const [name, ...rest] = argv;
  if (name === undefined || name === "--help" || name === "-h" || name === "help") {
    (name === undefined ? process.stderr : process.stdout).write(`${help()}\n`);
    return name === undefined ? 2 : 0;
  }
  if (name === "--version" || name === "-V") {
    process.stdout.write(`${VERSION}\n`);
    return 0;
  }
  const command = Object.hasOwn(COMMANDS, name) ? COMMANDS[name] : undefined;
  if (command === undefined) {
    const { didYouMean } = await import("../config/nearest.ts");
    const hint = didYouMean(name, Object.keys(COMMANDS)) || ".";
    process.stderr.write(`fullyshard: there is no command '${name}'${hint} See 'fullyshard --help'\n`);
    return 2;
  }
  try {
    const { run } = await command.load();
    return await run(rest);
  } catch (error) {
    const { isOneOf, USAGE_ERRORS } = await import("../errors.ts");
    if (!isOneOf(error, USAGE_ERRORS)) throw error;
    process.stderr.write(`fullyshard ${name}: ${error.message}\n`);
    return 2;
  }
}

if (import.meta.main) process.exitCode = await main(scriptArguments());

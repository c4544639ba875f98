/**
 * `fullyshard completions`: prints the completions of a shell: commands, flags, and values that a flag lists. They are made from the
 * tables that commands read their flags by.
 *
 * @module
 */
import { describeFlags, type Flag, readFlags } from "../config/flags.ts";
import { flagsOf } from "../config/schema.ts";
import { ConfigError } from "../errors.ts";
import { terminal } from "../runtime/terminal.ts";
import { TRAIN_SECTIONS } from "../train/config.ts";
import { COMMANDS } from "./commands.ts";
import { type CompletedCommand, SCRIPT, SHELLS } from "./completion_scripts.ts";

const flags: readonly Flag[] = [
  {
    name: "shell",
    takes: "many",
    placeholder: "<bash|zsh|fish>",
    description: "The shell, as an argument or by --shell",
  },
  { name: "help", short: "h", takes: "switch", description: "Show this text" },
];

const USE = `Put them where the shell looks for them:
  bash   fullyshard completions bash >> ~/.bashrc
  zsh    fullyshard completions zsh > "\${fpath[1]}/_fullyshard"
  fish   fullyshard completions fish > ~/.config/fish/completions/fullyshard.fish`;

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => Promise.resolve(flags);

/**
 * Prints the completions of a shell.
 *
 * @param argv the arguments after `completions`: the shell
 * @returns the exit code
 * @throws {ConfigError} for arguments that are wrong
 */
export async function completions(argv: readonly string[]): Promise<number> {
  const { uses, problems } = readFlags(flags, argv, { positional: "shell" });
  const out = terminal("stdout");
  if (uses.has("help")) {
    out.write(`Usage: fullyshard completions <bash|zsh|fish>\n\n${USE}\n\n${describeFlags(flags, out.columns())}\n`);
    return 0;
  }
  if (problems.length > 0) throw new ConfigError(problems);
  const [shell, ...more] = uses.get("shell")?.texts ?? [];
  const script = shell !== undefined && Object.hasOwn(SHELLS, shell) ? SHELLS[shell] : undefined;
  if (script === undefined || more.length > 0) {
    const got = shell === undefined ? "nothing" : [shell, ...more].map((text) => `'${text}'`).join(" ");
    throw new ConfigError([{ path: "shell", expected: `one of ${Object.keys(SHELLS).join(", ")}`, got }]);
  }
  out.write(script(await completedCommands()));
  return 0;
}

/** All commands, and the flags of a training script under the name {@link SCRIPT}. */
async function completedCommands(): Promise<readonly CompletedCommand[]> {
  const commands = await Promise.all(
    Object.entries(COMMANDS).map(async ([name, { does, load }]) => ({
      name,
      does,
      flags: await (await load()).flags(),
    })),
  );
  return [...commands, { name: SCRIPT, does: "", flags: await flagsOf(TRAIN_SECTIONS) }];
}

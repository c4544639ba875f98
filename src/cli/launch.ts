/**
 * `fullyshard launch`: starts a script as a file of Accelerate says, which the script reads too (`accelerate launch`).
 *
 * @module
 */
import { readAccelerateConfig } from "../accelerate/read.ts";
import { describeFlags, type Flag, readFlags } from "../config/flags.ts";
import { ConfigError } from "../errors.ts";
import { runFlags } from "../launch/plan.ts";
import { pathKind } from "../runtime/files.ts";
import { workingDirectory } from "../runtime/processes.ts";
import { terminal } from "../runtime/terminal.ts";
import { CONFIG_FILE } from "./config.ts";
import { run } from "./run.ts";

const own: readonly Flag[] = [
  { name: "config", takes: "one", placeholder: "<file>", description: "Accelerate's file", default: CONFIG_FILE },
  { name: "config-file", takes: "one", placeholder: "<file>", description: "The same, by Accelerate's name" },
  {
    name: "num-processes",
    takes: "one",
    placeholder: "<n>",
    description: "Ranks to start, whatever the file says; as --nproc-per-node",
  },
];

/** The flags of the command. */
export const commandFlags = (): Promise<readonly Flag[]> => Promise.resolve([...own, ...runFlags]);

/**
 * Runs a script on the ranks that a file of Accelerate asks for.
 *
 * @returns the exit code
 * @throws {ConfigError} for arguments that are wrong, and all that is wrong with the file
 * @throws {UnsupportedError} for what this launcher does not do
 */
export async function launch(argv: readonly string[]): Promise<number> {
  const { uses, rest, problems } = readFlags([...own, ...runFlags], argv, { stopAtPositional: true });
  if (uses.has("help")) {
    const out = terminal("stdout");
    const usage = "Usage: fullyshard launch [flags] script.ts [its arguments]";
    out.write(`${usage}\n\n${describeFlags([...own, ...runFlags], out.columns())}\n`);
    return 0;
  }
  if (problems.length > 0) throw new ConfigError(problems);
  const text = (name: string): string | undefined => uses.get(name)?.texts.at(-1);
  const named = text("config") ?? text("config-file");
  const file = named ?? CONFIG_FILE;
  const path = file.startsWith("/") ? file : `${workingDirectory()}/${file}`;
  if (named === undefined && pathKind(path) !== "file") {
    const got = `nothing, and there is no '${CONFIG_FILE}' here. Write one with 'fullyshard config'`;
    throw new ConfigError([{ path: "--config", expected: "a file of Accelerate", got }]);
  }
  const { ranks, problems: wrong } = await readAccelerateConfig(path);
  if (wrong.length > 0) throw new ConfigError(wrong);
  const count = text("num-processes") ?? ranks.count;
  const asked = [
    ...count === undefined ? [] : [`--nproc-per-node=${count}`],
    ...ranks.masterAddr === undefined ? [] : [`--master-addr=${ranks.masterAddr}`],
    ...ranks.masterPort === undefined ? [] : [`--master-port=${ranks.masterPort}`],
  ];
  const ownNames = new Set(own.map(({ name }) => name));
  const given = runFlags.flatMap(({ name, takes }) => {
    const use = uses.get(name);
    if (use === undefined || ownNames.has(name)) return [];
    return use.texts.map((value) =>
      takes === "switch" ? `--${value === "true" ? "" : "no-"}${name}` : `--${name}=${value}`
    );
  });
  return await run([...asked, ...given, ...rest], { FULLYSHARD_ACCELERATE_CONFIG: path });
}

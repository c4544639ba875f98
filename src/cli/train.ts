/**
 * `fullyshard train`: a training on several ranks without a script of one's own. Flags of the launcher and of the training may stand in
 * any order.
 *
 * @module
 */
import { fileURLToPath } from "node:url";
import { describeFlags, type Flag, helpAsked } from "../config/flags.ts";
import { configHelp } from "../config/resolve.ts";
import { flagsOf } from "../config/schema.ts";
import { UnsupportedError } from "../errors.ts";
import { runFlags } from "../launch/plan.ts";
import { terminal } from "../runtime/terminal.ts";
import { TRAIN_SECTIONS } from "../train/config.ts";
import { run } from "./run.ts";

const launcherFlags: readonly Flag[] = runFlags.filter(({ name }) => name !== "help");

/** The flags of the command; `--trace` is the launcher's, which also merges the traces of the ranks. */
export async function commandFlags(): Promise<readonly Flag[]> {
  const names = new Set(launcherFlags.map(({ name }) => name));
  return [...launcherFlags, ...(await flagsOf(TRAIN_SECTIONS)).filter(({ name }) => !names.has(name))];
}

/**
 * Trains on the ranks that the launcher's flags ask for.
 *
 * @param argv the arguments after `train`
 * @returns the exit code
 * @throws {ConfigError} for flags of the launcher that are wrong; the ranks report flags of the training
 */
export async function train(argv: readonly string[]): Promise<number> {
  if (helpAsked(argv)) {
    const out = terminal("stdout");
    const ranks = `ranks:\n${describeFlags(launcherFlags, out.columns())}`;
    out.write(`${await configHelp(TRAIN_SECTIONS, "fullyshard train [flags]", out.columns())}\n\n${ranks}\n`);
    return 0;
  }
  const { launcher, training } = divide(argv);
  const script = new URL("./train_script.ts", import.meta.url);
  if (script.protocol !== "file:") {
    throw new UnsupportedError(
      `Cannot train by ${script.href}: ranks need a file. Install the package, or run a script of your own`,
    );
  }
  return await run([...launcher, fileURLToPath(script), ...training]);
}

/** Arguments of the launcher and of the training, each in their order. */
export function divide(
  argv: readonly string[],
): { readonly launcher: readonly string[]; readonly training: readonly string[] } {
  const [launcher, training]: [string[], string[]] = [[], []];
  for (let i = 0; i < argv.length; i++) {
    const text = argv[i] ?? "";
    const [typed = ""] = text.split("=", 1);
    const name = typed.replace(/^--?/, "").replaceAll("_", "-");
    const flag = launcherFlags.find((one) =>
      typed.startsWith("--") ? one.name === name || one.otherNames?.includes(name) : typed === `-${one.short}`
    );
    const list = flag === undefined ? training : launcher;
    list.push(text);
    const takesNext = flag !== undefined && flag.takes !== "switch" && !text.includes("=");
    if (takesNext && i + 1 < argv.length) list.push(argv[++i] ?? "");
  }
  return { launcher, training };
}

/**
 * Flags that npm took for its own: in `npm run train --steps=3` the `--` before the flags of the script is lacking, so the script
 * gets none of them. npm gives what it took as `npm_config_steps=3`, by which it is seen.
 *
 * @module
 */
import type { ConfigProblem } from "../errors.ts";
import { npmConfiguration } from "../runtime/env.ts";
import type { Flag } from "./flags.ts";

/** Names that npm has itself, so that they say nothing. */
const OF_NPM = new Set(["cache", "config", "help"]);

/**
 * The problem if npm took some of these flags; else undefined.
 *
 * @param configuration the flags that npm took, by its own spelling; the configuration of this process unless given
 */
export function npmProblem(
  flags: readonly Flag[],
  configuration: ReturnType<typeof npmConfiguration> = npmConfiguration(),
): ConfigProblem | undefined {
  if (configuration === undefined) return undefined;
  const byName = new Map(flags.flatMap((flag) => {
    return [flag.name, ...flag.otherNames ?? []].map((name) => [plain(name), { name, takes: flag.takes }] as const);
  }));
  const taken = Object.entries(configuration.values).flatMap(([typed, text]) => {
    const flag = byName.get(plain(typed));
    // Builders of native packages read `npm_config_runtime=electron`.
    const isForeign = flag?.name === "runtime" && !/^(bun|deno|auto|true)$/.test(text);
    return flag === undefined || OF_NPM.has(flag.name) || isForeign ? [] : [{ ...flag, text }];
  });
  const [first] = taken;
  if (first === undefined) return undefined;
  const meant = taken.map(({ name, takes, text }) =>
    takes === "switch" || text === ""
      ? `--${text === "" || text === "false" ? "no-" : ""}${name}`
      // npm reads '--resume auto' as a switch, and hands 'auto' on.
      : `--${name} ${text === "true" ? "<value>" : text}`
  );
  const got =
    `npm's own flag${taken.length === 1 ? "" : "s"} ${taken.map(({ name }) => `'--${name}'`).join(", ")}: npm ` +
    `keeps all flags before '--' for itself. Give 'npm run ${configuration.script} -- ${meant.join(" ")}'`;
  return { path: `--${first.name}`, expected: "flags of the run behind '--'", got };
}

/** A name without its marks, as npm turns `-` into `_`. */
function plain(name: string): string {
  return name.replace(/[-_]/g, "").toLowerCase();
}

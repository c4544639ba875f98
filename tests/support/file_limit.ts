/** Programs whose files may not grow beyond a limit. @module */
import process from "node:process";

/**
 * The environment of a program under `ulimit -f`. The files of Deno's caches are larger than such a limit, and a write to them before the
 * library is loaded ends Deno by SIGXFSZ: where the folder of caches cannot be made, Deno keeps them in memory.
 */
export function limitedEnvironment(): NodeJS.ProcessEnv {
  return { ...process.env, DENO_DIR: "/proc/none" };
}

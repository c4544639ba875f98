/**
 * Prints which rank this process is, or why that cannot be told: a child of `env_test.ts`, run with few permissions.
 *
 * @module
 */
import { processEnvironment } from "../../../src/runtime/env.ts";
import { readRankEnvironment } from "../../../src/runtime/rank_environment.ts";
import { ConfigError } from "../../../src/errors.ts";
import { terminal } from "../../../src/runtime/terminal.ts";

const { write } = terminal("stdout");
try {
  const rank = readRankEnvironment();
  write(`${rank?.rank} of ${rank?.worldSize}, VIRTUAL_ENV ${processEnvironment().text("VIRTUAL_ENV")}`);
} catch (error) {
  if (!(error instanceof ConfigError)) throw error;
  write(`${error.name} ${error.message}`);
}

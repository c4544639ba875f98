/**
 * Runs the project's own Bun or Deno, whether or not npm ran their install scripts:
 * `node scripts/runtime.mjs deno fmt --check`.
 *
 * @module
 */

import process from "node:process";
import { runProgram } from "../bin/run_program.mjs";
import { findRuntime, variablesWithRuntimes } from "../bin/runtimes.mjs";

const [name, ...args] = process.argv.slice(2);
const program = name === "bun" || name === "deno" ? findRuntime(name) : undefined;
if (program === undefined) {
  process.stderr.write(`Cannot find '${name}': expected bun or deno, which 'npm install' installs\n`);
  process.exitCode = 127;
} else {
  runProgram(program, args, variablesWithRuntimes());
}

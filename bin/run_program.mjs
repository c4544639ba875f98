/**
 * Runs a program in place of this process, as far as Node can: same streams, same signals, same exit code.
 *
 * @module
 */

import { spawn } from "node:child_process";
import { constants } from "node:os";
import process from "node:process";

/**
 * Runs a program to its end and takes over its exit code.
 *
 * @param {string} program path of the program
 * @param {readonly string[]} args its arguments
 * @param {Record<string, string | undefined>} env its variables
 */
export function runProgram(program, args, env) {
  const child = spawn(program, args, { stdio: "inherit", env });
  for (const signal of ["SIGINT", "SIGTERM", "SIGHUP"]) process.on(signal, () => child.kill(signal));
  child.once("error", (error) => {
    process.stderr.write(`Cannot start '${program}': ${error.message}\n`);
    process.exit(127);
  });
  child.once("exit", (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
}

/**
 * The module that plain Node imports in place of the library: it throws one sentence. A program that does not catch it ends with that
 * sentence alone, and exit code 1.
 *
 * @module
 */

import process from "node:process";

const error = new Error(
  "fullyshard runs on Bun or Deno, not on Node: start the script by 'npx fullyshard run script.ts', 'bun script.ts' or " +
    "'deno run -A script.ts' ('npm install bun' or 'npm install deno' gets one of them)",
);

const tell = (uncaught) => {
  process.removeListener("uncaughtException", tell);
  if (uncaught !== error) throw uncaught;
  process.stderr.write(`${error.message}\n`);
  process.exit(1);
};
process.on("uncaughtException", tell);
// A program that catches it goes on as before.
setTimeout(() => process.removeListener("uncaughtException", tell), 0).unref();

throw error;

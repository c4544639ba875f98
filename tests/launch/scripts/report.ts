/**
 * Prints what a rank was given: its variables and arguments, as one line of JSON.
 *
 * @module
 */

import process from "node:process";

const names = [
  "RANK",
  "LOCAL_RANK",
  "WORLD_SIZE",
  "LOCAL_WORLD_SIZE",
  "GROUP_RANK",
  "MASTER_ADDR",
  "MASTER_PORT",
  "FULLYSHARD_RUN_ID",
  "FULLYSHARD_TOKEN",
  "FULLYSHARD_RDZV_INSECURE",
  "OMP_NUM_THREADS",
];
const variables = Object.fromEntries(names.map((name) => [name, process.env[name]]));
const runtime = process.versions["bun"] === undefined ? "deno" : "bun";
process.stdout.write(`${JSON.stringify({ args: process.argv.slice(2), variables, runtime })}\n`);

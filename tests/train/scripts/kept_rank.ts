/**
 * A rank of `tiny.ts` that trains as often as it is asked to. Each line of its input is an {@link Order}; when its training has
 * ended, both outputs get a line with {@link END} and the exit code.
 *
 * @module
 */
import process from "node:process";
import { createInterface } from "node:readline";
import { trainTiny } from "./tiny_training.ts";
import { END, type Order } from "../kept_ranks.ts";

for await (const line of createInterface({ input: process.stdin })) {
  const { argv, variables }: Order = JSON.parse(line);
  Object.assign(process.env, variables);
  const code = await trainTiny(argv);
  for (const stream of [process.stdout, process.stderr]) stream.write(`${END}${code}\n`);
}

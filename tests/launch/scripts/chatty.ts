/**
 * Prints more than a small file holds, then says on standard error that it is done. It waits between the two: Deno may end a
 * process by a signal that comes just before its end, although it has a handler.
 *
 * @module
 */

import process from "node:process";

for (let i = 0; i < 120_000; i++) process.stdout.write(`${`line ${i} `.padEnd(100, ".")}\n`);
setTimeout(() => void process.stderr.write("done\n"), 500);

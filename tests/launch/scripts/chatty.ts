/**
 * Prints more than a small file holds, then says on standard error that it is done.
 *
 * @module
 */

import process from "node:process";

for (let i = 0; i < 120_000; i++) process.stdout.write(`${`line ${i} `.padEnd(100, ".")}\n`);
process.stderr.write("done\n");

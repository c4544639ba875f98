/**
 * A world of ranks in a process of its own, whose arguments are their number, those of a host, and the calls of a step. It prints the
 * figures, and ends without that each rank takes its leave: the store would tell each to all others, who do not listen any more.
 *
 * @module
 */
import { writeSync } from "node:fs";
import process from "node:process";
import { measureControl } from "./control.ts";

const [size, perHost, calls] = process.argv.slice(2).map(Number);
if (size === undefined || perHost === undefined || calls === undefined) throw new Error("expected three numbers");
writeSync(1, `${JSON.stringify(await measureControl(size, perHost, calls))}\n`);
process.exit(0);

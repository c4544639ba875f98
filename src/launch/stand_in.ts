/**
 * The process that the launcher starts in the place of a rank which ended while others run: those that wait for the rank to join
 * end at once, with its last words. Ends with its standard input, which the launcher holds.
 *
 * @module
 */
import process from "node:process";
import { neverJoins } from "../comm/registry.ts";
import { scriptArguments } from "../runtime/processes.ts";

const over = new AbortController();
process.stdin.once("end", () => over.abort()).resume();
const [reason = "it ended before it joined"] = scriptArguments();
await neverJoins(reason, over.signal);
process.stdin.destroy();

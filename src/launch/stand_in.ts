/**
 * The process that the launcher starts in the place of a rank which has ended while others are joining: these fail at once, with
 * the ended rank's last words. It ends with its standard input, which the launcher holds.
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

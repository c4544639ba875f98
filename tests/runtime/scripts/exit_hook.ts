/**
 * Sets an exit hook and ends in the way that its argument says: a child of `processes_test.ts`.
 *
 * @module
 */
import { writeSync } from "node:fs";
import process from "node:process";
import { onExit, scriptArguments } from "../../../src/runtime/processes.ts";

const how = scriptArguments()[0];
const remove = onExit(() => void writeSync(1, "cleaned"));
writeSync(1, "started ");
if (how === "removed") remove();
if (how === "throw") throw new Error("on purpose");
if (how === "SIGTERM") {
  const alive = setTimeout(() => {}, 20_000);
  process.kill(process.pid, "SIGTERM");
  alive.ref?.();
}

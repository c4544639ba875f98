/** A Worker that saves and loads checkpoints as a loopback rank. @module */
import { serveRank } from "../../src/comm/loopback_workers.ts";
import { runTasks, type Tasks } from "./bed.ts";

function isTasks(data: unknown): data is Tasks {
  return typeof data === "object" && data !== null && "tasks" in data;
}

serveRank(async ({ rank, data }) => {
  if (!isTasks(data)) throw new Error(`rank ${rank} was given '${data}'`);
  return await runTasks(data, rank);
});

/** A Worker that saves and loads checkpoints as a loopback rank. @module */
import { serveRanks } from "../support/rank_pool.ts";
import { runTasks, type Tasks } from "./bed.ts";

function isTasks(data: unknown): data is Tasks {
  return typeof data === "object" && data !== null && "tasks" in data;
}

serveRanks(async ({ rank, data }) => {
  if (!isTasks(data)) throw new Error(`rank ${rank} was given '${data}'`);
  return await runTasks(data, rank);
});

/** What ranks of `mpiWorld()` run in the short test. @module */
import { writeFileSync } from "node:fs";
import process from "node:process";
import { blockFor } from "../../src/runtime/clock.ts";
import { CONTROL_SCENARIOS } from "../conformance/control_plane_scenarios.ts";
import { DATA_SCENARIOS } from "../conformance/data_plane_scenarios.ts";
import { MESSAGE_SCENARIOS } from "../conformance/message_scenarios.ts";
import { WORK_SCENARIOS } from "../conformance/work_scenarios.ts";
import { type PlaneOptions, rankFunctions, type WorldRank } from "../support/world.ts";

/** Chunks so small that sums take many rounds. */
export const MPI_PLANES: PlaneOptions = { chunkBytes: 4096 };

const NAMES: readonly string[] = [
  "exchange() gives all ranks the bytes of each",
  "allReduce() gives the sum",
  "allReduce() gives the largest value",
  "reduceScatter() sums ragged slices",
  "reduceScatter() goes on beside other calls, and is waited for in any order",
  "split() makes groups that work apart",
  "transfer() passes messages round a ring, both ways at once",
  "transfer() waits for nothing, and what a rank computes meanwhile stays",
];

/** Runs some scenarios of the suite in one world. */
export async function fewCalls({ group, device }: WorldRank): Promise<string> {
  const all = { ...CONTROL_SCENARIOS, ...DATA_SCENARIOS, ...MESSAGE_SCENARIOS, ...WORK_SCENARIOS };
  for (const name of NAMES) {
    const scenario = all[name];
    if (scenario === undefined) throw new Error(`no scenario '${name}'`);
    await scenario({ group, device });
  }
  return `${group.kind} of ${group.size}`;
}

/** Rank 0 writes a file when the others have ended. */
export function endLate({ group }: WorldRank, file: string): string {
  // Listeners are called in the order in which they were added: MPI's end comes first.
  if (group.rank === 0) {
    process.once("exit", () => {
      blockFor(1500);
      writeFileSync(file, "written");
    });
  }
  return group.kind;
}

rankFunctions(import.meta.url, { fewCalls, endLate });

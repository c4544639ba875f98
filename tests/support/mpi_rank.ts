/** A rank of `mpiWorld()`, which a launcher of MPI starts. Its outcome goes to a file, as launchers mix what ranks print. @module */
import assert from "node:assert/strict";
import { writeFileSync } from "node:fs";
import process from "node:process";
import { openProcessGroup } from "../../src/comm/registry.ts";
import { readRankEnvironment } from "../../src/runtime/rank_environment.ts";
import { openCommDevice } from "./comm_device.ts";
import type { RankOrder } from "./world.ts";
import { runRank } from "./world_rank.ts";

const [folder = assert.fail(), text = assert.fail()] = process.argv.slice(2);
const order: RankOrder = JSON.parse(text);
const { rank, worldSize } = readRankEnvironment() ?? assert.fail("no launcher of MPI started this process");
const said: string[] = [];
const say = (line: string): void => void said.push(line);
const end = await runRank(order, {
  rank,
  size: worldSize,
  say,
  joined: () => Promise.resolve(),
  openDevice: (memoryBytes) => openCommDevice(memoryBytes),
  open: (device) => openProcessGroup({ ...order.planes, device, backend: "mpi", report: say }),
});
writeFileSync(`${folder}/${rank}.json`, JSON.stringify({ ...end, said }));

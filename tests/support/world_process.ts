/** A process that is a rank of `world()`. @module */
import process from "node:process";
import { openShm, type ShmOptions } from "../../src/comm/data/shm.ts";
import type { RankOrder } from "./world.ts";
import { runRank } from "./world_rank.ts";

const { planes, ...order }: Omit<RankOrder, "planes"> & { planes: ShmOptions } = JSON.parse(process.argv[2] ?? "{}");
const write = (text: string): void => void process.stdout.write(`${text}\n`);
const say = (text: string): void => write(`say ${text}`);
const end = await runRank({ ...order, planes }, {
  rank: planes.rank,
  size: planes.worldSize,
  say,
  joined: () => {
    write("joined");
    // Lets the line out before this thread blocks.
    return new Promise((resolve) => setTimeout(resolve, 20));
  },
  open: (device, index) => openShm(device, { ...planes, run: `${planes.run}/${index}`, report: say }),
});
write(`end ${JSON.stringify(end)}`);

/** A process that is a rank of `world()`. @module */
import process from "node:process";
import type { HostsPlace } from "../../src/comm/hosts/join.ts";
import type { ShmOptions } from "../../src/comm/data/shm.ts";
import { type Backend, openProcessGroup } from "../../src/comm/registry.ts";
import { openTwin, twinReports } from "../native/cuda/build.ts";
import { openCommDevice, openCudaCommDevice } from "./comm_device.ts";
import type { RankOrder } from "./world.ts";
import { runRank } from "./world_rank.ts";

/** The message of `startWorld()` to a process. */
interface ProcessOrder extends Omit<RankOrder, "planes"> {
  readonly over: Backend;
  readonly planes: ShmOptions & { readonly ranksPerHost?: number };
  /** The first of ports that ranks of several hosts may use. */
  readonly port: number;
}

const { over, planes: { ranksPerHost: localWorldSize, ...planes }, port, ...order }: ProcessOrder = JSON.parse(
  process.argv[2] ?? "{}",
);
/** The meeting point of the ranks for the world of that number, if they are to be of several hosts. */
const hostsOf = (index: number): HostsPlace | undefined =>
  localWorldSize === undefined
    ? undefined
    : { localWorldSize, address: "127.0.0.1", port: port + index, token: `${planes.run}/${index}` };
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
  openDevice: async (memoryBytes = 2 ** 29) =>
    over === "nccl" ? await openCudaCommDevice(planes.rank, memoryBytes) : await openCommDevice(order.memoryBytes),
  open: (device, index) =>
    openProcessGroup({
      ...planes,
      device,
      backend: over,
      run: `${planes.run}/${index}`,
      hosts: hostsOf(index),
      report: say,
    }),
});
const seen = over === "nccl" ? twinReports(await openTwin()) : "";
write(`end ${JSON.stringify(seen === "" ? end : { error: `the race detector saw: ${seen}${end.error ?? ""}` })}`);

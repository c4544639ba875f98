/** A Worker that is a rank of `world()`. @module */
import type { LoopbackWorld } from "../../src/comm/control/workers.ts";
import { openLoopback } from "../../src/comm/data/loopback.ts";
import { openCommDevice } from "./comm_device.ts";
import { serveRanks } from "./rank_pool.ts";
import type { RankOrder } from "./world.ts";
import { runRank } from "./world_rank.ts";

/** What all Workers are given. */
interface Orders {
  readonly orders: readonly RankOrder[];
  readonly worlds: readonly LoopbackWorld[];
}

function isOrders(data: unknown): data is Orders {
  return typeof data === "object" && data !== null && "orders" in data;
}

serveRanks(async ({ rank, size, data }) => {
  const order = isOrders(data) ? data.orders[rank] : undefined;
  if (!isOrders(data) || order === undefined) throw new Error(`rank ${rank} has no orders`);
  const said: string[] = [];
  const say = (text: string): void => void said.push(text);
  const end = await runRank(order, {
    rank,
    size,
    say,
    joined: () => Promise.resolve(),
    openDevice: openCommDevice,
    open: (device, index) => {
      const world = data.worlds[index];
      if (world === undefined) throw new Error(`there are ${data.worlds.length} worlds: see WorldOptions.groups`);
      return openLoopback(world, rank, device, { ...order.planes, report: say });
    },
  });
  return JSON.stringify({ ...end, said });
});

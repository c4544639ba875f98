/** A Worker that is a rank of `world()`. @module */
import type { LoopbackWorld } from "../../src/comm/control/workers.ts";
import { type Backend, openProcessGroup } from "../../src/comm/registry.ts";
import { openCommDevice } from "./comm_device.ts";
import { serveRanks } from "./rank_pool.ts";
import type { RankOrder } from "./world.ts";
import { runRank } from "./world_rank.ts";

/** The data that all Workers receive. */
interface Orders {
  readonly over: Backend;
  readonly orders: readonly RankOrder[];
  readonly worlds: readonly LoopbackWorld[];
}

function isOrders(data: unknown): data is Orders {
  return typeof data === "object" && data !== null && "orders" in data;
}

serveRanks(async ({ rank, size, data }) => {
  const order = isOrders(data) ? data.orders[rank] : undefined;
  if (!isOrders(data) || order === undefined) throw new Error(`rank ${rank} has no orders`);
  const { over, worlds } = data;
  const said: string[] = [];
  const say = (text: string): void => void said.push(text);
  const end = await runRank(order, {
    rank,
    size,
    say,
    joined: () => Promise.resolve(),
    openDevice: openCommDevice,
    open: (device, index) => {
      const world = worlds[index];
      if (world === undefined) throw new Error(`there are ${worlds.length} worlds: see WorldOptions.groups`);
      return openProcessGroup({ ...order.planes, device, world, rank, backend: over, report: say });
    },
  });
  return JSON.stringify({ ...end, said });
});

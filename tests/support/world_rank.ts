/**
 * A rank's side of `world()`, for Workers and processes alike.
 *
 * @module
 */
import type { ProcessGroup } from "../../src/comm/process_group.ts";
import type { CommDevice } from "./comm_device.ts";
import type { ModulePlace, RankEnd, RankFunction, RankOrder } from "./world.ts";

/** The process or Worker of a rank. */
export interface RankPlace {
  readonly rank: number;
  readonly size: number;
  openDevice(memoryBytes: number | undefined): Promise<CommDevice>;
  /** Opens this rank's end of the world of that number. */
  open(device: CommDevice, index: number): ProcessGroup | Promise<ProcessGroup>;
  say(text: string): void;
  /** Called when the first group is there. */
  joined(): Promise<void>;
}

/** Calls the function that the message to the rank names. */
export async function runRank(order: RankOrder, place: RankPlace): Promise<Omit<RankEnd<unknown>, "said">> {
  const { rank, size, say } = place;
  let [device, group]: [CommDevice?, ProcessGroup?] = [];
  try {
    const run = await load<RankFunction<unknown, unknown>>(order.run);
    if (order.prepare !== undefined) (await load<(self: { rank: number }) => void>(order.prepare))({ rank });
    const own = device = await place.openDevice(order.memoryBytes);
    const opened = group = await place.open(own, 0);
    await place.joined();
    let groups = 0;
    const open = async (): Promise<ProcessGroup> => await place.open(own, ++groups);
    return { value: await run({ rank, size, device: own, group: opened, open, say }, order.data) ?? null };
  } catch (error) {
    group?.abort(String(error));
    return { error: String(error) };
  } finally {
    group?.dispose();
    device?.dispose();
  }
}

async function load<T>({ url, name }: ModulePlace): Promise<T> {
  const module: Readonly<Record<string, T>> = await import(url);
  const found = module[name];
  if (found === undefined) throw new Error(`${url} exports no '${name}'`);
  return found;
}

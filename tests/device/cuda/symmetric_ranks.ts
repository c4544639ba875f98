/** The code of ranks with a card each in tests of registered memory. @module */
import assert from "node:assert/strict";
import { openDry, standInOf } from "../../../src/comm/data/dry.ts";
import type { ProcessGroup } from "../../../src/comm/process_group.ts";
import { CudaDevice } from "../../../src/device/cuda/device.ts";
import type { Device } from "../../../src/device/device.ts";
import { DryDevice } from "../../../src/device/dry/device.ts";
import { fullyShard } from "../../../src/fsdp/fully_shard.ts";
import type { CausalLm } from "../../../src/models/causal_lm.ts";
import { cpuOffloadPolicy } from "../../../src/parallel/offload.ts";
import { openNcclTwin, openTwin, twinLog } from "../../native/cuda/build.ts";
import { rankFunctions, type WorldRank } from "../../support/world.ts";
import { train } from "./llama.ts";

/** The results of two steps. */
export interface Gathering {
  /** The gathers of the second step. */
  readonly gathers: readonly string[];
  /** Windows and what is gathered into, in bytes by owner: as they were, and as a dry run has them. */
  readonly owners: readonly string[];
  readonly dryOwners: readonly string[];
  /** The objects that the double of NCCL still has while the group is open, and after it is disposed. */
  readonly left: readonly [number, number];
  /** Bytes of parameters that are counted when the group is gone. */
  readonly counted: readonly string[];
}

function trainIn(device: Device, group: ProcessGroup, offloads: boolean, mark: () => void = () => {}): void {
  const offloadPolicy = offloads ? cpuOffloadPolicy() : undefined;
  const parallelize = (model: CausalLm): void => {
    for (const layer of model.layers) fullyShard(layer, { mesh: group, offloadPolicy });
    fullyShard(model, { mesh: group, offloadPolicy });
  };
  train(device, { steps: 2, batch: 4, group, parallelize, mark: (place) => place === "step" ? mark() : undefined });
}

/** The memory that is registered where NCCL registers. */
function ownersOf({ allocator }: Device): readonly string[] {
  return allocator.owners(1000).filter(({ owner }) => /window|gathered|shard on the device|on its way/.test(owner))
    .map(({ owner, bytes }) => `${owner}: ${bytes}`).sort();
}

/** Trains for two steps with FSDP, here and dry. */
export async function gatherRegistered({ group, device }: WorldRank, offloads: boolean): Promise<Gathering> {
  assert.ok(device instanceof CudaDevice);
  const twin = await openTwin();
  trainIn(device, group, offloads, () => twinLog(twin));
  const gathers = twinLog(twin).map(({ name }) => name).filter((name) => name.startsWith("all-gather"));
  const owners = ownersOf(device);
  const dry = new DryDevice(device);
  trainIn(dry, openDry(dry, { rank: group.rank, worldSize: group.size, ...standInOf(group) }), offloads);
  const { symbols: { twinNcclMemory } } = await openNcclTwin();
  const before = twinNcclMemory();
  group.dispose();
  return {
    gathers,
    owners,
    dryOwners: ownersOf(dry),
    left: [before, twinNcclMemory()],
    counted: ownersOf(device),
  };
}

/** Two units of which the ranks free another one, so that the next gather would be between different places. */
export function gatherElsewhere({ group, device }: WorldRank): void {
  const window = group.openWindow(new Array<number>(group.size).fill(256), "unit");
  const units = [1, 2].map(() => group.gatherMemory() ?? assert.fail("nothing is registered"));
  const places = units.map((unit, i) => device.streams.on("gather", () => unit.allocate(512, `unit ${i}`)));
  const freed = group.rank % 2;
  units[freed]?.free(places[freed] ?? assert.fail());
  device.streams.on("gather", () => {
    const place = units[0]?.allocate(512, "unit 0") ?? assert.fail();
    window.gather(place, [0, 256], "unit", "forward").wait();
  });
  device.synchronize();
}

/** Opens windows and gives them up, in another order on each rank; tells how many the double of NCCL has after each. */
export async function reopenWindows({ group, device }: WorldRank): Promise<readonly number[]> {
  const { symbols: { twinNcclMemory } } = await openNcclTwin();
  const counts: number[] = [];
  for (let round = 0; round < 4; round++) {
    const windows = ["a", "b"].map((unit) => group.openWindow([4096, 4096], unit));
    for (const window of group.rank === 0 ? windows : windows.toReversed()) window.dispose();
    device.synchronize();
    group.barrier("windows are done with");
    counts.push(twinNcclMemory());
  }
  return counts;
}

/** Trains, and then rank 1 stops all; tells what the double of NCCL has before and after a rank leaves. */
export async function leaveByForce({ group, device }: WorldRank): Promise<readonly [number, number, string]> {
  const { symbols: { twinNcclMemory } } = await openNcclTwin();
  trainIn(device, group, false);
  const before = twinNcclMemory();
  let error = "";
  try {
    group.barrier("both have trained");
    if (group.rank === 1) group.abort("on purpose");
    group.barrier("the end");
  } catch (thrown) {
    error = String(thrown);
  }
  group.dispose();
  return [before, twinNcclMemory(), error];
}

rankFunctions(import.meta.url, { gatherRegistered, gatherElsewhere, reopenWindows, leaveByForce });

/** What ranks with a card each do in tests. @module */
import assert from "node:assert/strict";
import { type DeviceMesh, deviceMesh } from "../../../src/comm/mesh.ts";
import type { ProcessGroup } from "../../../src/comm/process_group.ts";
import { replicate } from "../../../src/ddp/replicate.ts";
import { CudaDevice } from "../../../src/device/cuda/device.ts";
import { fullyShard } from "../../../src/fsdp/fully_shard.ts";
import type { CausalLm } from "../../../src/models/causal_lm.ts";
import { cpuOffloadPolicy, type OffloadPolicy } from "../../../src/parallel/offload.ts";
import { openTwin, twinLog, type TwinOperation } from "../../native/cuda/build.ts";
import { rankFunctions, type WorldRank } from "../../support/world.ts";
import { type Steps, train } from "./llama.ts";

/** A training of several ranks. */
export interface SharedTraining {
  /** `hsdp` shards over two neighbouring ranks each; `offload` and `unpinned` shard, into memory of the host. */
  readonly strategy: "fsdp" | "hsdp" | "ddp" | "offload" | "unpinned";
  readonly steps: number;
  readonly batch: number;
}

/** Makes each block a unit, and the rest another. */
function shard(model: CausalLm, mesh: ProcessGroup | DeviceMesh, offloadPolicy?: OffloadPolicy): void {
  for (const layer of model.layers) fullyShard(layer, { mesh, offloadPolicy });
  fullyShard(model, { mesh, offloadPolicy });
}

/** Trains the small Llama. */
export function trainShared({ group, device }: WorldRank, { strategy, ...run }: SharedTraining): Steps {
  const parallelize = (model: CausalLm): void => {
    if (strategy === "ddp") replicate(model, { mesh: group });
    else if (strategy === "offload") shard(model, group, cpuOffloadPolicy());
    else if (strategy === "unpinned") shard(model, group, cpuOffloadPolicy({ pinMemory: false }));
    else shard(model, strategy === "fsdp" ? group : deviceMesh(group, { replicate: group.size / 2, shard: 2 }));
  };
  return train(device, { ...run, group, parallelize });
}

/** What a step enqueues until its update, and how often the host waits for the card meanwhile. */
export interface StepEvents {
  readonly operations: readonly TwinOperation[];
  readonly hostWaits: number;
}

/** Takes two steps with FSDP and tells of the second: all before its update, or with offload, whose norm is the host's, its passes. */
export async function eventsOfStep({ group, device }: WorldRank, offloads: boolean): Promise<StepEvents> {
  assert.ok(device instanceof CudaDevice);
  const twin = await openTwin();
  let [hostWaits, events]: [number, StepEvents?] = [0];
  using _wait = device.waitBy((ready) => {
    hostWaits++;
    while (!ready());
  });
  const mark = (place: "step" | "backward" | "update"): void => {
    if (place === (offloads ? "update" : "backward")) return;
    const operations = twinLog(twin);
    if (place !== "step") events = { operations, hostWaits };
    hostWaits = 0;
  };
  const offloadPolicy = offloads ? cpuOffloadPolicy() : undefined;
  train(device, { steps: 2, batch: 4, group, parallelize: (model) => shard(model, group, offloadPolicy), mark });
  return events ?? assert.fail("no step was taken");
}

rankFunctions(import.meta.url, { trainShared, eventsOfStep });

/** The code of ranks with a card each. @module */
import assert from "node:assert/strict";
import { noGrad } from "../../../src/autograd/mode.ts";
import { loadCheckpoint } from "../../../src/checkpoint/sharded/load.ts";
import { saveCheckpoint } from "../../../src/checkpoint/sharded/save.ts";
import { type DeviceMesh, deviceMesh } from "../../../src/comm/mesh.ts";
import type { ProcessGroup } from "../../../src/comm/process_group.ts";
import { replicate } from "../../../src/ddp/replicate.ts";
import { CudaDevice } from "../../../src/device/cuda/device.ts";
import { int32 } from "../../../src/dtype.ts";
import { fullyShard } from "../../../src/fsdp/fully_shard.ts";
import type { FullyShardedModule } from "../../../src/fsdp/handle.ts";
import type { CausalLm } from "../../../src/models/causal_lm.ts";
import { cpuOffloadPolicy, type OffloadPolicy } from "../../../src/parallel/offload.ts";
import { tensor } from "../../../src/tensor/create.ts";
import { scope } from "../../../src/tensor/scope.ts";
import { openTwin, twinLog, type TwinOperation } from "../../native/cuda/build.ts";
import { rankFunctions, type WorldRank } from "../../support/world.ts";
import { openTraining, type Steps, train } from "./llama.ts";

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

/** Shards or replicates the model. */
function parallelizeBy(strategy: SharedTraining["strategy"], group: ProcessGroup): (model: CausalLm) => void {
  return (model) => {
    if (strategy === "ddp") replicate(model, { mesh: group });
    else if (strategy === "offload") shard(model, group, cpuOffloadPolicy());
    else if (strategy === "unpinned") shard(model, group, cpuOffloadPolicy({ pinMemory: false }));
    else shard(model, strategy === "fsdp" ? group : deviceMesh(group, { replicate: group.size / 2, shard: 2 }));
  };
}

/** Trains the small Llama. */
export function trainShared({ group, device }: WorldRank, { strategy, ...run }: SharedTraining): Steps {
  return train(device, { ...run, group, parallelize: parallelizeBy(strategy, group) });
}

/** A training that is saved in the middle, or goes on from there. */
export interface InterruptedTraining extends SharedTraining {
  /** Folder of the checkpoint. */
  readonly directory: string;
  /** The step after which it is saved; where there is a checkpoint, training goes on from it. */
  readonly savedAfter: number;
}

/** Trains the small Llama from its beginning, or from a checkpoint on; gives the steps that were taken. */
export async function trainInterrupted(
  { group, device }: WorldRank,
  { strategy, directory, savedAfter, ...run }: InterruptedTraining,
): Promise<Steps> {
  using training = openTraining(device, { ...run, group, parallelize: parallelizeBy(strategy, group) });
  const { model, optimizer } = training;
  const loaded = await loadCheckpoint({ directory, from: "auto", model, optimizer, group });
  const steps: Steps[number][] = [];
  for (let step = loaded?.step ?? 0; step < run.steps; step++) {
    steps.push(training.take(step));
    if (loaded === undefined && step + 1 === savedAfter) {
      await saveCheckpoint({ directory, step: savedAfter, model, optimizer, group, state: {} });
    }
  }
  return steps;
}

/**
 * Trains the small Llama with FSDP, and calls what a user may call of sharded modules between steps, in orders that nobody needs:
 * none of it changes a number.
 */
export function trainOddly(
  { group, device }: WorldRank,
  { steps, batch }: Pick<SharedTraining, "steps" | "batch">,
): Steps {
  const units: FullyShardedModule[] = [];
  const parallelize = (model: CausalLm): void => {
    for (const module of [...model.layers, model]) units.push(fullyShard(module, { mesh: group }));
  };
  using training = openTraining(device, { steps, batch, group, parallelize });
  const [first, last, root] = units;
  assert.ok(first !== undefined && last !== undefined && root !== undefined);
  const look = (): void => {
    using _frame = scope();
    noGrad(() => training.model.call({ inputIds: tensor(device, [1, 2, 3], { shape: [1, 3], dtype: int32 }) }));
  };
  const odd: readonly (() => void)[] = [
    () => {
      root.unshard({ asyncOp: true }); // before anything ran, and not waited for
      root.reshard();
      const gather = last.unshard({ asyncOp: true });
      last.unshard();
      gather.wait();
      gather.wait();
      last.reshard();
      last.reshard();
      gather.wait();
    },
    () => {
      root.setModulesToForwardPrefetch([last, first, root]);
      first.setModulesToBackwardPrefetch([root, last]);
      root.setMaxReduceScatterInputs(3);
    },
    () => {
      look();
      root.setReshardAfterForward(false);
    },
    () => {
      for (const unit of units) unit.unshard({ asyncOp: true }); // left to the step
      root.setReshardAfterBackward(false);
    },
    () => {
      look();
      root.setReshardAfterForward(true);
      first.unshard();
      look();
    },
    () => {
      root.setReshardAfterForward(group.size / 2);
      look();
      root.setMaxReduceScatterInputs(1);
    },
    () => {
      root.setReshardAfterBackward(true);
      last.setModulesToForwardPrefetch([first]);
      training.optimizer.zeroGrad();
      training.optimizer.zeroGrad();
    },
  ];
  const taken = Array.from({ length: steps }, (_, step) => {
    odd[step]?.();
    return training.take(step);
  });
  root.dispose();
  root.dispose();
  return taken;
}

/** The work that a step enqueues until its update, and the number of times that the host waits for the card meanwhile. */
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

rankFunctions(import.meta.url, { trainShared, trainInterrupted, trainOddly, eventsOfStep });

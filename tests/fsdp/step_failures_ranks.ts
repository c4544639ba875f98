/** The ranks' code of `step_failures_test.ts`: steps that fail, each at the next place, with a successful step after each. @module */
import {
  applyActivationCheckpointing,
  bfloat16,
  cpuOffloadPolicy,
  fullyShard,
  type FullyShardedModule,
  type FullyShardOptions,
  type GatherExtension,
  scope,
  type Tensor,
} from "../../mod.ts";
import { deviceMesh } from "../../doors/comm.ts";
import { initializeParameters, type Parameter } from "../../doors/nn.ts";
import type { Allocator } from "../../src/device/allocator.ts";
import { failAllocation } from "../support/failing_memory.ts";
import { messageOf } from "../support/message.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { input, Stack } from "./modules.ts";

const WIDTH = 20;

/** The options with which the model is sharded. */
export const SHARDINGS = [
  "plain",
  "bfloat16",
  "kept",
  "neighbours",
  "placed",
  "extension",
  "offloaded",
  "hybrid",
  "prefetch",
  "checkpointed",
  "custom",
] as const;
/** One of {@link SHARDINGS}. */
export type Sharding = typeof SHARDINGS[number];

/** The place where a step fails. */
export type Place =
  | "memory"
  | "pre-hook"
  | "hook"
  | "result"
  | "input"
  | "backward"
  | "gradient hook"
  | "extension"
  | "collective";

/** The results of a rank. */
export interface StepFailures {
  /** Steps that failed. */
  readonly failures: number;
  readonly faults: readonly string[];
}

/** Throws at its turn. */
class Trap {
  #left = Infinity;

  set(turns: number): void {
    this.#left = turns;
  }

  spring(): void {
    if (this.#left-- === 0) throw new Error("injected");
  }
}

/** Gathers the values as they are. */
function extensionOf(trap: Trap): GatherExtension<number> {
  return {
    preAllGather(shard, { chunkShape }) {
      trap.spring();
      const [rows = 0] = shard.shape;
      const padded = shard.spawn(chunkShape, shard.dtype, "padded");
      padded.device.kernels.fill({ dtype: padded.dtype, n: padded.numel, value: 0, dst: padded.ptr });
      padded.device.copy(padded.ptr, shard.ptr, shard.numel * 4);
      return { inputs: [padded], metadata: rows };
    },
    postAllGather([all], _rows, out) {
      trap.spring();
      if (all !== undefined) out.device.copy(out.ptr, all.ptr, out.numel * 4);
    },
  };
}

function optionsOf({ group }: WorldRank, sharding: Sharding, trap: Trap): FullyShardOptions {
  const mesh = group;
  switch (sharding) {
    case "bfloat16":
      return { mesh, precision: { paramDtype: bfloat16, reduceDtype: bfloat16 } };
    case "kept":
      return { mesh, reshardAfterForward: false };
    case "neighbours":
      return { mesh, reshardAfterForward: 2 };
    case "placed":
      return { mesh, shardPlacement: ({ shape }: Parameter) => shape.length === 2 ? 1 : undefined };
    case "extension":
      return { mesh, gatherExtension: ({ shape }: Parameter) => shape.length === 2 ? extensionOf(trap) : undefined };
    case "offloaded":
      return { mesh, offloadPolicy: cpuOffloadPolicy(), precision: { paramDtype: bfloat16 } };
    case "hybrid":
      return { mesh: deviceMesh(group, { replicate: 2, shard: group.size / 2 }) };
    case "prefetch":
      return { mesh, backwardPrefetch: true };
    default:
      return { mesh };
  }
}

interface Sharded {
  readonly model: Stack;
  readonly handle: FullyShardedModule;
}

function shard(rank: WorldRank, sharding: Sharding, trap: Trap): Sharded {
  const { device } = rank;
  const model = new Stack(device, WIDTH, 2);
  model.nameTree();
  const options = optionsOf(rank, sharding, trap);
  const layers = model.layers.map((layer) => fullyShard(layer, options));
  const handle = fullyShard(model, options);
  initializeParameters(model, 5);
  if (sharding === "prefetch") {
    for (const [i, layer] of layers.entries()) layer.setModulesToForwardPrefetch(layers.slice(i + 1, i + 3));
  }
  if (sharding === "checkpointed") applyActivationCheckpointing(model.layers);
  if (sharding === "custom") {
    for (const layer of layers) {
      layer.setCustomAllGather(({ group, dst, src, byteLength, unit, phase }) => {
        trap.spring();
        return group.allGather(dst, src, byteLength, unit, phase);
      });
      layer.setCustomReduceScatter(({ group, unit, phase, ...args }) => {
        trap.spring();
        return group.reduceScatter(args, unit, phase);
      });
      layer.setAllReduceHook(() => trap.spring());
    }
  }
  return { model, handle };
}

/** Arms a failure in the step to come, at its `turn`; gives what ends that. */
function arm(place: Place, turn: number, { device }: WorldRank, { model }: Sharded, trap: Trap): () => void {
  const modules = [...model.namedModules()].map(([, module]) => module);
  trap.set(turn);
  switch (place) {
    case "memory": {
      const offload = device.offload.stats === undefined ? [] : [device.offload.device.allocator];
      const failing = failAllocation([device.allocator, ...offload], turn);
      return () => failing[Symbol.dispose]();
    }
    case "pre-hook": {
      const ends = modules.map((module) => module.registerForwardPreHook(() => trap.spring()));
      return () => ends.forEach((end) => end());
    }
    case "hook": {
      const ends = modules.map((module) => module.registerForwardHook(() => trap.spring()));
      return () => ends.forEach((end) => end());
    }
    case "result": {
      const wrapped = modules.map((module) => {
        const { forward } = module;
        const value = (...args: Parameters<typeof forward>): unknown => {
          const result: unknown = Reflect.apply(forward, module, args);
          const error = messageOf(() => trap.spring());
          return error === "" ? result : new Map([["injected", result]]);
        };
        Object.defineProperty(module, "forward", { configurable: true, value });
        return module;
      });
      return () => wrapped.forEach((module) => Reflect.deleteProperty(module, "forward"));
    }
    case "gradient hook": {
      const ends = [...model.parameters()].map((parameter) =>
        parameter.registerPostAccumulateGradHook(() => trap.spring())
      );
      return () => ends.forEach((end) => end());
    }
    case "backward": {
      const { kernels } = device;
      const { gemm } = kernels;
      const value = (...args: Parameters<typeof gemm>): void => {
        trap.spring();
        gemm.apply(kernels, args);
      };
      Object.defineProperty(kernels, "gemm", { configurable: true, writable: true, value });
      return () => Object.defineProperty(kernels, "gemm", { configurable: true, writable: true, value: gemm });
    }
    default:
      return () => {};
  }
}

/** Micro-batches, of which the last reduces. */
function step(
  { device, rank }: WorldRank,
  { model, handle }: Sharded,
  names: readonly string[],
  disposes = false,
): void {
  for (const name of names) {
    using _frame = scope();
    handle.setRequiresGradientSync(name === "b");
    const x: Tensor = input(device, `${name} of rank ${rank}`, 3, WIDTH);
    if (disposes && name === "b") x.dispose();
    model.call(x).sum().backward();
  }
}

/** Fails at each turn of a kind of place, until a step has none left. */
export function failSteps(rank: WorldRank, [sharding, place]: readonly [Sharding, Place]): StepFailures {
  const { device } = rank;
  const trap = new Trap();
  const sharded = shard(rank, sharding, trap);
  const { model, handle } = sharded;
  const parameters = [...model.parameters()];
  const allocators = (): readonly Allocator[] => [
    device.allocator,
    ...device.offload.stats === undefined ? [] : [device.offload.device.allocator],
  ];
  const gradients = (): string => JSON.stringify(parameters.map(({ fqn, grad }) => [fqn, ...grad?.toArray() ?? []]));
  const gathered = (): string => {
    const owners = allocators().flatMap((allocator) => allocator.owners(1000)).map(({ owner }) => owner);
    const left = owners.filter((owner) => / (gathered|post-forward shard|shard on the device|on its way)/.test(owner));
    return [...left, ...handle.units().filter(({ unsharded }) => unsharded).map(({ name }) => name)].join();
  };
  const inUse = (): string => allocators().map(({ stats }) => stats.inUse).join();
  step(rank, sharded, ["a", "b"]);
  const expected = gradients();
  handle.resetIterState();
  const faults: string[] = [];
  const idle = inUse();
  let failures = 0;
  for (; failures < 400; failures++) {
    const end = arm(place, failures, rank, sharded, trap);
    const error = messageOf(() => step(rank, sharded, ["a", "b"], place === "input"));
    end();
    trap.set(Infinity);
    if (error === "") break;
    const where = `${failures}, ${error}`;
    if (place !== "input" && !error.includes("injected") && !error.includes("forward() gave a Map")) faults.push(where);
    // Between a root's forward and its backward its parameters are kept, and the loss is computed.
    const isBetween = / at (sum|backward seed)/.test(error);
    if (!isBetween && gathered() !== "") faults.push(`${where}: gathered are ${gathered()}`);
    // A forward that fails leaves the gradients of earlier micro-batches: it may be run again. Every other time all is given up.
    const [isKept, isGivenUp] = [parameters.some(({ storage }) => storage.hasUnreduced()), failures % 2 === 1];
    if (isGivenUp) handle.resetIterState();
    if (isGivenUp || !(isKept || isBetween)) {
      if (inUse() !== idle) faults.push(`${where}: ${inUse()} bytes and not ${idle}`);
    }
    step(rank, sharded, isKept && !isGivenUp ? ["b"] : ["a", "b"]);
    if (gradients() !== expected) faults.push(`${where}: other gradients`);
    handle.resetIterState();
    if (inUse() !== idle) faults.push(`${where}, and a step: ${inUse()} bytes and not ${idle}`);
    if (place === "input") return { failures: failures + 1, faults };
  }
  return { failures, faults };
}

rankFunctions(import.meta.url, { failSteps });

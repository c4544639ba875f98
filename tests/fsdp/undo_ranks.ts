/** The ranks' code of `undo_test.ts`: calls that fail at each allocation in turn, and are then repeated without a failure. @module */
import {
  bfloat16,
  cpuOffloadPolicy,
  fullyShard,
  type FullyShardOptions,
  replicate,
  scope,
  shardModel,
} from "../../mod.ts";
import { initializeParameters, type Module, type Parameter } from "../../doors/nn.ts";
import { failAllocation } from "../support/failing_memory.ts";
import { messageOf } from "../support/message.ts";
import { ownedValues } from "../support/owned.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";
import { input, Stack } from "./modules.ts";

const WIDTH = 20;

/** The parallelism that fails at first, and that then succeeds. */
export interface Attempt {
  readonly how: "fullyShard" | "merge" | "shardModel" | "replicate";
  /** The rank whose memory runs out; all if undefined. */
  readonly victim?: number | undefined;
  /** True if the model has values. */
  readonly hasValues: boolean;
  readonly policy: "float32" | "bfloat16" | "frozen" | "placed" | "offloaded";
}

/** A function of the user that throws. */
export type UserFunction = "shardPlacement" | "gatherExtension" | "isUnit";

/** The results of a rank. */
export interface UndoReport {
  /** Number of allocations that were made to fail. */
  readonly failures: number;
  /** Differences between the state before a failed call and after it. */
  readonly faults: readonly string[];
  /** True if the model finally trains to the same bits as a model whose calls never failed. */
  readonly same: boolean;
}

class TiedStack extends Stack {}

function optionsOf({ policy }: Attempt): Omit<FullyShardOptions, "mesh"> {
  switch (policy) {
    case "bfloat16":
      return { precision: { paramDtype: bfloat16 } };
    case "placed":
      return { shardPlacement: ({ shape }: Parameter) => shape.length === 2 ? 0 : undefined };
    case "offloaded":
      return { offloadPolicy: cpuOffloadPolicy(), precision: { paramDtype: bfloat16 } };
    default:
      return {};
  }
}

function build({ device, group }: WorldRank, attempt: Attempt): Stack {
  const model = new TiedStack(device, WIDTH, 2);
  model.nameTree();
  if (attempt.policy === "frozen") {
    for (const layer of model.layers) if (layer.linear.bias !== undefined) layer.linear.bias.requiresGrad = false;
  }
  if (attempt.how === "merge") {
    // The head's weight is the first layer's, which is a unit of its own.
    Object.assign(model.head, { weight: model.layers[0]?.linear.weight });
    const [first] = model.layers;
    if (first !== undefined) fullyShard(first, { mesh: group, ...optionsOf(attempt) });
  }
  if (attempt.hasValues) initializeParameters(model, 5);
  return model;
}

function parallelize({ group }: WorldRank, model: Module, attempt: Attempt): void {
  const options = { mesh: group, ...optionsOf(attempt) };
  if (attempt.how === "replicate") replicate(model, options);
  else if (attempt.how === "shardModel") {
    shardModel(model, { ...options, fsdpPlan: { mode: "manual", modules: { "layers.*": [] } } });
  } else fullyShard(model, options);
}

/** A step's gradients and the values after it, as text. */
function train({ device, rank }: WorldRank, model: Stack, { hasValues }: Attempt): string {
  if (!hasValues) initializeParameters(model, 5);
  using _frame = scope();
  model.call(input(device, `x of rank ${rank}`, 3, WIDTH)).sum().backward();
  return JSON.stringify(
    [...model.parameters()].map((
      parameter,
    ) => [parameter.fqn, ...ownedValues(parameter), ...parameter.grad?.toArray() ?? []]),
  );
}

/** Fails at each allocation in turn. */
export function undo(rank: WorldRank, attempt: Attempt): UndoReport {
  const { device } = rank;
  const kindsOf = (model: Stack): string =>
    [...model.parameters()].map(({ fqn, storage }) => `${fqn} ${storage.kind} ${storage.hasValues()}`).join();
  const bytes = (): string =>
    JSON.stringify([device.allocator.stats.inUse, device.offload.stats?.inUse].map((inUse) => inUse ?? 0));
  const model = build(rank, attempt);
  const allocators = [device, ...attempt.policy === "offloaded" ? [device.offload.device] : []].map(({ allocator }) =>
    allocator
  );
  const faults: string[] = [];
  let failures = 0;
  for (;;) {
    const [before, inUse] = [kindsOf(model), bytes()];
    const isVictim = attempt.victim === undefined || attempt.victim === rank.rank;
    using failing = failAllocation(allocators, isVictim ? failures : Infinity);
    const error = messageOf(() => parallelize(rank, model, attempt));
    if (error === "") break;
    failures++;
    if (!error.includes("injected")) faults.push(`${failures}: ${error}`);
    if (kindsOf(model) !== before) faults.push(`${failures}: parameters are ${kindsOf(model)}`);
    if (bytes() !== inUse) faults.push(`${failures}: ${bytes()} bytes in use and not ${inUse}`);
    if (failures > 100) throw new Error(`no end after ${failing.count} allocations`);
  }
  const ours = train(rank, model, attempt);
  const twin = build(rank, attempt);
  parallelize(rank, twin, attempt);
  return { failures, faults, same: train(rank, twin, attempt) === ours };
}

/** Lets a function of the user throw on rank 1 at each of its calls in turn; every rank catches what it gets and tries again. */
export function undoThrown(rank: WorldRank, which: UserFunction): UndoReport {
  const { device, group } = rank;
  const attempt: Attempt = { how: "shardModel", hasValues: true, policy: "float32" };
  let left = Infinity;
  const spring = (): void => {
    if (rank.rank === 1 && left-- === 0) throw new Error("injected");
  };
  const shard = (model: Stack): void => {
    if (which === "isUnit") {
      const isUnit = (name: string): boolean => {
        spring();
        return name.startsWith("layers.");
      };
      return void shardModel(model, { mesh: group, fsdpPlan: { mode: "lambda", isUnit } });
    }
    const options: FullyShardOptions = {
      mesh: group,
      [which]: () => {
        spring();
        return undefined;
      },
    };
    fullyShard(model, options);
  };
  const stateOf = (model: Stack): string =>
    [
      device.allocator.stats.inUse,
      ...Array.from(model.parameters(), ({ fqn, storage }) => `${fqn} ${storage.kind} ${storage.hasValues()}`),
    ].join();
  const model = build(rank, attempt);
  const before = stateOf(model);
  const faults: string[] = [];
  let failures = 0;
  for (;; failures++) {
    left = failures;
    const error = messageOf(() => shard(model));
    if (error === "") break;
    if (!error.includes("injected")) faults.push(`${failures}: ${error}`);
    if (stateOf(model) !== before) faults.push(`${failures}: ${stateOf(model)} and not ${before}`);
  }
  left = Infinity;
  const ours = train(rank, model, attempt);
  const twin = build(rank, attempt);
  shard(twin);
  return { failures, faults, same: train(rank, twin, attempt) === ours };
}

rankFunctions(import.meta.url, { undo, undoThrown });

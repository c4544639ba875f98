/**
 * The door to fully sharded data parallelism (PyTorch's `fully_shard`, `torch/distributed/fsdp/_fully_shard`).
 *
 * One call makes one unit of the parameters below a module that no earlier call has claimed; so call it on the blocks first
 * and on the root last. From then on each rank keeps its share only. The unit is gathered when the module's forward
 * begins, freed when it ends, gathered again when the backward reaches it, and its gradients are summed into the ranks'
 * shares when the backward leaves it. The optimizer, built afterwards, sees this rank's share of everything.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import type { Module } from "../nn/module.ts";
import { attachHooks } from "./hooks.ts";
import { ShardedStorage } from "./param.ts";
import { type FullyShardOptions, resolvePolicy } from "./policy.ts";
import { FsdpUnit } from "./unit.ts";

/** What can be done with a sharded module. Settings reach all units of the module's tree. */
export class FullyShardedModule {
  readonly module: Module;
  /** The unit of the call that gave this. */
  readonly unit: FsdpUnit;
  readonly #units: () => readonly FsdpUnit[];

  constructor(module: Module, unit: FsdpUnit, units: () => readonly FsdpUnit[]) {
    this.module = module;
    this.unit = unit;
    this.#units = units;
  }

  /** All units of the tree, this module's first, then those below in the order of the modules. */
  units(): readonly FsdpUnit[] {
    return this.#units();
  }

  /** Gathers this module's own unit, as for a forward outside `call`. */
  unshard(): void {
    this.unit.unshard("manual");
  }

  /** Frees this module's own gathered unit. */
  reshard(): void {
    this.unit.reshard();
  }

  /** Whether the next backward reduces gradients; without, they add up unsharded on each rank (gradient accumulation). */
  setRequiresGradientSync(sync: boolean): void {
    for (const unit of this.#units()) unit.requiresGradientSync = sync;
  }

  /** What summed gradients are divided by: the number of ranks unless set, or the number of tokens for a token-sum loss. */
  setGradientDivideFactor(factor: number): void {
    if (!(factor > 0)) throw new ArgumentError(`Cannot divide gradients by ${factor}: the factor must be positive`);
    for (const unit of this.#units()) unit.gradientDivideFactor = factor;
  }

  /** Whether parameters are freed after the forward. */
  setReshardAfterForward(reshard: boolean): void {
    for (const unit of this.#units()) unit.reshardAfterForward = reshard;
  }

  /** Frees all shards and windows; every rank must. */
  dispose(): void {
    for (const unit of this.#units()) for (const segment of unit.segments) segment.dispose();
  }
}

/** Units of the parameters below a module, each once, in the order of the modules. */
function unitsOf(module: Module): FsdpUnit[] {
  const units = new Set<FsdpUnit>();
  for (const parameter of module.parameters()) {
    if (parameter.storage instanceof ShardedStorage) units.add(parameter.storage.unit);
  }
  return [...units];
}

/** What all names begin with, whole words only; undefined if nothing. */
function commonName(names: readonly string[]): string | undefined {
  const [first = [], ...others] = names.map((name) => name.split(".").slice(0, -1));
  const common = first.filter((_, i) => others.every((words) => words.slice(0, i + 1).join() === first.slice(0, i + 1).join()));
  return common.length === 0 ? undefined : common.join(".");
}

/**
 * Shards the parameters below `module` that no earlier call has claimed. Every rank of the group must make the same calls.
 *
 * Parameters must have no memory yet: shard first, then initialise or load, so that the whole never exists on one rank.
 *
 * @param module a module with a forward
 * @param options the group, and what may be chosen
 * @throws {ArgumentError} if the module has no unclaimed parameters (it was sharded before), if one has memory already, or
 * if one is also used by a module outside (a tied weight must be claimed by one call)
 * @example
 * ```ts
 * import { fullyShard, initializeParameters, Linear, openDevice, openProcessGroup, tensor } from "fullyshard";
 * const device = await openDevice("cpu");
 * const group = await openProcessGroup({ device });
 * const layer = new Linear(device, 4, 4);
 * fullyShard(layer, { group });
 * initializeParameters(layer, 0);
 * layer.call(tensor(device, [1, 2, 3, 4], { shape: [1, 4] })).sum().backward();
 * if (layer.weight.grad === undefined) throw new Error("no gradient");
 * ```
 */
export function fullyShard(module: Module, options: FullyShardOptions): FullyShardedModule {
  const policy = resolvePolicy(options);
  const parameters = [...module.parameters()].filter(({ storage }) => !(storage instanceof ShardedStorage));
  if (parameters.length === 0) {
    throw new ArgumentError(`Cannot shard ${module.constructor.name}: it has no parameters left; was it sharded before?`);
  }
  const present = parameters.find(({ buffer }) => buffer.attached);
  if (present !== undefined) {
    throw new ArgumentError(`Cannot shard '${present.fqn}': it has memory already; shard first, then initialise or load`);
  }
  const unit = new FsdpUnit(commonName(parameters.map(({ fqn }) => fqn)) ?? module.constructor.name, parameters, policy);
  const units = (): FsdpUnit[] => unitsOf(module);
  attachHooks(module, unit, units);
  return new FullyShardedModule(module, unit, units);
}

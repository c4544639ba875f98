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
import { ModuleContainer } from "../nn/container.ts";
import type { Module } from "../nn/module.ts";
import { BufferTensor } from "../tensor/buffer_tensor.ts";
import { Parameter } from "../tensor/parameter.ts";
import { attachHooks } from "./hooks.ts";
import { ShardedStorage } from "./param.ts";
import { type FullyShardOptions, resolvePolicy } from "./policy.ts";
import { FsdpUnit } from "./unit.ts";

/** The unit of every module that is sharded, what its user has of it, and what lets go of the module. */
const UNITS: WeakMap<
  Module,
  { readonly unit: FsdpUnit; readonly handle: FullyShardedModule; readonly detach: () => void }
> = new WeakMap();

/** What {@link fullyShard} gave for a module; undefined if it is not sharded as a unit of its own. */
export function shardedModuleOf(module: Module): FullyShardedModule | undefined {
  return UNITS.get(module)?.handle;
}

/** What can be done with a sharded module. Settings reach all units of the module's tree. */
export class FullyShardedModule {
  /** The module that was sharded. */
  readonly module: Module;
  /** The unit of the call that gave this. */
  readonly unit: FsdpUnit;

  /** Use {@link fullyShard}. */
  constructor(module: Module, unit: FsdpUnit) {
    this.module = module;
    this.unit = unit;
  }

  /** All units of the tree, this module's first, then those below in the order of the modules. */
  units(): readonly FsdpUnit[] {
    return unitsOf(this.module);
  }

  /** Gathers this module's own unit, as for a forward outside `call`. */
  unshard(): void {
    this.unit.unshard("manual");
    this.unit.waitForGather();
  }

  /** Frees this module's own gathered unit. */
  reshard(): void {
    this.unit.reshard();
  }

  /** Whether the next backward reduces gradients; without, they add up unsharded on each rank (gradient accumulation). */
  setRequiresGradientSync(sync: boolean): void {
    for (const unit of this.units()) unit.requiresGradientSync = sync;
  }

  /** What summed gradients are divided by: the number of ranks unless set, or the number of tokens for a token-sum loss. */
  setGradientDivideFactor(factor: number): void {
    if (!(factor > 0)) throw new ArgumentError(`Cannot divide gradients by ${factor}: the factor must be positive`);
    for (const unit of this.units()) unit.gradientDivideFactor = factor;
  }

  /** Whether parameters are freed after the forward. */
  setReshardAfterForward(reshard: boolean): void {
    for (const unit of this.units()) unit.reshardAfterForward = reshard;
  }

  /** Frees all shards and windows: the module is an ordinary one again, without values, and can be sharded anew. Every rank must. */
  dispose(): void {
    if (UNITS.get(this.module)?.handle !== this) return; // it was, and the module may be sharded anew
    for (const unit of this.units()) {
      UNITS.get(unit.module)?.detach();
      UNITS.delete(unit.module);
      unit.dispose();
    }
  }
}

/** Units of a module and of those below it, in the order of the modules, parents first. */
function unitsOf(module: Module): FsdpUnit[] {
  return [...module.namedModules()].map(([, member]) => UNITS.get(member)?.unit).filter((unit) => unit !== undefined);
}

/**
 * Refuses parameters that two units would use: a unit gathers its own only. Each use belongs to the nearest sharded module
 * around it, or to the one that is about to be sharded.
 */
function requireOneUnit(
  module: Module,
  prefix: string = "",
  user: FsdpUnit | undefined = undefined,
  seen: Map<FsdpUnit | undefined, Set<Module>> = new Map(),
): void {
  const visited = seen.get(user) ?? new Set();
  if (visited.has(module)) return;
  seen.set(user, visited.add(module));
  for (const [name, child] of module.children()) {
    const path = prefix === "" ? name : `${prefix}.${name}`;
    if (child instanceof BufferTensor) continue;
    if (child instanceof Parameter) {
      const holder = child.storage instanceof ShardedStorage ? child.storage.unit : undefined;
      if (holder === user) continue;
      throw new ArgumentError(
        `Cannot shard '${path}': it is tied to '${child.fqn}', which unit '${holder?.name}' holds, but is used outside that unit; ` +
          `call fullyShard once, on a module that holds both, and not on '${holder?.name}'`,
      );
    }
    requireOneUnit(child, path, UNITS.get(child)?.unit ?? user, seen);
  }
}

/**
 * Shards the parameters below `module` that no earlier call has claimed. Every rank of the group must make the same calls.
 * A backward reduces the gradients of every unit that it reaches: a parameter of it that no rank used gets no gradient, one
 * that some ranks used gets zeros from the others. All ranks must reach the same units.
 *
 * Shard first and initialize or load then, so that the whole never exists on one rank; or shard a model that has values, which
 * every rank must have alike: each keeps its part, and the whole is freed parameter by parameter.
 *
 * @param module a module with a forward
 * @param options the group, and what may be chosen
 * @throws {ArgumentError} if the module was sharded before, has no parameters or no forward, or if one of its parameters is
 * replicated, or used by more than one unit (a tied weight must be claimed by one call)
 * @example
 * ```ts
 * import { fullyShard, tensor } from "fullyshard";
 * import { initializeParameters, Linear } from "fullyshard/nn";
 * import { openDevice } from "fullyshard/device";
 * import { openProcessGroup } from "fullyshard/comm";
 * const device = await openDevice("cpu");
 * const group = await openProcessGroup({ device });
 * const layer = new Linear(device, 4, 4);
 * fullyShard(layer, { mesh: group });
 * initializeParameters(layer, 0);
 * layer.call(tensor(device, [1, 2, 3, 4], { shape: [1, 4] })).sum().backward();
 * if (layer.weight.grad === undefined) throw new Error("no gradient");
 * ```
 */
export function fullyShard(module: Module, options: FullyShardOptions): FullyShardedModule {
  const policy = resolvePolicy(options);
  const all = [...module.parameters()];
  const parameters = all.filter(({ storage }) => !(storage instanceof ShardedStorage));
  const refuse = (why: string): never => {
    throw new ArgumentError(`Cannot shard ${module.constructor.name}: ${why}`);
  };
  const before = UNITS.get(module);
  if (before !== undefined) refuse(`it was sharded before, as unit '${before.unit.name}'`);
  if (module instanceof ModuleContainer) {
    refuse("it has no forward; shard the modules in it, or the module that holds it");
  }
  if (all.length === 0) refuse("it has no parameters");
  const inside = parameters.length === 0 && unitsOf(module).length === 0 ? all[0] : undefined;
  if (inside?.storage instanceof ShardedStorage) {
    refuse(
      `unit '${inside.storage.unit.name}' holds its parameters; shard inner modules before outer ones, and modules with tied parameters ` +
        "by one call",
    );
  }
  requireOneUnit(module);
  for (const parameter of parameters) parameter.requirePlain("shard");
  const unit = new FsdpUnit(module, parameters, policy);
  const handle = new FullyShardedModule(module, unit);
  UNITS.set(module, { unit, handle, detach: attachHooks(unit, () => unitsOf(module)) });
  return handle;
}

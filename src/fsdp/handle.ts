/**
 * What a user has of a sharded module: PyTorch's methods of `FSDPModule`, under the same names. Settings reach every unit of
 * the module's tree, or this module's own alone with `{ recurse: false }`; unsharding and prefetching are always its own.
 *
 * @module
 */
import { activePass } from "../autograd/engine.ts";
import { ArgumentError } from "../errors.ts";
import type { Module } from "../nn/module.ts";
import type { CustomCollectives } from "./policy.ts";
import { ReductionInputs } from "./root.ts";
import type { FsdpUnit } from "./unit.ts";

/** What sharding made of a module. */
interface Sharding {
  readonly handle: FullyShardedModule;
  /** Lets go of the unit's modules. */
  readonly detach: () => void;
}

/** The sharding of every module that a call of `fullyShard` was given. */
const SHARDINGS: WeakMap<Module, Sharding> = new WeakMap();

/** What `fullyShard` gave for a module; undefined if it is not sharded as a unit of its own. */
export function shardedModuleOf(module: Module): FullyShardedModule | undefined {
  return SHARDINGS.get(module)?.handle;
}

/** Units of modules and of those below them, in the order of the modules, parents first. */
export function unitsOf(modules: readonly Module[]): FsdpUnit[] {
  const all = modules.flatMap((module) => [...module.namedModules()]);
  return [...new Set(all.flatMap(([, member]) => shardedModuleOf(member)?.unit ?? []))];
}

/** Methods that gather and free already. */
const HOOKED: WeakSet<object> = new WeakSet();

/** Which sharded modules a setting reaches. */
export interface RecurseOptions {
  /** Whether the units below are set as well. @default true */
  readonly recurse?: boolean;
}

/** Options of {@link FullyShardedModule.unshard}. */
export interface UnshardOptions {
  /** Whether what follows need not wait for the gather yet: the handle, or the module's forward, waits. @default false */
  readonly asyncOp?: boolean;
}

/** A gather that may be under way; `await` waits as {@link wait} does. */
export class UnshardHandle implements PromiseLike<void> {
  readonly #unit: FsdpUnit;

  /** Use {@link FullyShardedModule.unshard}. */
  constructor(unit: FsdpUnit) {
    this.#unit = unit;
  }

  /** Orders what is enqueued from now on after the gather. A second call does nothing. */
  wait(): void {
    this.#unit.waitForGather();
  }

  /** Waits, then does as a promise's `then`. */
  then<Done = void, Failed = never>(
    done?: ((value: void) => Done | PromiseLike<Done>) | null,
    failed?: ((reason: unknown) => Failed | PromiseLike<Failed>) | null,
  ): Promise<Done | Failed> {
    return new Promise<void>((resolve) => resolve(this.wait())).then(done, failed);
  }
}

/** Makes a unit's modules ordinary ones. */
export function letGo(unit: FsdpUnit): void {
  for (const module of unit.modules) {
    SHARDINGS.get(module)?.detach();
    SHARDINGS.delete(module);
  }
}

/**
 * Takes a sharding back: the modules are ordinary ones again, and their parameters plain, with the values that they have. Where a rank
 * has no memory for these, nothing changes on any. Every rank must.
 *
 * @throws {OutOfMemoryError} on that rank
 */
export function undoSharding({ unit }: FullyShardedModule): void {
  unit.dissolve();
  letGo(unit);
}

/** What can be done with sharded modules. */
export class FullyShardedModule {
  /** The unit of the call that gave this. */
  readonly unit: FsdpUnit;

  /** Made by `fullyShard`. */
  constructor(unit: FsdpUnit, detach: () => void) {
    this.unit = unit;
    for (const module of unit.modules) SHARDINGS.set(module, { handle: this, detach });
  }

  /** The modules that were sharded together; mostly one. */
  get modules(): readonly Module[] {
    return this.unit.modules;
  }

  /** All units of the tree, this one first, then those below in the order of the modules. */
  units(): readonly FsdpUnit[] {
    return unitsOf(this.modules);
  }

  /** Gathers this unit, as for a use outside a forward. It stays until {@link reshard}, or until a backward has left it. */
  unshard({ asyncOp = false }: UnshardOptions = {}): UnshardHandle {
    const handle = new UnshardHandle(this.unit);
    this.unit.unshard("manual");
    if (!asyncOp) handle.wait();
    return handle;
  }

  /** Frees this gathered unit. */
  reshard(): void {
    this.unit.reshard();
  }

  /** Gathers these units as soon as this one is gathered for its forward, in this order. Replaces what was set before. */
  setModulesToForwardPrefetch(modules: readonly FullyShardedModule[]): void {
    this.unit.forwardPrefetch = modules.map(({ unit }) => unit);
  }

  /** Gathers these units as soon as this one is gathered for its backward, in this order; replaces `backwardPrefetch`. */
  setModulesToBackwardPrefetch(modules: readonly FullyShardedModule[]): void {
    this.unit.backwardPrefetch = modules.map(({ unit }) => unit);
  }

  /** Whether the next backward reduces gradients; without, they add up unsharded on each rank (gradient accumulation). */
  setRequiresGradientSync(sync: boolean, options?: RecurseOptions): void {
    this.#set(options, (unit) => unit.requiresGradientSync = unit.requiresAllReduce = sync);
  }

  /**
   * Whether the next backward sums gradients over replicas, where there are some (HSDP); without, each replica adds up its own
   * reduced ones, which the next all-reduce takes.
   */
  setRequiresAllReduce(allReduce: boolean, options?: RecurseOptions): void {
    this.#set(options, (unit) => unit.requiresAllReduce = allReduce);
  }

  /**
   * Whether parameters are freed after the forward, or the number of ranks that keep parts of them. Every rank must.
   *
   * @throws {ArgumentError} for a number that does not divide the ranks which share a unit
   */
  setReshardAfterForward(reshard: boolean | number, options?: RecurseOptions): void {
    this.#set(options, (unit) => unit.reshardAfterForward = reshard);
  }

  /** Whether parameters are freed after the backward. Kept ones spare the next forward a gather; an optimizer's step frees them. */
  setReshardAfterBackward(reshard: boolean, options?: RecurseOptions): void {
    this.#set(options, (unit) => unit.reshardAfterBackward = reshard);
  }

  /**
   * Whether the next backward is the last one before gradients are read. Before, reduced gradients add up unseen, and ranks spare
   * themselves telling each other what they used.
   */
  setIsLastBackward(isLast: boolean, options?: RecurseOptions): void {
    this.#set(options, (unit) => unit.isLastBackward = isLast);
  }

  /**
   * Sets what summed gradients are divided by, such as the number of tokens for a token-sum loss. Without a call it is the number of ranks.
   *
   * @throws {ArgumentError} if it is not positive
   */
  setGradientDivideFactor(factor: number, options?: RecurseOptions): void {
    if (!(factor > 0)) throw new ArgumentError(`Cannot divide gradients by ${factor}: the factor must be positive`);
    this.#set(options, (unit) => unit.gradientDivideFactor = factor);
  }

  /**
   * How many units may have whole gradients in reduction at a time, beside the unit whose gradients are being written. With 1, as
   * at first, a unit's gradients are written where the unit before had its own, once these are reduced; with 2 they have memory of
   * their own, and the backward goes on beside the reduction. The largest number of the units below one root counts.
   *
   * @throws {ArgumentError} if it is no whole number above 0
   */
  setMaxReduceScatterInputs(count: number, options?: RecurseOptions): void {
    if (!Number.isSafeInteger(count) || count < 1) {
      throw new ArgumentError(`Cannot hold ${count} inputs of reductions: give a whole number above 0`);
    }
    this.#set(options, (unit) => unit.maxReduceScatterInputs = count);
  }

  /** Whether the backward gathers the parameters: false where it needs none of their values, as for an embedding. */
  setUnshardInBackward(unshard: boolean, options?: RecurseOptions): void {
    this.#set(options, (unit) => unit.unshardInBackward = unshard);
  }

  /** Gathers this unit by `gather` from now on; undefined gives that back to the library. Every rank must. */
  setCustomAllGather(gather: CustomCollectives["allGather"]): void {
    this.unit.custom.allGather = gather;
  }

  /** Reduces this unit by `reduce` from now on; undefined gives that back to the library. Every rank must. */
  setCustomReduceScatter(reduce: CustomCollectives["reduceScatter"]): void {
    this.unit.custom.reduceScatter = reduce;
  }

  /** Hands this unit's reduced gradients to `hook` before they are added to earlier ones. Undefined ends that. */
  setAllReduceHook(hook: CustomCollectives["allReduceHook"]): void {
    this.unit.custom.allReduceHook = hook;
  }

  /**
   * Drops what steps have left of gradients, also of accumulations that were not reduced yet, and frees gathered parameters, on every
   * rank (PyTorch's `reset_iter_state`). A forward or backward that throws needs no such call: the next one begins afresh, and a
   * backward that throws drops gradients itself. It is for an accumulation that is given up, as where one of its forwards has thrown.
   *
   * @throws {ArgumentError} if the module is below a root, or a backward is under way
   */
  resetIterState(): void {
    const root = this.unit.root?.units[0];
    if (root !== undefined && root !== this.unit) {
      throw new ArgumentError(`Cannot reset '${this.unit.name}', which is below '${root.name}': call it on that root`);
    }
    if (activePass() !== undefined) {
      throw new ArgumentError(`Cannot reset '${this.unit.name}' inside a backward: call it when that has ended`);
    }
    for (const unit of this.units()) unit.abandonPass();
  }

  /** Frees all shards and windows: the modules are ordinary ones again, without values, and can be sharded anew. Every rank must. */
  dispose(): void {
    if (!this.modules.some((module) => shardedModuleOf(module) === this)) return; // it was, and they may be sharded anew
    for (const unit of this.units()) {
      letGo(unit);
      unit.dispose();
    }
  }

  #set({ recurse = true }: RecurseOptions = {}, set: (unit: FsdpUnit) => void): void {
    for (const unit of recurse ? this.units() : [this.unit]) set(unit);
  }
}

/**
 * Lets several roots, as pipeline stages on one rank are, hold the whole gradients that they reduce together (PyTorch's
 * `share_comm_ctx`): the largest number that `setMaxReduceScatterInputs` set on any of them counts for all. Streams are a
 * device's, and shared by all roots anyway. Call it between passes.
 *
 * @throws {ArgumentError} if one of them is below another, as only roots hold gradients
 */
export function shareCommContext(roots: readonly FullyShardedModule[]): void {
  for (const root of roots) {
    const outer = roots.find((other) => other !== root && other.units().includes(root.unit));
    if (outer === undefined) continue;
    throw new ArgumentError(
      `Cannot share what '${root.unit.name}' communicates with: it is below '${outer.unit.name}', whose root does; give roots only`,
    );
  }
  for (const { unit } of roots) {
    const root = unit.root?.units[0];
    if (root === undefined || root === unit) continue;
    throw new ArgumentError(
      `Cannot share what '${unit.name}' communicates with: it is below '${root.name}', whose root does; give roots only`,
    );
  }
  const shared = new ReductionInputs(roots.map(({ unit }) => unit));
  for (const { unit } of roots) unit.reductionInputs = shared;
}

/**
 * Lets another method of a sharded module gather and free parameters as its forward does: what it is given and gives is hooked
 * alike. Does nothing if the module is not sharded, or the method was registered before. The method may call the forward, and the
 * forward the method: parameters are freed when the outer one has ended.
 *
 * @param method name of a method that is called on the module
 * @throws {ArgumentError} if the module has no method of that name
 * @example
 * ```ts
 * import { fullyShard, registerFsdpForwardMethod, type Tensor, tensor } from "fullyshard";
 * import { initializeParameters, Linear } from "fullyshard/nn";
 * import { openDevice } from "fullyshard/device";
 * import { openProcessGroup } from "fullyshard/comm";
 * class Encoder extends Linear {
 *   encode(x: Tensor): Tensor {
 *     return this.forward(x).tanh();
 *   }
 * }
 * const device = await openDevice("cpu");
 * const encoder = new Encoder(device, 2, 2);
 * fullyShard(encoder, { mesh: await openProcessGroup({ device }) });
 * initializeParameters(encoder, 0);
 * registerFsdpForwardMethod(encoder, "encode");
 * encoder.encode(tensor(device, [1, 2], { shape: [1, 2] })).sum().backward();
 * if (encoder.weight.grad === undefined) throw new Error("no gradient");
 * ```
 */
export function registerFsdpForwardMethod<M extends Module>(module: M, method: keyof M & string): void {
  const body: unknown = module[method];
  if (typeof body !== "function") {
    throw new ArgumentError(`${module.constructor.name} has no method '${method}': name one that is called on it`);
  }
  if (shardedModuleOf(module) === undefined || HOOKED.has(body)) return;
  const value = (...args: readonly unknown[]): unknown =>
    module.callAs((...given): unknown => Reflect.apply(body, module, given), args);
  Object.defineProperty(module, method, { value, configurable: true, writable: true });
  HOOKED.add(value);
}

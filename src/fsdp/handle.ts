/**
 * The methods of a sharded module, with the names of PyTorch's `FSDPModule`. A setting reaches every unit of the module's tree, or with
 * `{ recurse: false }` this module's unit only. Unsharding and prefetching always concern this module's unit only.
 *
 * @module
 */
import { requireSwitch } from "../config/known_values.ts";
import { requireKnownKeys } from "../config/known_keys.ts";
import { activePass } from "../autograd/engine.ts";
import { ArgumentError } from "../errors.ts";
import type { Module } from "../nn/module.ts";
import type { CustomCollectives } from "./policy.ts";
import { ReductionInputs } from "./root.ts";
import type { FsdpUnit } from "./unit.ts";

/** The handle of a sharded module, and its hooks. */
interface ShardedModuleRecord {
  readonly handle: FullyShardedModule;
  /** Detaches the hooks of the unit's modules. */
  readonly detach: () => void;
}

/** The sharding of every module that a call of `fullyShard` was given. */
const SHARDINGS: WeakMap<Module, ShardedModuleRecord> = new WeakMap();

/** The handle that `fullyShard` gave for a module; undefined if it is not sharded as a unit of its own. */
export function shardedModuleOf(module: Module): FullyShardedModule | undefined {
  return SHARDINGS.get(module)?.handle;
}

/** Units of modules and of the modules below them, in the order of the modules, parents first. */
export function unitsOf(modules: readonly Module[]): FsdpUnit[] {
  const all = modules.flatMap((module) => [...module.namedModules()]);
  return [...new Set(all.flatMap(([, member]) => shardedModuleOf(member)?.unit ?? []))];
}

/** Methods that {@link registerFsdpForwardMethod} has wrapped. */
const HOOKED: WeakSet<object> = new WeakSet();

/** The sharded modules that a setting reaches. */
export interface RecurseOptions {
  /** Sets the units below as well. @default true */
  readonly recurse?: boolean;
}

/** Options of {@link FullyShardedModule.unshard}. */
export interface UnshardOptions {
  /** True: returns without a wait for the gather; the handle's `wait`, or the module's forward, waits. @default false */
  readonly asyncOp?: boolean;
}

/** A gather that may be under way. `await` waits as {@link wait} does. */
export class UnshardHandle implements PromiseLike<void> {
  readonly #unit: FsdpUnit;

  /** Use {@link FullyShardedModule.unshard}. */
  constructor(unit: FsdpUnit) {
    this.#unit = unit;
  }

  /** Makes all that is enqueued from now on wait for the gather. A second call does nothing. */
  wait(): void {
    this.#unit.waitForGather();
  }

  /** Waits, then calls back as a promise's `then` does. */
  then<Done = void, Failed = never>(
    done?: ((value: void) => Done | PromiseLike<Done>) | null,
    failed?: ((reason: unknown) => Failed | PromiseLike<Failed>) | null,
  ): Promise<Done | Failed> {
    return new Promise<void>((resolve) => resolve(this.wait())).then(done, failed);
  }
}

/** Detaches a unit's modules, which are not sharded then. */
export function letGo(unit: FsdpUnit): void {
  for (const module of unit.modules) {
    SHARDINGS.get(module)?.detach();
    SHARDINGS.delete(module);
  }
}

/**
 * Undoes a sharding: the modules are as before `fullyShard`, and their parameters plain, with their present values. Where a rank has
 * no memory for these, nothing changes on any rank. Every rank must call it.
 *
 * @throws {OutOfMemoryError} on that rank
 */
export function undoSharding({ unit }: FullyShardedModule): void {
  unit.dissolve();
  letGo(unit);
}

/** Sharded modules, which make one unit. */
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

  /** All units of the tree: this unit, then the units below in the order of the modules. */
  units(): readonly FsdpUnit[] {
    return unitsOf(this.modules);
  }

  /** Gathers this unit's parameters, as for a use outside a forward, until {@link reshard} or a backward that leaves the unit. */
  unshard(options: UnshardOptions = {}): UnshardHandle {
    requireKnownKeys("unshard", options, { asyncOp: true });
    const { asyncOp = false } = options;
    const handle = new UnshardHandle(this.unit);
    this.unit.unshard("manual");
    if (!asyncOp) handle.wait();
    return handle;
  }

  /** Frees this unit's gathered parameters. */
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

  /**
   * True: the next backward reduces gradients. False: they add up unsharded on each rank (gradient accumulation). Sets
   * `requiresAllReduce` too, as PyTorch's `set_requires_gradient_sync` does: call {@link setRequiresAllReduce} after it.
   */
  setRequiresGradientSync(sync: boolean, options?: RecurseOptions): void {
    requireSwitch("call setRequiresGradientSync", "sync", sync);
    this.#set(options, (unit) => unit.requiresGradientSync = unit.requiresAllReduce = sync);
  }

  /**
   * True: the next backward sums reduced gradients over replicas, where there are some (HSDP). False: each replica keeps and
   * accumulates its reduce-scattered gradient (PyTorch's `partial_reduce_output`); the next backward with true all-reduces the sum.
   * Until then `grad` is unset and an optimizer's `step()` throws.
   */
  setRequiresAllReduce(allReduce: boolean, options?: RecurseOptions): void {
    requireSwitch("call setRequiresAllReduce", "allReduce", allReduce);
    this.#set(options, (unit) => unit.requiresAllReduce = allReduce);
  }

  /**
   * The unsharded parameters after a forward: true frees them, false keeps them. A number n reshards them over n ranks, each of which
   * keeps its shard of them. Every rank must call it.
   *
   * @throws {ArgumentError} for a number that does not divide the ranks which share a unit
   */
  setReshardAfterForward(reshard: boolean | number, options?: RecurseOptions): void {
    this.#set(options, (unit) => unit.reshardAfterForward = reshard);
  }

  /** True: the backward frees the parameters. False: they stay for the next forward, or until an optimizer's step frees them. */
  setReshardAfterBackward(reshard: boolean, options?: RecurseOptions): void {
    requireSwitch("call setReshardAfterBackward", "reshard", reshard);
    this.#set(options, (unit) => unit.reshardAfterBackward = reshard);
  }

  /**
   * True: the next backward is the last before gradients are read. False: reduced gradients add up, but parameters do not show them
   * yet, and ranks do not exchange which parameters they used.
   */
  setIsLastBackward(isLast: boolean, options?: RecurseOptions): void {
    requireSwitch("call setIsLastBackward", "isLast", isLast);
    this.#set(options, (unit) => unit.isLastBackward = isLast);
  }

  /**
   * Sets the number by which summed gradients are divided, such as the number of tokens for a token-sum loss. At first it is the
   * number of ranks.
   *
   * @throws {ArgumentError} if it is not positive
   */
  setGradientDivideFactor(factor: number, options?: RecurseOptions): void {
    if (!(factor > 0)) throw new ArgumentError(`Cannot divide gradients by ${factor}: the factor must be positive`);
    this.#set(options, (unit) => unit.gradientDivideFactor = factor);
  }

  /**
   * Number of reduce-scatter input buffers alive at once, the one being written or reduced included (PyTorch's
   * `set_reduce_scatter_max_input_buffers`).
   * - 1, the default: freed behind its reduce-scatter. The next unit's gradients take that memory, so the device writes them after the
   *   reduction.
   * - n: the newest n - 1 stay until later units' reductions are enqueued. With 2, the next unit's gradients have memory of their own, so
   *   the device writes them during the reduction.
   *
   * The largest number among the units below a root counts.
   *
   * @throws {ArgumentError} if it is no whole number above 0
   */
  setMaxReduceScatterInputs(count: number, options?: RecurseOptions): void {
    if (!Number.isSafeInteger(count) || count < 1) {
      throw new ArgumentError(`Cannot hold ${count} inputs of reductions: give a whole number above 0`);
    }
    this.#set(options, (unit) => unit.maxReduceScatterInputs = count);
  }

  /** True: the backward gathers the parameters. False: it does not, as an embedding's needs none of their values. */
  setUnshardInBackward(unshard: boolean, options?: RecurseOptions): void {
    requireSwitch("call setUnshardInBackward", "unshard", unshard);
    this.#set(options, (unit) => unit.unshardInBackward = unshard);
  }

  /** Gathers this unit by `gather` from now on, or by the library where that is undefined. Every rank must call it. */
  setCustomAllGather(gather: CustomCollectives["allGather"]): void {
    this.unit.custom.allGather = gather;
  }

  /** Reduces this unit by `reduce` from now on, or by the library where that is undefined. Every rank must call it. */
  setCustomReduceScatter(reduce: CustomCollectives["reduceScatter"]): void {
    this.unit.custom.reduceScatter = reduce;
  }

  /** Calls `hook` with this unit's reduced gradients before they are added to earlier ones. Undefined ends that. */
  setAllReduceHook(hook: CustomCollectives["allReduceHook"]): void {
    this.unit.custom.allReduceHook = hook;
  }

  /**
   * Drops all gradients, also accumulated ones that were not reduced, and frees gathered parameters (PyTorch's `reset_iter_state`).
   * Every rank must call it. It is for an accumulation that is given up, as where one of its forwards has thrown. A forward or
   * backward that throws needs no such call: the next begins afresh, and a backward that throws drops gradients itself.
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

  /** Frees all shards: the modules are as before `fullyShard`, without values, and can be sharded again. Every rank must call it. */
  dispose(): void {
    if (!this.modules.some((module) => shardedModuleOf(module) === this)) return; // disposed before; the modules may be sharded again
    for (const unit of this.units()) {
      letGo(unit);
      unit.dispose();
    }
  }

  #set(options: RecurseOptions = {}, set: (unit: FsdpUnit) => void): void {
    requireKnownKeys("set this of units", options, { recurse: true });
    const { recurse = true } = options;
    for (const unit of recurse ? this.units() : [this.unit]) set(unit);
  }
}

/**
 * Lets several roots, such as the pipeline stages of a rank, hold the unsharded gradients in reduction together (PyTorch's
 * `share_comm_ctx`). The largest number that `setMaxReduceScatterInputs` set on any of them counts for all. Streams belong to the
 * device, so all roots share them anyway. Call it between passes.
 *
 * @throws {ArgumentError} if a module is below a root, as only roots hold gradients
 */
export function shareCommContext(roots: readonly FullyShardedModule[]): void {
  for (const root of roots) {
    const outer = roots.find((other) => other !== root && other.units().includes(root.unit));
    if (outer === undefined) continue;
    throw new ArgumentError(
      `Cannot share a communication context with '${root.unit.name}': it is a submodule of the root '${outer.unit.name}'. Pass root ` +
        "modules only",
    );
  }
  for (const { unit } of roots) {
    const root = unit.root?.units[0];
    if (root === undefined || root === unit) continue;
    throw new ArgumentError(
      `Cannot share a communication context with '${unit.name}': it is a submodule of the root '${root.name}'. Pass root modules only`,
    );
  }
  const shared = new ReductionInputs(roots.map(({ unit }) => unit));
  for (const { unit } of roots) unit.reductionInputs = shared;
}

/**
 * Lets a method of a sharded module gather and free parameters as its forward does, with the same hooks on its arguments and its
 * result. Does nothing if the module is not sharded, or the method was registered before. The method may call the forward, and the
 * forward may call the method: the parameters are freed when the outer call has ended.
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

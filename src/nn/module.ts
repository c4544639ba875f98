/**
 * Modules: a tree of named parameters with a forward. Fields that hold modules, parameters or buffers form the tree; their names,
 * in snake_case, are the FQNs, which are Hugging Face's. Calling a module calls its hooks, and frees the tensors of its forward
 * except its results and those that the backward needs.
 *
 * @module
 */
import type { DType } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { BufferTensor, isOfBuffer } from "../tensor/buffer_tensor.ts";
import { Parameter } from "../tensor/parameter.ts";
import { scope } from "../tensor/scope.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { unwind } from "../unwind.ts";
import { valueText } from "../words.ts";
import { mapTensors, partsIn, tensorsIn } from "./tree.ts";

/** Something removed by calling it. */
export type HookHandle = () => void;

/**
 * Called before a forward. The function that it returns is called when that forward has ended: with `failed` false before the
 * forward hooks, or with true if the forward has thrown. It is called once more, with true, if a forward hook or the cast of the
 * result throws.
 */
export type ForwardPreHook = (args: readonly unknown[]) => void | ((failed: boolean) => void);

/** Runs after a forward. */
export type ForwardHook = (args: readonly unknown[], output: unknown) => void;

/**
 * Computes a module's output, by its forward or otherwise.
 *
 * @internal
 */
export interface ForwardBody<Args extends readonly unknown[], Out> {
  /** The module's output. @param forward the module's own */
  compute(forward: (...args: Args) => Out, args: Args): Out;
}

/** Runs a module's forward, or computes the same output in another way. */
export type ForwardWrapper = <Args extends readonly unknown[], Out>(forward: (...args: Args) => Out, args: Args) => Out;

/**
 * A change of a module's output by parameters that the module does not have itself: a low-rank adapter.
 *
 * @internal
 */
export interface ModuleAdapter<Args extends readonly unknown[], Out> {
  /** Parameters and modules by their names directly below the module. */
  children(): Iterable<readonly [name: string, child: ModuleMember]>;
  /** The module's output, from the output of its forward. */
  adapt(output: Out, args: Args): Out;
}

/** dtypes to which floats are cast on their way into a module and out of it; undefined leaves them unchanged. */
export interface BoundaryDtypes {
  /** dtype of the module's inputs. */
  readonly inputs: DType | undefined;
  /** dtype of the module's outputs. */
  readonly outputs: DType | undefined;
}

const AS_THEY_ARE: BoundaryDtypes = { inputs: undefined, outputs: undefined };

/** A value with its float tensors in another dtype. A module's buffers keep theirs: what they hold may need it. */
function castFloats<T>(value: T, dtype: DType | undefined): T {
  if (dtype === undefined) return value;
  return mapTensors(value, (tensor) => {
    return tensor.dtype.kind === "float" && !isOfBuffer(tensor) ? tensor.to(dtype) : tensor;
  });
}

/**
 * A member of a module's tree.
 *
 * @internal
 */
export type ModuleMember = Module | Parameter | BufferTensor;

function isPart(value: unknown): value is ModuleMember {
  return value instanceof Module || value instanceof Parameter || value instanceof BufferTensor;
}

function join(prefix: string, name: string): string {
  return prefix === "" ? name : `${prefix}.${name}`;
}

/** A part of a model. `Args` and `Out` are what its forward takes and gives. */
export abstract class Module<Args extends readonly unknown[] = readonly unknown[], Out = unknown> {
  readonly #preHooks = new Set<ForwardPreHook>();
  readonly #hooks = new Set<ForwardHook>();
  #boundary = AS_THEY_ARE;
  #wrapper: ForwardWrapper | undefined;
  #body: ForwardBody<Args, Out> | undefined;
  #adapter: ModuleAdapter<Args, Out> | undefined;
  #training = true;
  #fqn: string | undefined;

  /**
   * Computes the module's output. Callers use {@link call} instead, `model.call(x)`, which also gathers, calls hooks and frees.
   */
  abstract forward(...args: Args): Out;

  /**
   * Runs hooks and forward.
   *
   * @throws {ArgumentError} if the forward gives tensors in anything but arrays and plain objects
   */
  call(...args: Args): Out {
    if (typeof this.forward !== "function") {
      throw new ArgumentError(`Cannot call ${this.constructor.name}: it has no method forward`);
    }
    const [body, adapter] = [this.#body, this.#adapter];
    const own = (...given: Args): Out => this.forward(...given);
    const forward = body === undefined && adapter === undefined ? own : (...given: Args): Out => {
      const output = body === undefined ? own(...given) : body.compute(own, given);
      return adapter === undefined ? output : adapter.adapt(output, given);
    };
    const wrapper = this.#wrapper;
    return this.callAs(wrapper === undefined ? forward : (...given) => wrapper(forward, given), args);
  }

  /**
   * Runs hooks around another body than the forward: for a method that uses the parameters too.
   *
   * @throws {ArgumentError} as {@link call}
   */
  callAs<Given extends readonly unknown[], Made>(body: (...args: Given) => Made, args: Given): Made {
    using frame = scope();
    const ends: ((failed: boolean) => void)[] = [];
    try {
      const given = castFloats(args, this.#boundary.inputs);
      for (const hook of this.#preHooks) {
        const end = hook(given);
        if (end !== undefined) ends.push(end);
      }
      const output = body(...given);
      tensorsIn(output, (hidden) => this.#refuse(hidden));
      for (const end of ends) end(false);
      for (const hook of this.#hooks) hook(args, output);
      const result = castFloats(output, this.#boundary.outputs);
      frame.keep(...tensorsIn(result));
      return result;
    } catch (error) {
      unwind(ends.map((end) => () => end(true)));
      throw error;
    }
  }

  #refuse(hidden: object): never {
    throw new ArgumentError(
      `${this.constructor.name}.forward() gave a ${hidden.constructor.name}: tensors in it would be freed and not hooked; give tensors, ` +
        "arrays or plain objects of them",
    );
  }

  /** Runs `hook` before each forward. */
  registerForwardPreHook(hook: ForwardPreHook): HookHandle {
    this.#preHooks.add(hook);
    return () => void this.#preHooks.delete(hook);
  }

  /** Runs `hook` after each forward. */
  registerForwardHook(hook: ForwardHook): HookHandle {
    this.#hooks.add(hook);
    return () => void this.#hooks.delete(hook);
  }

  /** Casts floats on their way in, before hooks, and out, after them. Used by parallelisms. */
  castBoundary(dtypes: BoundaryDtypes): HookHandle {
    this.#boundary = dtypes;
    return () => void (this.#boundary = AS_THEY_ARE);
  }

  /**
   * Makes `wrapper` call each forward, inside the hooks. Used by activation checkpointing.
   *
   * @throws {ArgumentError} if the module has a wrapper
   */
  wrapForward(wrapper: ForwardWrapper): HookHandle {
    if (this.#wrapper !== undefined) {
      const name = this.#fqn === undefined ? "" : ` '${this.#fqn}'`;
      throw new ArgumentError(`Cannot checkpoint ${this.constructor.name}${name}: it is checkpointed already`);
    }
    this.#wrapper = wrapper;
    return () => void (this.#wrapper = undefined);
  }

  /**
   * Has `body` compute the module's output, inside the hooks and before an adapter. Used by tensor parallelism.
   *
   * @throws {ArgumentError} if the module has one
   */
  setBody(body: ForwardBody<Args, Out>): HookHandle {
    if (this.#body !== undefined) {
      throw new ArgumentError(`Cannot cut '${this.#fqn ?? this.constructor.name}': it is cut already`);
    }
    this.#body = body;
    return () => void (this.#body = undefined);
  }

  /**
   * Lets an adapter change the module's output, before any hook sees it. The adapter's parameters join the tree, whose names must be
   * given again.
   *
   * @throws {ArgumentError} if the module has an adapter
   */
  attachAdapter(adapter: ModuleAdapter<Args, Out>): HookHandle {
    if (this.#adapter !== undefined) {
      throw new ArgumentError(
        `Cannot add an adapter to '${this.#fqn ?? this.constructor.name}': it has one; merge or remove it first`,
      );
    }
    this.#adapter = adapter;
    return () => void (this.#adapter = undefined);
  }

  /** True if an adapter changes the module's output. */
  get isAdapted(): boolean {
    return this.#adapter !== undefined;
  }

  /** True if the module is in training mode, false in evaluation mode. */
  get training(): boolean {
    return this.#training;
  }

  /** Sets {@link training} of this module and all below it. */
  train(mode: boolean = true): this {
    for (const [, module] of this.namedModules()) module.#training = mode;
    return this;
  }

  /** `train(false)` */
  eval(): this {
    return this.train(false);
  }

  /** The module's name below the root that named the tree: `""` for that root, undefined before. */
  get fqn(): string | undefined {
    return this.#fqn;
  }

  /**
   * Parameters, buffers and modules right below this one, by name. An array or plain object gives one entry an item.
   *
   * @throws {ArgumentError} if a field hides some in a Map, a Set or an object of a class
   */
  *children(): Generator<readonly [name: string, child: ModuleMember]> {
    for (const [field, value] of Object.entries(this)) yield* partsIn(this.nameOf(field), value, isPart);
    if (this.#adapter !== undefined) yield* this.#adapter.children();
  }

  /** A field's name in FQNs: snake_case of the field where a subclass does not say another one. */
  protected nameOf(field: string): string {
    return field.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
  }

  /** This module (named `prefix`) and all below it, parents first. A module found twice comes once. */
  *namedModules(
    prefix: string = "",
    seen: Set<Module> = new Set(),
  ): Generator<readonly [name: string, module: Module]> {
    if (seen.has(this)) return;
    seen.add(this);
    yield [prefix, this];
    for (const [name, child] of this.children()) {
      if (child instanceof Module) yield* child.namedModules(join(prefix, name), seen);
    }
  }

  /** All parameters with their names, in the order of the fields. A tied parameter comes once, by its first name. */
  *namedParameters(): Generator<readonly [name: string, parameter: Parameter]> {
    for (const [name, part] of this.#namedLeaves()) if (part instanceof Parameter) yield [name, part];
  }

  /** All parameters. */
  *parameters(): Generator<Parameter> {
    for (const [, parameter] of this.namedParameters()) yield parameter;
  }

  /** All buffers with their names, in the order of the fields. */
  *namedBuffers(): Generator<readonly [name: string, buffer: BufferTensor]> {
    for (const [name, part] of this.#namedLeaves()) if (part instanceof BufferTensor) yield [name, part];
  }

  /** Drops all gradients. */
  zeroGrad(): void {
    for (const parameter of this.parameters()) parameter.zeroGrad();
  }

  /**
   * Tells every module, parameter and buffer below this one its FQN.
   *
   * @throws {ArgumentError} if two would have one name
   */
  nameTree(): void {
    for (const [name, module] of this.namedModules()) module.#fqn = name;
    const names = new Set<string>();
    for (const [name, part] of this.#namedLeaves()) {
      if (names.has(name)) {
        throw new ArgumentError(`Two parameters are named '${name}': fields become snake_case, so rename one`);
      }
      names.add(name);
      part.rename(name);
    }
  }

  /**
   * Names the tree, unless all its parameters have names. A part of a model that was named keeps the model's names, so initial
   * values and checkpoints do not depend on the module that is asked.
   */
  ensureNames(): void {
    for (const parameter of this.parameters()) if (!parameter.named) return this.nameTree();
  }

  *#namedLeaves(): Generator<readonly [name: string, part: Parameter | BufferTensor]> {
    const seen = new Set<ModuleMember>();
    for (const [path, module] of this.namedModules()) {
      for (const [name, child] of module.children()) {
        if (child instanceof Module || seen.has(child)) continue;
        seen.add(child);
        yield [join(path, name), child];
      }
    }
  }
}

/** A module that makes one tensor of one: a norm, a feed-forward. */
export type Layer = Module<[x: Tensor], Tensor>;

/**
 * The modules of a list, or the module that was given in place of it.
 *
 * @param what is not done, e.g. `shard`
 * @throws {ArgumentError} if there is anything else
 */
export function modulesOf(what: string, given: Module | readonly Module[]): readonly Module[] {
  const modules = Array.isArray(given) ? given : [given];
  for (const module of modules) requireModule(what, module);
  return modules;
}

/**
 * Refuses what is no module.
 *
 * @param what is not done, e.g. `shard`
 * @throws {ArgumentError} with the value
 */
export function requireModule(what: string, value: unknown): void {
  if (value instanceof Module) return;
  throw new ArgumentError(`Cannot ${what} ${valueText(value)}: expected a Module, such as the model itself`);
}

/**
 * Modules: a tree of named parameters with a forward. Fields that hold modules or parameters are the tree; their names, in
 * snake_case, are the FQNs, which are Hugging Face's. Calling a module runs its hooks and frees what its forward made,
 * except what it returns and what the backward needs.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import { Parameter } from "../tensor/parameter.ts";
import { scope } from "../tensor/scope.ts";
import { Tensor } from "../tensor/tensor.ts";

/** Something removed by calling it. */
export type HookHandle = () => void;

/** All tensors in a value: itself, or in arrays and plain objects of any depth. */
export function collectTensors(value: unknown, into: Tensor[] = []): Tensor[] {
  if (value instanceof Tensor) into.push(value);
  else if (Array.isArray(value)) { for (const item of value) collectTensors(item, into); }
  else if (typeof value === "object" && value !== null && Object.getPrototypeOf(value) === Object.prototype) {
    for (const item of Object.values(value)) collectTensors(item, into);
  }
  return into;
}

/** A part of a model. `Args` and `Out` are what its forward takes and gives. */
export abstract class Module<Args extends readonly unknown[] = readonly unknown[], Out = unknown> {
  readonly #preHooks = new Set<(args: readonly unknown[]) => void>();
  readonly #hooks = new Set<(args: readonly unknown[], output: unknown) => void>();

  /** What it computes. Call the module by {@link call}, so that hooks run. */
  abstract forward(...args: Args): Out;

  /** Runs hooks and forward. */
  call(...args: Args): Out {
    using frame = scope();
    for (const hook of this.#preHooks) hook(args);
    const output = this.forward(...args);
    for (const hook of this.#hooks) hook(args, output);
    frame.keep(...collectTensors(output));
    return output;
  }

  /** Runs `hook` before each forward. */
  registerForwardPreHook(hook: (args: readonly unknown[]) => void): HookHandle {
    this.#preHooks.add(hook);
    return () => void this.#preHooks.delete(hook);
  }

  /** Runs `hook` after each forward. */
  registerForwardHook(hook: (args: readonly unknown[], output: unknown) => void): HookHandle {
    this.#hooks.add(hook);
    return () => void this.#hooks.delete(hook);
  }

  /** Parameters and modules right below this one, by name; a list gives one entry an item. */
  *children(): Generator<readonly [name: string, child: Module | Parameter]> {
    const fields: readonly (readonly [string, unknown])[] = Object.entries(this);
    for (const [field, value] of fields) {
      const name = this.nameOf(field);
      if (value instanceof Module || value instanceof Parameter) yield [name, value];
      else if (Array.isArray(value)) {
        for (const [i, item] of value.entries()) {
          if (item instanceof Module || item instanceof Parameter) yield [`${name}.${i}`, item];
        }
      }
    }
  }

  /** A field's name in FQNs: snake_case of the field, unless a subclass says otherwise. */
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
      if (child instanceof Module) yield* child.namedModules(prefix === "" ? name : `${prefix}.${name}`, seen);
    }
  }

  /** All parameters with their names, in the order of the fields. A tied parameter comes once, by its first name. */
  *namedParameters(): Generator<readonly [name: string, parameter: Parameter]> {
    const seen = new Set<Parameter>();
    for (const [path, module] of this.namedModules()) {
      for (const [name, child] of module.children()) {
        if (!(child instanceof Parameter) || seen.has(child)) continue;
        seen.add(child);
        yield [path === "" ? name : `${path}.${name}`, child];
      }
    }
  }

  /** All parameters. */
  *parameters(): Generator<Parameter> {
    for (const [, parameter] of this.namedParameters()) yield parameter;
  }

  /** Drops all gradients. */
  zeroGrad(): void {
    for (const parameter of this.parameters()) parameter.zeroGrad();
  }
}

/**
 * Names the parameters below `root`, unless they all have names: a part of a model that was named as a whole keeps those, so
 * that its first values and its checkpoints do not depend on where it is looked at from.
 */
export function ensureNames(root: Module): void {
  for (const parameter of root.parameters()) if (!parameter.named) return nameParameters(root);
}

/** Tells every parameter below `root` its FQN. */
export function nameParameters(root: Module): void {
  const names = new Set<string>();
  for (const [name, parameter] of root.namedParameters()) {
    if (names.has(name)) {
      throw new ArgumentError(`Two parameters are named '${name}': fields become snake_case, so rename one`);
    }
    names.add(name);
    parameter.rename(name);
  }
}

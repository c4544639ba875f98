/**
 * Lists and dictionaries of modules, for models that want to hand them around; a field that is an array or a plain object
 * does as well.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import { Module } from "./module.ts";

/** Modules that are held together and called one by one. It has no forward, so it is no unit of its own. */
export abstract class ModuleContainer extends Module<[], never> {
  /**
   * Refuses: its modules are called one by one.
   *
   * @throws {ArgumentError} always
   */
  forward(): never {
    throw new ArgumentError(`${this.constructor.name} has no forward: call the modules in it`);
  }
}

/** Modules by place, named `0`, `1`, … */
export class ModuleList<M extends Module> extends ModuleContainer implements Iterable<M> {
  readonly #modules: M[];

  /** Holds the modules in their order. */
  constructor(modules: Iterable<M> = []) {
    super();
    this.#modules = [...modules];
  }

  /** Number of modules. */
  get length(): number {
    return this.#modules.length;
  }

  /** The module at a place, counted from the end where negative; undefined where there is none. */
  at(index: number): M | undefined {
    return this.#modules.at(index);
  }

  /** Adds one at the end. */
  push(module: M): void {
    this.#modules.push(module);
  }

  /** The modules in order. */
  [Symbol.iterator](): Iterator<M> {
    return this.#modules[Symbol.iterator]();
  }

  /** The modules by their places. */
  override *children(): Generator<readonly [name: string, child: Module]> {
    for (const [i, module] of this.#modules.entries()) yield [String(i), module];
  }
}

/** Modules by name. */
export class ModuleDict<M extends Module> extends ModuleContainer implements Iterable<readonly [string, M]> {
  readonly #modules: Map<string, M>;

  /** Holds the modules by their names. */
  constructor(modules: Readonly<Record<string, M>> = {}) {
    super();
    this.#modules = new Map(Object.entries(modules));
  }

  /** The module of that name; undefined where there is none. */
  get(name: string): M | undefined {
    return this.#modules.get(name);
  }

  /** Names and modules in order. */
  [Symbol.iterator](): Iterator<readonly [string, M]> {
    return this.#modules[Symbol.iterator]();
  }

  /** The modules by their names. */
  override *children(): Generator<readonly [name: string, child: Module]> {
    yield* this.#modules;
  }
}

/**
 * Search inside values: the modules and parameters in a module's fields, and the tensors in a forward's inputs and outputs.
 * Arrays and plain objects are searched to any depth; parts in any other value would be lost silently, so it is refused by name.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import { Tensor } from "../tensor/tensor.ts";

function isRecord(value: object): boolean {
  const prototype: unknown = Object.getPrototypeOf(value);
  return prototype === Object.prototype || prototype === null;
}

/**
 * The parts in a field's value, by name.
 *
 * @param isPart true for parts of a module's tree
 * @throws {ArgumentError} for a Map, a Set or an object of a class that holds parts
 */
export function* partsIn<P extends object>(
  name: string,
  value: unknown,
  isPart: (value: unknown) => value is P,
): Generator<readonly [name: string, part: P]> {
  if (isPart(value)) yield [name, value];
  else if (typeof value !== "object" || value === null || ArrayBuffer.isView(value)) return;
  else if (Array.isArray(value)) {
    for (const [i, item] of value.entries()) {
      yield* partsIn(`${name}.${i}`, item, isPart);
    }
  } else if (isRecord(value)) {
    for (const [key, item] of Object.entries(value)) yield* partsIn(`${name}.${key}`, item, isPart);
  } else {
    const inside: readonly unknown[] = value instanceof Map || value instanceof Set
      ? [...value.values()]
      : Object.values(value);
    if (inside.some(isPart)) throw new ArgumentError(hidden(name, value));
  }
}

function hidden(name: string, value: object): string {
  return `Field '${name}' is a ${value.constructor.name}, whose modules and parameters are not part of the model: put them in a ` +
    "field, an array, a plain object, a ModuleList or a ModuleDict";
}

/**
 * All tensors in a value.
 *
 * @param opaque called with each object that cannot be looked into
 */
export function tensorsIn(value: unknown, opaque: (value: object) => void = () => {}, into: Tensor[] = []): Tensor[] {
  if (value instanceof Tensor) into.push(value);
  else if (typeof value !== "object" || value === null || ArrayBuffer.isView(value)) return into;
  else if (Array.isArray(value)) { for (const item of value) tensorsIn(item, opaque, into); }
  else if (isRecord(value)) { for (const item of Object.values(value)) tensorsIn(item, opaque, into); }
  else opaque(value);
  return into;
}

/**
 * A value with every tensor in it replaced; what holds none that changes is given back as it is. Arrays and plain objects are
 * looked into, nothing else.
 */
export function mapTensors<T>(value: T, map: (tensor: Tensor) => Tensor): T;
export function mapTensors(value: unknown, map: (tensor: Tensor) => Tensor): unknown {
  if (value instanceof Tensor) return map(value);
  if (typeof value !== "object" || value === null || ArrayBuffer.isView(value)) return value;
  if (!Array.isArray(value) && !isRecord(value)) return value;
  const before = Object.entries(value);
  const after = before.map(([key, item]) => [key, mapTensors(item, map)] as const);
  if (after.every(([, item], i) => item === before[i]?.[1])) return value;
  return Array.isArray(value) ? after.map(([, item]) => item) : Object.fromEntries(after);
}

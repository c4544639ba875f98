/**
 * Parameters that a caller gives as a list.
 *
 * @module
 */
import { ArgumentError } from "../errors.ts";
import { valueText } from "../words.ts";
import { Parameter } from "./parameter.ts";

/**
 * The parameters of a list, which is read once.
 *
 * @param what is not done, e.g. `clip gradients`
 * @throws {ArgumentError} if it is no list, or holds anything but parameters
 */
export function parameterList(what: string, given: Iterable<Parameter>): readonly Parameter[] {
  const parameters: readonly unknown[] = [...requireIterable(what, given)];
  const isParameter = (item: unknown): item is Parameter => item instanceof Parameter;
  if (parameters.every(isParameter)) return parameters;
  const [other] = parameters.filter((item) => !isParameter(item));
  throw new ArgumentError(`Cannot ${what} of ${valueText(other)}: expected parameters, e.g. model.parameters()`);
}

/**
 * The list itself, if it is one.
 *
 * @param what is not done, e.g. `optimize`
 * @throws {ArgumentError} if it cannot be iterated, as a module
 */
export function requireIterable<T>(what: string, given: Iterable<T>): Iterable<T> {
  if (typeof given === "object" && given !== null && Symbol.iterator in given) return given;
  throw new ArgumentError(
    `Cannot ${what} of ${valueText(given)}: expected a list of parameters, e.g. model.parameters()`,
  );
}

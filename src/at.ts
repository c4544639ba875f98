/**
 * Places in lists. Access is checked, so that a missing element is an error with a name and never a value that was made up.
 *
 * @module
 */
import { InternalError } from "./errors.ts";

/**
 * An element that must be there.
 *
 * @param what what the list holds, e.g. `run of rank`
 * @throws {InternalError} naming it, if it is not there
 */
export function at<T>(list: { readonly [index: number]: T; readonly length: number }, index: number, what: string): T {
  const value = list[index];
  if (value === undefined) throw new InternalError(`no ${what} ${index} among ${list.length}`);
  return value;
}

/** The first place in a list, sorted by it, of an element that does not come before; its length where there is none. */
export function placeAfter<T>(list: readonly T[], comesBefore: (element: T) => boolean): number {
  let [low, high] = [0, list.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (comesBefore(at(list, middle, "element"))) low = middle + 1;
    else high = middle;
  }
  return low;
}

/**
 * Things of ranks that are made at their first use: a rank of thousands uses those of a few others.
 *
 * @module
 */

/** Makes the thing of an index at its first use, and gives the same one from then on. */
export function lazily<T>(make: (index: number) => T): (index: number) => T {
  const made: T[] = []; // waits look these up, and an array is faster than a map
  return (index) => made[index] ??= make(index);
}

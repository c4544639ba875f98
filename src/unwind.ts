/**
 * Steps that are all taken, even if some throw. The first error counts: it says what went wrong, and the others often follow from
 * it.
 *
 * @module
 */

/** Takes each step; what a step throws is dropped, since an earlier error is about to be thrown. */
export function unwind(steps: Iterable<() => void>): void {
  for (const step of steps) {
    try {
      step();
    } catch {
      // What is undone follows from an error that the caller throws.
    }
  }
}

/** Takes each step, and throws the first error then, if there was one. */
export function takeAll(steps: Iterable<() => void>): void {
  const errors: unknown[] = [];
  for (const step of steps) {
    try {
      step();
    } catch (error) {
      errors.push(error);
    }
  }
  if (errors.length > 0) throw errors[0];
}

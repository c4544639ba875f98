/**
 * Undoing after an error: all steps are taken, whatever one of them throws. The caller throws the error that came first, as it says
 * what went wrong.
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

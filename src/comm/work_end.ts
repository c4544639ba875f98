/**
 * The end of a call whose work goes on after it: when the work is waited for.
 *
 * @module
 */
import type { Work } from "./data_plane.ts";

/**
 * Begins work and disposes `end` once: in the first `wait()`, or when the work cannot be begun.
 *
 * @param end disposed at the end of the work; undefined if nothing is to be done then
 */
export function endingWith(end: Disposable | undefined, begin: () => Work): Work {
  if (end === undefined) return begin();
  const atEnd = new DisposableStack();
  atEnd.use(end);
  try {
    const work = begin();
    return {
      advance: () => work.advance?.(),
      wait(): void {
        try {
          work.wait();
        } finally {
          atEnd.dispose();
        }
      },
    };
  } catch (error) {
    atEnd.dispose();
    throw error;
  }
}

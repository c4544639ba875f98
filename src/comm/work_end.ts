/**
 * The end of a call whose work goes on after it: when the work is waited for.
 *
 * @module
 */
import type { Work } from "./data_plane.ts";

/**
 * Begins work that tells its end once: in the first `wait()`, or when it cannot be begun.
 *
 * @param end tells it; undefined if nobody listens
 */
export function endingWith(end: Disposable | undefined, begin: () => Work): Work {
  if (end === undefined) return begin();
  const told = new DisposableStack();
  told.use(end);
  try {
    const work = begin();
    return {
      advance: () => work.advance?.(),
      wait(): void {
        try {
          work.wait();
        } finally {
          told.dispose();
        }
      },
    };
  } catch (error) {
    told.dispose();
    throw error;
  }
}

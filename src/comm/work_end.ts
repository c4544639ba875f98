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
      endsInWait: true,
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

/**
 * Begins work that reads or writes `memory`, and disposes that at once, or in the first `wait()` where the work goes on until then
 * ({@link Work.endsInWait}).
 */
export function keepingUntilEnd(memory: Disposable | undefined, begin: () => Work): Work {
  if (memory === undefined) return begin();
  using kept = new DisposableStack();
  kept.use(memory);
  const work = begin();
  if (work.endsInWait !== true) return work;
  const end = kept.move();
  return endingWith(end, () => work);
}

/**
 * The end of a call, whose work may go on after it.
 *
 * @module
 */
import type { Work } from "./data_plane.ts";

/**
 * Begins work and disposes `end` once: when the work cannot be begun; in the first `wait()` of work that goes on until then ({@link
 * Work.endsInWait}); else as soon as it is begun.
 *
 * @param end disposed at the end of the work; undefined if nothing is to be done then
 */
export function endingWith(end: Disposable | undefined, begin: () => Work): Work {
  if (end === undefined) return begin();
  using begun = new DisposableStack();
  begun.use(end);
  const work = begin();
  if (work.endsInWait !== true) return work;
  const atEnd = begun.move();
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
}

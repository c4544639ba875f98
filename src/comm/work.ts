/**
 * The handle of one enqueued collective.
 *
 * @module
 */

/** One collective under way. On the CPU transports it has finished when the call returns. */
export interface Work {
  /** Whether it has finished. */
  readonly done: boolean;
  /** Orders all later work of this rank after it: a stream wait on a GPU, a blocking wait on the CPU. */
  wait(): void;
}

/** The handle of a collective that has finished already. */
export const FINISHED: Work = { done: true, wait(): void {} };

/**
 * Graphs: work that a device takes down once instead of doing it, and then does as often as it is told to by one call. What the
 * host decides meanwhile is decided for good; what varies from time to time must lie in device memory.
 *
 * @module
 */

/** Why a capture allows no reads, as nothing of it is done yet. */
export const WAITED =
  "the host reads a value or waits for the card in it, before anything is computed; do so after a launch";
/** Why it allows no copies from the host. */
export const COPIED_IN = "values of the host are copied to the card in it, which would be the same whenever it is done";

/** What work takes that is to be captured, as one run of it has shown. */
export interface GraphPlan<T> {
  /** What the run gave. */
  readonly value: T;
  /** Bytes for everything that the work allocates. */
  readonly bytes: number;
}

/** Captured work. It keeps the memory that the work allocated, so addresses in it are right whenever it is done. */
export interface DeviceGraph extends Disposable {
  /** Bytes that it keeps. */
  readonly bytes: number;
  /** Does the work, after all that was enqueued on any stream and before all that will be. Waits for nothing. */
  launch(): void;
  /** Gives back its memory, or what of it is still in use when that is freed. Nothing of it may be under way. */
  [Symbol.dispose](): void;
}

/** Captures work of one device. */
export interface DeviceGraphs {
  /** Whether work is being captured: nothing is done then, and nothing may be read. */
  readonly isCapturing: boolean;
  /**
   * Refuses what a capture does not allow.
   *
   * @param does what is done, and what to do instead
   * @throws {GraphCaptureError} if work is being captured
   */
  refuse(does: string): void;
  /** Does work as usual, and counts the memory that it would take in a graph: what it allocates and what of it can be used again. */
  rehearse<T>(work: () => T): GraphPlan<T>;
  /**
   * Captures work that has been rehearsed, and gives what it gave; nothing of it is done before the graph is launched. What has to
   * be compiled or chosen for the work must have been before.
   *
   * @param what what is captured, for messages, e.g. `a training step`
   * @throws {GraphCaptureError} if the work does what cannot be captured, or the device refuses the capture
   */
  capture<T>(what: string, plan: GraphPlan<unknown>, work: () => T): { readonly graph: DeviceGraph; readonly value: T };
  /** Does something when the graph is dropped that is being captured now. */
  afterGraph(end: () => void): void;
  /** Sets the sample that kernels in graphs count from: the first one of the step to come, in the place of the captured one's. */
  setFirstSample(sample: number): void;
}

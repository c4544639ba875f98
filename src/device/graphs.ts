/**
 * Graphs: work that a device records once, without doing it, and then does by one launch as often as wanted. Decisions of the
 * host during the capture stay; values that vary between launches must lie in device memory.
 *
 * @module
 */
import { InternalError } from "../errors.ts";

/** Reason why a capture refuses reads: none of the captured work is done yet. */
export const WAITED = "the captured work reads a value on the host, or waits for the card; do so after the launch";
/** Reason why a capture refuses copies from the host. */
export const COPIED_IN = "the captured work copies host values to the card; every launch would use the same values";

/** Result and memory of work that was done once before its capture. */
export interface GraphPlan<T> {
  /** Result of the work. */
  readonly value: T;
  /** Bytes of everything that the work allocates. */
  readonly bytes: number;
}

/** Captured work. It keeps the memory that the work allocated, so its addresses are valid in each launch. */
export interface DeviceGraph extends Disposable {
  /** Bytes of its memory. */
  readonly bytes: number;
  /** False once memory that it uses was freed: it may not be launched again. */
  readonly isUsable: boolean;
  /** Does the host's work of the next launch. See {@link HostWork.perLaunch}. */
  prepare(): void;
  /** Does the work, after all work enqueued before on any stream, and before all work enqueued later. Never waits. */
  launch(): void;
  /** Frees its memory; parts still in use are freed with their last user. No launch may be under way. */
  [Symbol.dispose](): void;
}

/** Host work beside the device work that it enqueues, which may be under capture. */
export interface HostWork {
  /** True while work is captured: nothing is done then, and no value may be read. */
  readonly isCapturing: boolean;
  /**
   * Refuses an action that a capture does not allow.
   *
   * @param does the action, and the alternative
   * @throws {GraphCaptureError} if work is being captured
   */
  refuse(does: string): void;
  /**
   * Does work of the host that belongs to each time that the enqueued work is done: at once; if work is captured, before each
   * launch of the graph instead.
   *
   * @returns its disposal says that memory which the captured work uses was freed; undefined if nothing is captured
   */
  perLaunch(work: () => void): Disposable | undefined;
  /** Calls `end` when the graph that is being captured is dropped. */
  afterGraph(end: () => void): void;
}

/** The host's work beside a device that captures nothing. */
export const NO_GRAPHS: HostWork = {
  isCapturing: false,
  refuse(): void {},
  perLaunch(work): undefined {
    work();
  },
  afterGraph(): void {
    throw new InternalError("a device without graphs captures nothing");
  },
};

/** Captures work of one device. */
export interface DeviceGraphs {
  /** Does work as usual, and counts the memory that it would need in a graph, with reuse. */
  rehearse<T>(work: () => T): GraphPlan<T>;
  /**
   * Captures work that was rehearsed, and returns its result; the work is done at the first launch. Kernels and plans that the
   * work needs must have been compiled and chosen before.
   *
   * @param what name of the work, for messages, e.g. `a training step`
   * @throws {GraphCaptureError} if the work cannot be captured, or the device refuses the capture
   */
  capture<T>(what: string, plan: GraphPlan<unknown>, work: () => T): { readonly graph: DeviceGraph; readonly value: T };
  /** Sets the sample number from which kernels in graphs count: the first of the coming step, in place of the captured step's. */
  setFirstSample(sample: number): void;
}

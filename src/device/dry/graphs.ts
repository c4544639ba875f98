/**
 * Graphs of a dry device: a capture does the work in the memory that a graph would have, and a launch does nothing.
 *
 * @module
 */
import { GraphCaptureError } from "../../errors.ts";
import type { GraphAllocator } from "../graph_allocator.ts";
import type { DeviceGraph, DeviceGraphs, GraphPlan } from "../graphs.ts";
import { STREAMS, type Streams } from "../stream.ts";

export class DryGraphs implements DeviceGraphs {
  readonly #allocator: GraphAllocator;
  readonly #streams: Streams;
  /** Name of the work that is captured. */
  #what: string | undefined;

  constructor(allocator: GraphAllocator, streams: Streams) {
    this.#allocator = allocator;
    this.#streams = streams;
  }

  get isCapturing(): boolean {
    return this.#what !== undefined;
  }

  refuse(does: string): void {
    if (this.#what !== undefined) throw new GraphCaptureError(this.#what, does);
  }

  rehearse<T>(work: () => T): GraphPlan<T> {
    return this.#allocator.rehearse(work);
  }

  capture<T>(what: string, { bytes }: GraphPlan<unknown>, work: () => T): { graph: DeviceGraph; value: T } {
    this.refuse("another capture begins in it");
    const memory = this.#allocator.openGraph(bytes);
    const [origin, ...others] = STREAMS.map((name) => this.#streams.get(name));
    this.#what = what;
    try {
      const begin = origin?.record();
      for (const stream of others) if (begin !== undefined) stream.wait(begin);
      const value = memory.capture(work);
      for (const stream of others) origin?.wait(stream.record());
      return { graph: { bytes, launch: () => {}, [Symbol.dispose]: memory.close }, value };
    } catch (error) {
      memory.close();
      throw error;
    } finally {
      this.#what = undefined;
    }
  }

  afterGraph(end: () => void): void {
    this.#allocator.afterGraph(end);
  }

  setFirstSample(): void {}
}

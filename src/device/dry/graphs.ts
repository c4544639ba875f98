/**
 * Graphs of a dry device: a capture does the work in the memory that a graph would have, and a launch does nothing.
 *
 * @module
 */
import type { GraphAllocator } from "../graph_allocator.ts";
import { GraphCapture } from "../graph_capture.ts";
import type { DeviceGraph, DeviceGraphs, GraphPlan } from "../graphs.ts";
import { STREAMS, type Streams } from "../stream.ts";

export class DryGraphs implements DeviceGraphs {
  /** The capture under way, as host code sees it. */
  readonly hostWork: GraphCapture;
  readonly #allocator: GraphAllocator;
  readonly #streams: Streams;

  constructor(allocator: GraphAllocator, streams: Streams) {
    this.#allocator = allocator;
    this.#streams = streams;
    this.hostWork = new GraphCapture((end) => allocator.afterGraph(end));
  }

  rehearse<T>(work: () => T): GraphPlan<T> {
    return this.#allocator.rehearse(work);
  }

  capture<T>(what: string, { bytes }: GraphPlan<unknown>, work: () => T): { graph: DeviceGraph; value: T } {
    this.hostWork.refuse("another capture begins in it");
    const memory = this.#allocator.openGraph(bytes);
    const [origin, ...others] = STREAMS.map((name) => this.#streams.get(name));
    const host = this.hostWork.begin(what);
    try {
      const begin = origin?.record();
      for (const stream of others) if (begin !== undefined) stream.wait(begin);
      const value = memory.capture(work);
      for (const stream of others) origin?.wait(stream.record());
      const graph = {
        ...{ bytes, launch: () => {}, prepare: () => host.prepare(), [Symbol.dispose]: memory.close },
        get isUsable(): boolean {
          return host.isUsable;
        },
      };
      return { graph, value };
    } catch (error) {
      memory.close();
      throw error;
    } finally {
      this.hostWork.end();
    }
  }

  setFirstSample(): void {}
}

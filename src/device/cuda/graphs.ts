/**
 * CUDA graphs: the work of all streams of a card, recorded by stream capture, with NCCL's collectives.
 *
 * The capture begins on the compute stream; each other stream joins it by an event, and returns to it by another event. Meanwhile
 * only calls of this thread are refused, because NCCL may prepare a call on its own thread. A launch comes after all streams and
 * before all later work, so no event leads into a graph or out of it.
 *
 * @module
 */
import { GraphCaptureError, NativeError } from "../../errors.ts";
import { CUDART_CONSTANTS } from "../../ffi/bindings/cudart.ts";
import type { Out } from "../../ffi/types.ts";
import type { DeviceGraph, DeviceGraphs, GraphPlan } from "../graphs.ts";
import type { CudaAllocator } from "./allocator.ts";
import type { Cudart } from "./libraries.ts";
import type { CudaStream } from "./streams.ts";

export interface GraphParts {
  readonly cudart: Cudart;
  readonly allocator: CudaAllocator;
  /** The stream that launches graphs. */
  readonly origin: CudaStream;
  readonly others: readonly CudaStream[];
  /** Waits for all streams. */
  readonly synchronize: () => void;
  /** Writes the number of the first sample from which kernels in graphs count. */
  readonly writeFirstSample: (sample: number) => void;
}

export class CudaGraphs implements DeviceGraphs {
  readonly #parts: GraphParts;
  /** Name of the work that is captured. */
  #what: string | undefined;
  /** First sample of the next launch, and the number that lies on the card. */
  #firstSample = 0;
  #written = 0;

  constructor(parts: GraphParts) {
    this.#parts = parts;
  }

  get isCapturing(): boolean {
    return this.#what !== undefined;
  }

  /** The number that the card adds to the sample numbers of kernels enqueued now. */
  get sampleBase(): number {
    return this.#what === undefined ? this.#written : this.#firstSample;
  }

  /**
   * Refuses an action that a capture does not allow.
   *
   * @param does the action, e.g. `a value is read`
   * @throws {GraphCaptureError} if work is being captured
   */
  refuse(does: string): void {
    if (this.#what !== undefined) throw new GraphCaptureError(this.#what, does);
  }

  setFirstSample(sample: number): void {
    this.#firstSample = sample;
  }

  afterGraph(end: () => void): void {
    this.#parts.allocator.afterGraph(end);
  }

  rehearse<T>(work: () => T): GraphPlan<T> {
    return this.#parts.allocator.rehearse(work);
  }

  capture<T>(what: string, { bytes }: GraphPlan<unknown>, work: () => T): { graph: DeviceGraph; value: T } {
    this.refuse("another capture begins in it");
    const { cudart: { symbols, provider }, allocator, origin, synchronize } = this.#parts;
    synchronize();
    const memory = allocator.openGraph(bytes);
    const graph = provider.out("cudaGraph_t");
    try {
      const value = this.#take(what, graph, () => memory.capture(work));
      const exec = provider.out("cudaGraphExec_t");
      symbols.cudaGraphInstantiate(exec, graph.value, 0);
      symbols.cudaGraphDestroy(graph.value);
      const close = (): void => {
        symbols.cudaGraphExecDestroy(exec.value);
        memory.close();
      };
      return { graph: this.#made(bytes, () => symbols.cudaGraphLaunch(exec.value, origin.handle), close), value };
    } catch (error) {
      memory.close();
      if (!(error instanceof NativeError)) throw error;
      const remedy = "Train without CUDA graphs (cudaGraphs: false)";
      throw new GraphCaptureError(what, `${error.message}. ${remedy}`, { cause: error });
    }
  }

  /** Captures what `work` enqueues. A capture that fails is ended. */
  #take<T>(what: string, graph: Out<"cudaGraph_t">, work: () => T): T {
    const { cudart: { symbols }, origin, others } = this.#parts;
    const streams = [origin, ...others];
    symbols.cudaStreamBeginCapture(origin.handle, CUDART_CONSTANTS.cudaStreamCaptureModeThreadLocal);
    this.#what = what;
    for (const stream of streams) stream.beginCapture();
    const end = (): void => {
      this.#what = undefined;
      try {
        symbols.cudaStreamEndCapture(origin.handle, graph);
      } finally {
        for (const stream of streams) stream.renewFence();
      }
    };
    let value: T;
    try {
      const begin = origin.record();
      for (const stream of others) stream.wait(begin);
      value = work();
      for (const stream of others) origin.wait(stream.record());
    } catch (error) {
      try {
        end();
        symbols.cudaGraphDestroy(graph.value);
      } catch (again) {
        if (!(again instanceof NativeError)) throw again; // the first error says more
      }
      throw error;
    }
    end();
    return value;
  }

  #made(bytes: number, launch: () => void, close: () => void): DeviceGraph {
    const { origin, others, writeFirstSample } = this.#parts;
    let isClosed = false;
    return {
      bytes,
      launch: () => {
        this.refuse("a graph is launched in it");
        if (this.#firstSample !== this.#written) writeFirstSample(this.#firstSample);
        this.#written = this.#firstSample;
        for (const stream of others) origin.wait(stream.record());
        launch();
        const end = origin.record();
        for (const stream of others) stream.wait(end);
        for (const stream of [origin, ...others]) stream.renewFence();
      },
      [Symbol.dispose]: () => {
        if (isClosed) return;
        isClosed = true;
        close();
      },
    };
  }
}

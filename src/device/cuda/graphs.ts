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
import { GraphCapture, type LaunchWork } from "../graph_capture.ts";
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
  /** The capture under way, as host code sees it. */
  readonly hostWork: GraphCapture;
  readonly #parts: GraphParts;
  /** First sample of the next launch, and the number that lies on the card. */
  #firstSample = 0;
  #written = 0;

  constructor(parts: GraphParts) {
    this.#parts = parts;
    this.hostWork = new GraphCapture((end) => parts.allocator.afterGraph(end));
  }

  /** The number that the card adds to the sample numbers of kernels enqueued now. */
  get sampleBase(): number {
    return this.hostWork.isCapturing ? this.#firstSample : this.#written;
  }

  setFirstSample(sample: number): void {
    this.#firstSample = sample;
  }

  rehearse<T>(work: () => T): GraphPlan<T> {
    return this.#parts.allocator.rehearse(work);
  }

  capture<T>(what: string, { bytes }: GraphPlan<unknown>, work: () => T): { graph: DeviceGraph; value: T } {
    this.hostWork.refuse("another capture begins in it");
    const { cudart: { symbols, provider }, allocator, origin, synchronize } = this.#parts;
    synchronize();
    const memory = allocator.openGraph(bytes);
    const graph = provider.out("cudaGraph_t");
    try {
      const { value, host } = this.#take(what, graph, () => memory.capture(work));
      const exec = provider.out("cudaGraphExec_t");
      symbols.cudaGraphInstantiate(exec, graph.value, 0);
      symbols.cudaGraphDestroy(graph.value);
      const close = (): void => {
        symbols.cudaGraphExecDestroy(exec.value);
        memory.close();
      };
      const launch = (): void => symbols.cudaGraphLaunch(exec.value, origin.handle);
      return { graph: this.#made(bytes, host, launch, close), value };
    } catch (error) {
      memory.close();
      if (!(error instanceof NativeError)) throw error;
      const remedy = "Train without CUDA graphs (cudaGraphs: false)";
      throw new GraphCaptureError(what, `${error.message}. ${remedy}`, { cause: error });
    }
  }

  /** Captures what `work` enqueues. A capture that fails is ended. */
  #take<T>(what: string, graph: Out<"cudaGraph_t">, work: () => T): { readonly value: T; readonly host: LaunchWork } {
    const { cudart: { symbols }, origin, others } = this.#parts;
    const streams = [origin, ...others];
    symbols.cudaStreamBeginCapture(origin.handle, CUDART_CONSTANTS.cudaStreamCaptureModeThreadLocal);
    const host = this.hostWork.begin(what);
    for (const stream of streams) stream.beginCapture();
    const end = (): void => {
      this.hostWork.end();
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
    return { value, host };
  }

  #made(bytes: number, host: LaunchWork, launch: () => void, close: () => void): DeviceGraph {
    const { origin, others, writeFirstSample } = this.#parts;
    let isClosed = false;
    return {
      bytes,
      get isUsable(): boolean {
        return host.isUsable;
      },
      prepare: () => host.prepare(),
      launch: () => {
        this.hostWork.refuse("a graph is launched in it");
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

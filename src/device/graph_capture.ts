/**
 * The capture under way on a device, with what the host does for each launch of its graph.
 *
 * @module
 */
import { GraphCaptureError } from "../errors.ts";
import type { HostWork } from "./graphs.ts";

/** The host's part of one graph. */
export interface LaunchWork {
  /** False once memory that the graph uses was freed. */
  readonly isUsable: boolean;
  /** Does the host's work of a launch, in the order of the capture. */
  prepare(): void;
}

/** The host's part of a graph, as a capture collects it. */
class CapturedWork implements LaunchWork {
  isUsable = true;
  readonly #calls: (() => void)[] = [];

  add(work: () => void): Disposable {
    this.#calls.push(work);
    return { [Symbol.dispose]: () => void (this.isUsable = false) };
  }

  prepare(): void {
    for (const call of this.#calls) call();
  }
}

/** Captures of one device, one at a time. */
export class GraphCapture implements HostWork {
  readonly #afterGraph: (end: () => void) => void;
  #current: { readonly what: string; readonly work: CapturedWork } | undefined;

  /** No capture yet. @param afterGraph calls a function when the memory of the captured graph is closed */
  constructor(afterGraph: (end: () => void) => void) {
    this.#afterGraph = afterGraph;
  }

  get isCapturing(): boolean {
    return this.#current !== undefined;
  }

  refuse(does: string): void {
    if (this.#current !== undefined) throw new GraphCaptureError(this.#current.what, does);
  }

  perLaunch(work: () => void): Disposable | undefined {
    if (this.#current !== undefined) return this.#current.work.add(work);
    work();
    return undefined;
  }

  afterGraph(end: () => void): void {
    this.#afterGraph(end);
  }

  /** Begins a capture. @param what name of the work, for messages */
  begin(what: string): LaunchWork {
    const work = new CapturedWork();
    this.#current = { what, work };
    return work;
  }

  /** Ends the capture. */
  end(): void {
    this.#current = undefined;
  }
}

/**
 * The graph of recorded operations. A node knows the edges to the nodes (or leaves) that its inputs came from and how to
 * turn gradients of its outputs into gradients of its inputs. Nodes are counted: one reference for each tensor and each
 * later node that leads here; when none is left, or after its backward has run, it lets go of what it saved.
 *
 * @module
 */
import type { DType } from "../dtype.ts";
import { UseAfterDisposeError } from "../errors.ts";
import type { Shape } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { SavedTensors } from "./saved.ts";

/** Where gradients of one leaf go. All tensors handed over are owned by the receiver. */
export interface GradientSink {
  /** The dtype that the gradient is summed in; undefined where that is the leaf's own. */
  readonly dtype: DType | undefined;
  /** The place that a first contribution may be written to directly, or undefined. The caller owns the handle. */
  place(): Tensor | undefined;
  /** Takes one contribution of this backward pass: the tensor from {@link place}, or another one. */
  contribute(grad: Tensor): void;
  /** All contributions of this pass (so far) are in: joins them to those of earlier passes. */
  finish(): void;
  /** The pass failed: drops the gradient, which it may have been added to. */
  clear(): void;
}

/** What one input of a node came from. */
export interface Edge {
  /** The node that made it, or undefined for a leaf. */
  readonly node: Node | undefined;
  /** Which output of that node. */
  readonly index: number;
  /** For a leaf: where its gradient goes. */
  readonly sink: GradientSink | undefined;
  /** Shape of the input, and so of its gradient. */
  readonly shape: Shape;
  /** Dtype of the input, and so of its gradient; see {@link takesDtype}. */
  readonly dtype: DType;
}

/**
 * Whether an edge takes a gradient of dtype `given`:
 * - the dtype of its input, always;
 * - the dtype in which its sink sums, if the input is a leaf.
 */
export function takesDtype({ dtype, sink }: Edge, given: DType): boolean {
  return given === dtype || (sink !== undefined && given === sink.dtype);
}

/** Turns gradients of outputs into gradients of inputs; the returned handles are the caller's. */
export type BackwardFunction = (
  grads: readonly (Tensor | undefined)[],
  place: (input: number) => Tensor | undefined,
) => (Tensor | undefined)[];

let nextSequence = 0;

/** One recorded operation. */
export class Node {
  /** Position in the order of recording; a backward pass runs from high to low. */
  readonly sequence: number;
  readonly name: string;
  /** Per input; undefined where no gradient is needed. */
  readonly edges: readonly (Edge | undefined)[];
  readonly numOutputs: number;
  #backward: BackwardFunction | undefined;
  #saved: SavedTensors | undefined;
  #refs = 0;
  readonly #onFreed: (() => void) | undefined;

  /**
   * @param name the op, or what a hook hangs on, for messages
   * @param edges where the inputs came from
   * @param numOutputs number of outputs
   * @param saved what its backward needs besides gradients
   * @param backward what the pass calls
   * @param onFreed called once, when the node lets go: after its backward, or because nothing leads to it any more
   */
  constructor(
    name: string,
    edges: readonly (Edge | undefined)[],
    numOutputs: number,
    saved: SavedTensors | undefined,
    backward: BackwardFunction,
    onFreed?: () => void,
  ) {
    this.sequence = nextSequence++;
    this.name = name;
    this.edges = edges;
    this.numOutputs = numOutputs;
    this.#saved = saved;
    this.#backward = backward;
    this.#onFreed = onFreed;
    for (const edge of edges) edge?.node?.retain();
  }

  /** The name as messages quote it; that of a hook quotes a module already. */
  get title(): string {
    return this.name.includes("'") ? this.name : `'${this.name}'`;
  }

  /** What has memory for the sake of its backward. */
  get held(): readonly Tensor[] {
    return this.#saved?.held() ?? [];
  }

  /** Whether any tensor or node leads here. */
  get isReferenced(): boolean {
    return this.#refs > 0;
  }

  /** One more tensor or node leads here. */
  retain(): void {
    this.#refs++;
  }

  /** One less; without any, nothing can reach the node any more. */
  release(): void {
    this.#refs--;
    if (this.#refs === 0) this.free();
  }

  /** Runs the backward, until it is freed. */
  run(grads: readonly (Tensor | undefined)[], place: (input: number) => Tensor | undefined): (Tensor | undefined)[] {
    if (this.#backward === undefined) {
      throw new UseAfterDisposeError(
        `The backward of ${this.title} has run already and its saved tensors are freed: add the losses of one forward and run one ` +
          "backward of their sum, give the first one { retainGraph: true }, or run the forward again",
      );
    }
    return this.#backward(grads, place);
  }

  /** Lets go of saved tensors and of the nodes before it; of those that nothing else leads to, in turn. */
  free(): void {
    // A list and not recursion: a graph is as deep as the computation was long.
    const orphans: Node[] = [this];
    for (let node = orphans.pop(); node !== undefined; node = orphans.pop()) node.#letGo(orphans);
  }

  #letGo(orphans: Node[]): void {
    if (this.#backward === undefined) return;
    this.#backward = undefined;
    this.#saved?.free();
    this.#saved = undefined;
    for (const edge of this.edges) {
      const before = edge?.node;
      if (before !== undefined && --before.#refs === 0) orphans.push(before);
    }
    this.#onFreed?.();
  }
}

/**
 * The graph of recorded operations. A node knows the edges to the nodes (or leaves) of its inputs, and how to turn gradients of
 * its outputs into gradients of its inputs. Nodes are counted: one reference for each tensor and each later node that leads here.
 * A node frees its saved tensors when no reference is left, or after its backward.
 *
 * @module
 */
import type { DType } from "../dtype.ts";
import { UseAfterDisposeError } from "../errors.ts";
import type { Shape } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { SavedTensors } from "./saved.ts";

/** The receiver of a leaf's gradients. It takes ownership of all tensors handed over. */
export interface GradientSink {
  /** dtype in which the gradient is summed; undefined if it is the leaf's own. */
  readonly dtype: DType | undefined;
  /** A tensor that the first contribution may be written to directly, or undefined. The caller owns the handle. */
  place(): Tensor | undefined;
  /** Takes one contribution of this backward: the tensor of {@link place}, or a tensor elsewhere. */
  contribute(grad: Tensor): void;
  /** Called when all contributions of this pass so far are in: adds them to the gradient of earlier passes. */
  finish(): void;
  /** Called when the pass failed: drops the gradient, to which it may have been added. */
  clear(): void;
}

/** The origin of a node's input. */
export interface Edge {
  /** The node that made the input; undefined for a leaf. */
  readonly node: Node | undefined;
  /** Index of the input among the outputs of that node. */
  readonly index: number;
  /** For a leaf, the receiver of its gradient. */
  readonly sink: GradientSink | undefined;
  /** Shape of the input, and so of its gradient. */
  readonly shape: Shape;
  /** Dtype of the input, and so of its gradient; see {@link takesDtype}. */
  readonly dtype: DType;
}

/**
 * True if an edge takes a gradient of dtype `given`:
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
  /** Position in the order of recording; a backward pass visits nodes from high to low. */
  readonly sequence: number;
  readonly name: string;
  /** Edge of each input; undefined for inputs that need no gradient. */
  readonly edges: readonly (Edge | undefined)[];
  readonly numOutputs: number;
  #backward: BackwardFunction | undefined;
  #saved: SavedTensors | undefined;
  #refs = 0;
  readonly #onFreed: (() => void) | undefined;

  /**
   * @param name the op, or the purpose of a hook, for messages
   * @param edges origins of the inputs
   * @param numOutputs number of outputs
   * @param saved tensors that the backward needs besides gradients
   * @param backward computes the gradients
   * @param onFreed called once, when the node is freed: after its backward, or when no reference is left
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

  /** The name as messages quote it; the name of a hook has quotes already. */
  get title(): string {
    return this.name.includes("'") ? this.name : `'${this.name}'`;
  }

  /** Tensors that have memory because the backward needs them. */
  get held(): readonly Tensor[] {
    return this.#saved?.held() ?? [];
  }

  /** True if a tensor or a later node leads here. */
  get isReferenced(): boolean {
    return this.#refs > 0;
  }

  /** Adds a reference. */
  retain(): void {
    this.#refs++;
  }

  /** Removes a reference; without any, the node is freed. */
  release(): void {
    this.#refs--;
    if (this.#refs === 0) this.free();
  }

  /** Computes the gradients of the inputs, unless the node was freed. */
  backward(
    grads: readonly (Tensor | undefined)[],
    place: (input: number) => Tensor | undefined,
  ): (Tensor | undefined)[] {
    if (this.#backward === undefined) {
      throw new UseAfterDisposeError(
        `The backward of ${this.title} has run already and its saved tensors are freed: add the losses of one forward and run one ` +
          "backward of their sum, give the first one { retainGraph: true }, or run the forward again",
      );
    }
    return this.#backward(grads, place);
  }

  /** Frees saved tensors, and the nodes before it to which no other reference leads, in turn. */
  free(): void {
    // A list instead of recursion: a graph may be as deep as the computation is long.
    const orphans: Node[] = [this];
    for (let node = orphans.pop(); node !== undefined; node = orphans.pop()) node.#drop(orphans);
  }

  #drop(orphans: Node[]): void {
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

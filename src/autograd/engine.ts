/**
 * The backward pass: visits nodes from the last recorded to the first, and adds gradients where several meet. It knows of tensors
 * only that they can be added, and that a gradient has the dtype and shape of its tensor. A node's inputs were recorded before
 * it, so descending order needs no dependency counts.
 *
 * @module
 */
import { placeAfter } from "../at.ts";
import { ArgumentError, DTypeError, InternalError, ShapeError } from "../errors.ts";
import { sameShape } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { unwind } from "../unwind.ts";
import { type Edge, type GradientSink, type Node, takesDtype } from "./node.ts";

/** A parallelism that reduces gradients at the end of a backward pass. */
export interface PassMember {
  /** Called when all nodes are visited and all sinks are finished. */
  endPass(): void;
  /** Called when the pass failed: clears the gradients to which it may have been added. */
  abandonPass(): void;
}

/** A backward pass under way. */
export interface BackwardPass {
  /** Calls `member` at the end of the pass; members are called in the order in which they first joined. */
  join(member: PassMember): void;
}

let active: BackwardPass | undefined;

/** The pass under way in this thread; undefined if there is none. */
export function activePass(): BackwardPass | undefined {
  return active;
}

/** The sink of an input, unless an earlier input has the same sink: two gradients cannot be written to one place. */
function firstOfItsSink(edges: Node["edges"], input: number): GradientSink | undefined {
  const sink = edges[input]?.sink;
  return edges.findIndex((edge) => edge?.sink === sink) === input ? sink : undefined;
}

/**
 * Refuses a gradient without the dtype and shape of its edge: kernels further back would misread its bytes.
 *
 * @throws {DTypeError | ShapeError} naming the op and the input
 */
function requireFit({ name }: Node, input: number, edge: Edge, grad: Tensor): void {
  const isOfShape = grad.shape === edge.shape || sameShape(grad.shape, edge.shape);
  if (isOfShape && takesDtype(edge, grad.dtype)) return;
  const from = edge.node === undefined ? "a leaf" : `a result of ${edge.node.title}`;
  const expected = `the gradient that it gives its input ${input}, ${from}, must have that input's`;
  if (!takesDtype(edge, grad.dtype)) {
    throw new DTypeError(`${name} backward`, `${expected} dtype`, grad.dtype.name, edge.dtype.name);
  }
  throw new ShapeError(`${name} backward`, `${expected} shape`, grad.shape, edge.shape);
}

/**
 * Makes a backward pass. If the pass fails, it clears all gradients of the leaves that it has reached, also sums of earlier passes.
 *
 * @param root the tensor's edge from which the pass starts
 * @param seed gradient of the root; the pass takes ownership
 * @param retainGraph true if nodes keep their saved tensors for another pass
 */
export function runBackward(root: Edge, seed: Tensor, retainGraph: boolean): void {
  if (active !== undefined) {
    seed.dispose();
    throw new ArgumentError("Cannot run backward inside a backward pass");
  }
  const queue: Node[] = []; // nodes that have received gradients and are not visited yet, highest sequence last
  const waiting = new Map<Node, (Tensor | undefined)[]>();
  const sinks = new Set<GradientSink>();
  const members = new Set<PassMember>();
  let results: (Tensor | undefined)[] = [];
  const deliver = (edge: Edge, grad: Tensor): void => {
    if (edge.sink !== undefined) {
      sinks.add(edge.sink);
      edge.sink.contribute(grad);
    } else if (edge.node !== undefined) {
      let slots = waiting.get(edge.node);
      if (slots === undefined) {
        slots = new Array<Tensor | undefined>(edge.node.numOutputs).fill(undefined);
        waiting.set(edge.node, slots);
        edge.node.retain(); // the node that led here is about to be freed
        const { sequence } = edge.node;
        queue.splice(placeAfter(queue, (waiting) => waiting.sequence < sequence), 0, edge.node);
      }
      const before = slots[edge.index];
      slots[edge.index] = before === undefined ? grad : before.absorb(grad);
    }
  };
  active = { join: (member) => void members.add(member) };
  try {
    results = [seed];
    deliver(root, seed);
    results = [];
    for (let node = queue.pop(); node !== undefined; node = queue.pop()) {
      const current = node;
      const grads = waiting.get(node);
      if (grads === undefined) throw new InternalError(`no gradients wait at ${node.name}`);
      results = node.backward(grads, (input) => firstOfItsSink(current.edges, input)?.place());
      for (const grad of grads) grad?.dispose();
      for (const [input, grad] of results.entries()) {
        const edge = current.edges[input];
        if (grad === undefined) continue;
        if (edge === undefined) grad.dispose();
        else {
          requireFit(current, input, edge, grad);
          deliver(edge, grad);
        }
        results[input] = undefined;
      }
      waiting.delete(node);
      if (!retainGraph) node.free();
      node.release();
    }
    for (const sink of sinks) sink.finish();
    for (const member of members) member.endPass();
  } catch (error) {
    unwind([
      ...results.map((grad) => () => grad?.dispose()),
      ...waiting.values().flatMap((slots) => slots.map((grad) => () => grad?.dispose())),
      ...waiting.keys().map((node) => () => node.release()),
      ...sinks.values().map((sink) => () => sink.clear()),
      ...members.values().map((member) => () => member.abandonPass()),
    ]);
    throw error;
  } finally {
    active = undefined;
  }
}

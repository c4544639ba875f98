/**
 * The path from an op record to a result: check, infer, allocate, launch, record. Tensors that an op makes meanwhile are freed
 * when its call returns; the graph owns the tensors that it saves.
 *
 * @module
 */
import { at } from "../at.ts";
import { gradEnabled } from "../autograd/mode.ts";
import { type BackwardFunction, type Edge, Node, takesDtype } from "../autograd/node.ts";
import { saveInRegion, takeKept } from "../autograd/recompute.ts";
import { KeptTensors, requireUnwritten, type SavedTensors } from "../autograd/saved.ts";
import type { Device } from "../device/device.ts";
import type { DType } from "../dtype.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import { requireTensor } from "../ops/check.ts";
import { copyElements } from "../ops/convert.ts";
import type { BackwardCall, ComputeOp, ForwardCall, OpContext, OutputSpec, ViewOp } from "../ops/op.ts";
import { isDense, type Shape } from "../shape.ts";
import { scope, track } from "./scope.ts";
import type { Tensor } from "./tensor.ts";

/** Makes tensors through an existing one, so that this file needs the class as a type only. */
class Context implements OpContext {
  readonly device: Device;
  readonly #maker: Tensor;
  readonly #name: string;

  constructor(maker: Tensor, name: string) {
    this.device = maker.device;
    this.#maker = maker;
    this.#name = name;
  }

  empty(shape: Shape, dtype: DType): Tensor {
    return this.#maker.spawn(shape, dtype, this.#name);
  }

  dense(tensor: Tensor): Tensor {
    if (isDense(tensor.layout)) return tensor;
    const copy = this.empty(tensor.shape, tensor.dtype);
    copyElements(copy, tensor);
    return copy;
  }
}

class Forward<A> extends Context implements ForwardCall<A> {
  readonly attrs: A;
  readonly inputs: number;
  readonly recording: boolean;
  readonly saved: Tensor[] = [];
  readonly #inputs: readonly Tensor[];
  readonly #outputs: readonly Tensor[];

  constructor(name: string, inputs: readonly Tensor[], outputs: readonly Tensor[], attrs: A, recording: boolean) {
    super(at(inputs, 0, "input"), name);
    this.attrs = attrs;
    this.inputs = inputs.length;
    this.recording = recording;
    this.#inputs = inputs;
    this.#outputs = outputs;
  }

  input(i: number): Tensor {
    return at(this.#inputs, i, "input");
  }

  output(i: number): Tensor {
    return at(this.#outputs, i, "output");
  }

  needs(i: number): boolean {
    return this.recording && this.input(i).requiresGrad;
  }

  save(...tensors: readonly Tensor[]): void {
    for (const tensor of this.recording ? tensors : []) this.saved.push(tensor.alias());
  }
}

class Backward<A> extends Context implements BackwardCall<A> {
  readonly attrs: A;
  readonly inputs: number;
  readonly results: (Tensor | undefined)[];
  readonly #record: Recorded<A>;
  readonly #grads: Parameters<BackwardFunction>[0];
  readonly #place: Parameters<BackwardFunction>[1];

  constructor(maker: Tensor, record: Recorded<A>, ...[grads, place]: Parameters<BackwardFunction>) {
    super(maker, `${record.name} backward`);
    this.attrs = record.attrs;
    this.inputs = record.inputs.length;
    this.results = new Array<Tensor | undefined>(this.inputs).fill(undefined);
    this.#record = record;
    this.#grads = grads;
    this.#place = place;
  }

  grad(i: number): Tensor {
    const grad = this.#grads[i];
    if (grad !== undefined) return grad;
    const spec = at(this.#record.outputs, i, "output");
    const zeros = this.empty(spec.shape, spec.dtype);
    this.device.kernels.fill({ dtype: spec.dtype, n: zeros.numel, value: 0, dst: zeros.ptr });
    return zeros;
  }

  saved(i: number): Tensor {
    const tensor = at(this.#record.saved?.get() ?? [], i, "saved tensor");
    requireUnwritten(this.#record.name, tensor, this.#record.versions[i]);
    return tensor;
  }

  spec(i: number): OutputSpec {
    return at(this.#record.inputs, i, "input");
  }

  needs(i: number): boolean {
    return this.#record.edges[i] !== undefined;
  }

  out(i: number, dtype?: DType): Tensor {
    const spec = this.spec(i);
    const edge = this.#record.edges[i];
    if (edge !== undefined && dtype !== undefined && !takesDtype(edge, dtype)) return this.out(i);
    let placed = this.#place(i);
    if (placed !== undefined && dtype !== undefined && placed.dtype !== dtype) {
      placed.dispose(); // the kernel writes another dtype: its result is cast afterwards
      placed = undefined;
    }
    const tensor = placed ?? this.empty(spec.shape, dtype ?? spec.dtype).alias();
    this.results[i] = tensor;
    return tensor;
  }

  give(i: number, tensor: Tensor): void {
    if (this.needs(i)) this.results[i] = tensor.alias();
  }
}

/** Throws faults of the kernels that an op launched, on devices that report them at once. */
function checkStatus({ status }: Device): void {
  if (!status.isLate) status.check();
}

function edgeOf({ shape, dtype }: Tensor, node: Node, index: number): Edge {
  return { node, index, sink: undefined, shape, dtype };
}

/** Values of a call that its node keeps. */
interface Recorded<A> {
  readonly name: string;
  readonly attrs: A;
  readonly inputs: readonly OutputSpec[];
  readonly outputs: readonly OutputSpec[];
  readonly edges: readonly (Edge | undefined)[];
  readonly saved: SavedTensors | undefined;
  /** Versions of the saved tensors' memory when they were saved. */
  readonly versions: readonly number[];
}

function record<A>(
  op: { readonly name: string; backward(call: BackwardCall<A>): void },
  inputs: readonly Tensor[],
  outputs: readonly Tensor[],
  attrs: A,
  saved: readonly Tensor[],
): void {
  const specOf = ({ shape, dtype }: Tensor): OutputSpec => ({ shape, dtype });
  const versions = saved.map(({ buffer }) => buffer.version);
  const region = saveInRegion({ name: op.name, inputs, outputs, saved });
  const edges = inputs.map(({ edge }) => edge);
  const recorded: Recorded<A> = {
    name: op.name,
    attrs,
    inputs: inputs.map((input, i) => edges[i] ?? specOf(input)),
    outputs: outputs.map(specOf),
    edges,
    saved: region === undefined ? new KeptTensors(saved) : region.saved,
    versions,
  };
  const node = new Node(op.name, recorded.edges, outputs.length, recorded.saved, (grads, place) => {
    using _frame = scope();
    const maker = grads.find((grad) => grad !== undefined);
    if (maker === undefined) throw new InternalError(`backward of '${op.name}' without a gradient`);
    const call = new Backward(maker, recorded, grads, place);
    try {
      op.backward(call);
      checkStatus(maker.device);
    } catch (error) {
      for (const result of call.results) result?.dispose();
      throw error;
    }
    return call.results;
  });
  outputs.forEach((output, index) => {
    // Integers, e.g. the experts that a router chooses, have no gradient.
    if (output.dtype.kind === "float") output.setEdge(edgeOf(output, node, index));
  });
  if (!node.isReferenced) node.free();
}

/**
 * Computes an op.
 *
 * @param op the record
 * @param inputs at least one tensor; all on one device
 * @returns its outputs, in the current scope
 */
export function apply<A>(op: ComputeOp<A>, inputs: readonly Tensor[], attrs: A): readonly Tensor[] {
  for (const input of inputs) requireTensor(op.name, input);
  const first = at(inputs, 0, "input");
  for (const input of inputs) {
    input.requireAlive();
    if (input.device !== first.device) {
      throw new ArgumentError(
        `Cannot apply '${op.name}' to tensors of two devices (${first.device.name}, ${input.device.name}): open one and use it for all`,
      );
    }
  }
  const { backward } = op;
  const isRecorded = gradEnabled() && inputs.some((input) => input.requiresGrad);
  const recorded = backward !== undefined && isRecorded ? { name: op.name, backward } : undefined;
  const kept = recorded === undefined ? undefined : takeKept(inputs);
  if (recorded !== undefined && kept !== undefined) {
    record(recorded, inputs, kept.outputs.map(track), attrs, kept.saved);
    return kept.outputs;
  }
  const outputs = op.infer(inputs, attrs).map(({ shape, dtype }) => first.spawn(shape, dtype, op.name));
  using _frame = scope();
  const call = new Forward(op.name, inputs, outputs, attrs, recorded !== undefined);
  try {
    op.forward(call);
    checkStatus(first.device);
  } catch (error) {
    for (const tensor of [...call.saved, ...outputs]) tensor.dispose();
    throw error;
  }
  if (recorded !== undefined) record(recorded, inputs, outputs, attrs, call.saved);
  return outputs;
}

/** Computes an op that has one output. */
export function applyOne<A>(op: ComputeOp<A>, inputs: readonly Tensor[], attrs: A): Tensor {
  return at(apply(op, inputs, attrs), 0, "output");
}

/** Computes a view. */
export function applyView<A>(op: ViewOp<A>, input: Tensor, attrs: A): Tensor {
  requireTensor(op.name, input);
  input.requireAlive();
  const layout = op.view(input, attrs);
  const output = input.view(layout);
  if (gradEnabled() && input.requiresGrad) record(op, [input], [output], attrs, []);
  return output;
}

/** A callback at a point of the graph. */
export interface GradientHook {
  /** For messages. */
  readonly name: string;
  /** Called in the backward pass when all gradients of the tensors are known, before any flows further back. */
  run(): void;
  /** Called when the point of the graph is freed, before or after its backward. */
  freed?(): void;
}

/**
 * Adds a hook to tensors: all their uses from now on lead through it. Leaves, and tensors without a gradient, are skipped.
 *
 * @returns removes the hook for later uses; undefined if no tensor needs a gradient
 */
export function hookBackward(tensors: readonly Tensor[], hook: GradientHook): (() => void) | undefined {
  const hooked = tensors.filter((tensor) => tensor.edge?.node !== undefined);
  if (hooked.length === 0 || !gradEnabled()) return undefined;
  const before = hooked.map((tensor) => tensor.edge);
  const run = (grads: readonly (Tensor | undefined)[]): (Tensor | undefined)[] => {
    hook.run();
    return grads.map((grad) => grad?.alias());
  };
  const node = new Node(hook.name, before, hooked.length, undefined, run, () => hook.freed?.());
  for (const [index, tensor] of hooked.entries()) tensor.setEdge(edgeOf(tensor, node, index));
  return () => {
    for (const [i, tensor] of hooked.entries()) if (!tensor.disposed) tensor.setEdge(before[i]);
  };
}

/**
 * The record of an operation. `infer` checks the inputs and returns the outputs' shapes, `forward` launches kernels, `backward`
 * launches the gradient's kernels; `tensor/apply.ts` allocates, records and frees. Ops know `Tensor` as a type only.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import type { DType } from "../dtype.ts";
import type { Layout, Shape } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";

/** Shape and dtype of one output. */
export interface OutputSpec {
  /** Sizes by dim. */
  readonly shape: Shape;
  /** The output's element type. */
  readonly dtype: DType;
}

/** Functions for both directions of an op. Tensors made here are freed when the call returns, unless they are given or saved. */
export interface OpContext {
  /** The device that computes. */
  readonly device: Device;
  /** An uninitialized dense tensor. */
  empty(shape: Shape, dtype: DType): Tensor;
  /** The tensor itself when dense, else a dense copy. */
  dense(tensor: Tensor): Tensor;
}

/**
 * One call, in either direction.
 *
 * @internal
 */
export interface OpCall<A> extends OpContext {
  readonly attrs: A;
  /** Number of inputs: optional ones come last. */
  readonly inputs: number;
  /** True if a gradient of input i is needed, now or in a later backward. */
  needs(i: number): boolean;
}

/** One forward call. */
export interface ForwardCall<A> extends OpCall<A> {
  /** Input i. */
  input(i: number): Tensor;
  /** Output i, dense, to be written. */
  output(i: number): Tensor;
  /** True if a backward will be recorded; if not, saving does nothing. */
  readonly recording: boolean;
  /** Keeps tensors for the backward: inputs, outputs or temporaries. */
  save(...tensors: readonly Tensor[]): void;
}

/** One backward call. */
export interface BackwardCall<A> extends OpCall<A> {
  /** Gradient of output i; zeros if it has none. */
  grad(i: number): Tensor;
  /** Saved tensor i. */
  saved(i: number): Tensor;
  /** Shape and dtype of input i. */
  spec(i: number): OutputSpec;
  /**
   * A dense tensor of input i's shape, to be overwritten with its gradient; if input i is a parameter without a gradient, the
   * memory of its gradient. Its dtype is
   * - `dtype`, if a gradient of that dtype is allowed: the input's own, or the dtype in which a parameter's gradient is summed;
   * - else the dtype of the gradient's memory, or else of the input.
   */
  out(i: number, dtype?: DType): Tensor;
  /** Gives an existing tensor as gradient of input i: of the input's shape and dtype, perhaps a view. */
  give(i: number, tensor: Tensor): void;
}

/** An operation that computes new values. */
export interface ComputeOp<A> {
  /** The op's name in messages. */
  readonly name: string;
  /**
   * Shapes and dtypes of the outputs.
   *
   * @throws {ShapeError | DTypeError} if the inputs do not fit
   */
  infer(inputs: readonly Tensor[], attrs: A): readonly OutputSpec[];
  /** Computes the outputs. */
  forward(call: ForwardCall<A>): void;
  /** Computes the inputs' gradients. An op without a backward has constants as outputs. */
  backward?(call: BackwardCall<A>): void;
}

/** An operation that looks at the same values in another layout. */
export interface ViewOp<A> {
  /** The op's name in messages. */
  readonly name: string;
  /** Layout of the output over the input's buffer. */
  view(input: Tensor, attrs: A): Layout;
  /** Gives the input's gradient. */
  backward(call: BackwardCall<A>): void;
}

/** The records of ops that differ by name, each made once. */
export function recordsOf<K extends string, A>(
  names: readonly K[],
  make: (name: K) => ComputeOp<A>,
): (name: K) => ComputeOp<A> {
  const made = new Map(names.map((name) => [name, make(name)]));
  return (name) => made.get(name) ?? make(name);
}

/**
 * The start of a backward pass, and the sum of gradients that meet.
 *
 * @module
 */
import { requireSwitch } from "../config/known_values.ts";
import { runBackward } from "../autograd/engine.ts";
import { requireKnownKeys } from "../config/known_keys.ts";
import { ArgumentError, DTypeError, ShapeError } from "../errors.ts";
import { requireTensor } from "../ops/check.ts";
import { isDense, sameShape } from "../shape.ts";
import type { Tensor } from "./tensor.ts";

/** Options of {@link Tensor.backward}. */
export interface BackwardOptions {
  /** Keeps the graph and its saved tensors for another backward, until its tensors are freed. @default false */
  readonly retainGraph?: boolean;
}

/** Starts the backward pass from `root`. `seed` is its gradient; without it, a scalar's is 1. */
export function startBackward(root: Tensor, seed: Tensor | undefined, options: BackwardOptions): void {
  requireKnownKeys("run backward", options, { retainGraph: true });
  const { retainGraph = false } = options;
  requireSwitch("run backward", "retainGraph", retainGraph);
  root.requireAlive();
  if (seed !== undefined) {
    requireTensor("backward", seed, "a gradient that is a tensor");
    seed.requireAlive();
  }
  const { edge, shape, dtype, device } = root;
  if (edge === undefined) {
    throw new ArgumentError("Cannot run backward from a tensor that needs no gradient: no parameter leads to it");
  }
  if (seed === undefined && root.numel !== 1) throw new ShapeError("backward", "a seed is needed unless scalar", shape);
  if (seed !== undefined && !sameShape(seed.shape, shape)) {
    throw new ShapeError("backward", "the seed must have the tensor's shape", shape, seed.shape);
  }
  if (seed !== undefined && seed.dtype !== dtype) {
    throw new DTypeError("backward", "the seed must have the tensor's dtype", dtype.name, seed.dtype.name);
  }
  device.status.beginBackward();
  let start = seed?.alias();
  if (start === undefined) {
    start = root.spawn(shape, dtype, "backward seed").persist();
    device.kernels.fill({ dtype, n: 1, value: 1, dst: start.ptr });
  }
  runBackward(edge, start, retainGraph);
}

/**
 * `a + b`, of one shape and dtype, in the memory of `a` if no other tensor shares it. Consumes both handles; the result is in no
 * scope.
 */
export function addGradients(a: Tensor, b: Tensor): Tensor {
  const { kernels } = a.device;
  if (!a.buffer.shared && isDense(a.layout) && isDense(b.layout)) {
    kernels.accumulate({ dstDtype: a.dtype, srcDtype: b.dtype, n: a.numel, dst: a.ptr, src: b.ptr });
    b.dispose();
    return a;
  }
  const sum = a.spawn(a.shape, a.dtype, "gradient").persist();
  const strides = { aStrides: a.layout.strides, bStrides: b.layout.strides };
  kernels.binary({ dtype: a.dtype, op: "add", shape: a.shape, ...strides, dst: sum.ptr, a: a.ptr, b: b.ptr });
  a.dispose();
  b.dispose();
  return sum;
}

/**
 * A gradient slot: the gradient of one parameter while backward passes add to it.
 * 1. The first contribution of a pass is written to the slot's place, by the op itself or by a copy. If the sum of earlier
 *    passes is there, the contribution gets temporary memory.
 * 2. Further contributions of the pass are added to the first.
 * 3. At the end of the pass its sum is added to the sum of earlier passes.
 *
 * So accumulating micro-batches adds the same numbers in the same order as reducing over as many ranks. For the same reason the sum of
 * a pass has the dtype of the place: a narrower dtype would round between passes, and a reduction over ranks does not.
 *
 * @module
 */
import type { GradientSink } from "../autograd/node.ts";
import type { DType } from "../dtype.ts";
import { castTo, copyElements } from "../ops/convert.ts";
import { isDense } from "../shape.ts";
import { Tensor } from "./tensor.ts";

/** Options of a {@link GradientSlot}. */
export interface GradientSlotOptions {
  /** Gives a handle on the memory where the gradient belongs. @default the first contribution stays in its own memory */
  readonly place?: () => Tensor;
  /** The dtype of the place. @default the parameter's */
  readonly dtype?: DType;
  /** True if ops may write to the place; false if its dtype is narrower than their compute dtype. @default true */
  readonly direct?: boolean;
  /** Called before the first contribution of each pass, and before the first after a {@link GradientSlot.clear}. */
  readonly onContribution?: () => void;
  /** Called when a pass has been added to the sum. */
  readonly onFinish?: () => void;
}

/** The gradient of a parameter or of any other leaf of the graph. */
export class GradientSlot implements GradientSink {
  readonly dtype: DType | undefined;
  readonly #place: (() => Tensor) | undefined;
  readonly #direct: boolean;
  readonly #onContribution: (() => void) | undefined;
  readonly #onFinish: (() => void) | undefined;
  /** Sum of finished passes. */
  #total: Tensor | undefined;
  /** Sum of the pass under way. */
  #pass: Tensor | undefined;

  constructor(options: GradientSlotOptions = {}) {
    this.dtype = options.dtype;
    this.#place = options.place;
    this.#direct = options.direct ?? true;
    this.#onContribution = options.onContribution;
    this.#onFinish = options.onFinish;
  }

  place(): Tensor | undefined {
    if (this.#pass !== undefined || !this.#direct) return undefined;
    return this.#total === undefined ? this.#place?.() : fresh(this.#total);
  }

  contribute(grad: Tensor): void {
    if (this.#pass !== undefined) return add(this.#pass, grad);
    this.#onContribution?.();
    if (this.#total === undefined) {
      this.#pass = this.#place === undefined ? owned(grad) : moveTo(this.#place(), grad);
    } else this.#pass = grad.dtype === this.#total.dtype ? owned(grad) : moveTo(fresh(this.#total), grad);
  }

  finish(): void {
    if (this.#pass === undefined) return;
    if (this.#total === undefined) this.#total = this.#pass;
    else add(this.#total, this.#pass);
    this.#pass = undefined;
    this.#onFinish?.();
  }

  /** The sum of all finished passes; the slot keeps the handle. */
  gradient(): Tensor | undefined {
    return this.#total;
  }

  /** Drops the gradient. */
  clear(): void {
    this.#pass?.dispose();
    this.#total?.dispose();
    this.#pass = undefined;
    this.#total = undefined;
  }
}

/** `target += grad`; disposes `grad`. */
function add(target: Tensor, grad: Tensor): void {
  using dense = denseHandle(grad);
  const { dtype: dstDtype, numel: n, ptr: dst } = target;
  target.device.kernels.accumulate({ dstDtype, srcDtype: dense.dtype, n, dst, src: dense.ptr });
}

/** The handle itself if `grad` is dense; else a handle on a dense copy, and `grad` is disposed. */
function denseHandle(grad: Tensor): Tensor {
  return isDense(grad.layout) ? grad : copied(grad);
}

function copied(grad: Tensor): Tensor {
  const copy = fresh(grad);
  copyElements(copy, grad);
  grad.dispose();
  return copy;
}

function fresh(like: Tensor): Tensor {
  return Tensor.empty(like.device, like.shape, like.dtype, "gradient");
}

/** `grad` in memory that no other tensor refers to: the handle itself, or a copy, and `grad` is disposed. */
function owned(grad: Tensor): Tensor {
  return isDense(grad.layout) && !grad.buffer.shared ? grad : copied(grad);
}

/** Casts `grad` to its place, unless an op has written it there. Disposes both handles but the one returned. */
function moveTo(place: Tensor, grad: Tensor): Tensor {
  if (grad.ptr === place.ptr) {
    place.dispose();
    return grad;
  }
  using dense = denseHandle(grad);
  castTo(place, dense);
  return place;
}

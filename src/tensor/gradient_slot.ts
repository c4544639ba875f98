/**
 * Where a parameter's gradient grows. The contributions of one backward pass are added to each other first and to those of
 * earlier passes then, so that accumulating micro-batches adds the same numbers in the same order as reducing over ranks. Each
 * pass grows in the dtype of the place for the same reason: a narrower one would round what another rank does not.
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
  /** Makes a handle on the memory that the gradient is to lie in. @default the first contribution is kept where it is */
  readonly place?: () => Tensor;
  /** The dtype of the place. @default the leaf's */
  readonly dtype?: DType;
  /** Whether ops may write there; not if the place is narrower than what they compute in. @default true */
  readonly direct?: boolean;
  /** Called before the first contribution of a pass is taken, and of what follows a {@link GradientSlot.clear}. */
  readonly onContribution?: () => void;
  /** Called when the contributions of a pass have been added. */
  readonly onFinish?: () => void;
}

/** The gradient of one leaf. */
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

  /** Forgets everything. */
  clear(): void {
    this.#pass?.dispose();
    this.#total?.dispose();
    this.#pass = undefined;
    this.#total = undefined;
  }
}

/** `target += grad`; consumes `grad`. */
function add(target: Tensor, grad: Tensor): void {
  using dense = denseHandle(grad);
  const { dtype: dstDtype, numel: n, ptr: dst } = target;
  target.device.kernels.accumulate({ dstDtype, srcDtype: dense.dtype, n, dst, src: dense.ptr });
}

/** The handle itself when dense, else one on a dense copy; consumes `grad`. */
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

/** `grad` in memory that nothing else writes; consumes `grad`. */
function owned(grad: Tensor): Tensor {
  return isDense(grad.layout) && !grad.buffer.shared ? grad : copied(grad);
}

/** Brings `grad` to its place, unless it was written there; consumes both handles but the one returned. */
function moveTo(place: Tensor, grad: Tensor): Tensor {
  if (grad.ptr === place.ptr) {
    place.dispose();
    return grad;
  }
  using dense = denseHandle(grad);
  castTo(place, dense);
  return place;
}

/**
 * The methods of tensors that work along dims: reductions, running sums, softmax, products. A negative dim counts from the end. An
 * empty list of dims stands for all of them, and a tensor without dims may be worked along by 0 and -1, as in PyTorch.
 *
 * @module
 */
import { cumsumOp } from "../ops/cumsum.ts";
import { matmulOp } from "../ops/matmul.ts";
import { argmaxOp, maxOp, meanOp, minOp, sumOp } from "../ops/reduce.ts";
import { logSoftmaxOp, softmaxOp } from "../ops/softmax.ts";
import { applyOne } from "./apply.ts";
import { alongLast, deviation, overLast, variance } from "./composed.ts";
import { ElementwiseMethods } from "./elementwise.ts";
import type { Tensor } from "./tensor.ts";

/** Base class of {@link Tensor}, in a file of its own. */
export abstract class AlongDimsMethods extends ElementwiseMethods {
  /** Sum of all elements, or along dims. */
  sum(this: Tensor, dims?: number | readonly number[], keepDims: boolean = false): Tensor {
    return applyOne(sumOp, [this], { dims, keepDims });
  }
  /** Mean of all elements, or along dims. */
  mean(this: Tensor, dims?: number | readonly number[], keepDims: boolean = false): Tensor {
    return applyOne(meanOp, [this], { dims, keepDims });
  }
  /** Largest element of all, or along dims; the gradient is shared by equals. */
  max(this: Tensor, dims?: number | readonly number[], keepDims: boolean = false): Tensor {
    return applyOne(maxOp, [this], { dims, keepDims });
  }
  /** Smallest element of all, or along dims; the gradient is shared by equals. */
  min(this: Tensor, dims?: number | readonly number[], keepDims: boolean = false): Tensor {
    return applyOne(minOp, [this], { dims, keepDims });
  }
  /**
   * Variance of all elements, or along dims: the sum of squared distances from the mean, divided by the count less the
   * correction.
   */
  var(this: Tensor, dims?: number | readonly number[], keepDims: boolean = false, correction: number = 1): Tensor {
    return variance(this, dims, keepDims, correction);
  }
  /** Root of {@link Tensor.var}; its gradient is 0 where the root is. */
  std(this: Tensor, dims?: number | readonly number[], keepDims: boolean = false, correction: number = 1): Tensor {
    return deviation(this, dims, keepDims, correction);
  }
  /** Cumulative sums along a dim. */
  cumsum(this: Tensor, dim: number): Tensor {
    return alongLast("cumsum", this, dim, (x) => applyOne(cumsumOp, [x], undefined));
  }
  /** Softmax along a dim. */
  softmax(this: Tensor, dim: number = -1): Tensor {
    return alongLast("softmax", this, dim, (x) => applyOne(softmaxOp, [x], undefined));
  }
  /** Logarithm of the softmax along a dim. */
  logSoftmax(this: Tensor, dim: number = -1): Tensor {
    return alongLast("logSoftmax", this, dim, (x) => applyOne(logSoftmaxOp, [x], undefined));
  }
  /** Index of the largest element along a dim: int32, the first among equals. */
  argmax(this: Tensor, dim: number = -1): Tensor {
    return overLast("argmax", this, dim, (x) => applyOne(argmaxOp, [x], undefined));
  }

  /** Matrix product over the last two dims: [.., m, k] @ [.., k, n]; leading dims broadcast. */
  matmul(this: Tensor, other: Tensor): Tensor {
    return applyOne(matmulOp, [this, other], undefined);
  }
}

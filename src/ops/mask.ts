/**
 * Masks: comparisons and logical functions, whose results are uint8, 1 or 0; and choices between values by a mask.
 *
 * @module
 */
import { type CompareOp, OPS } from "../device/kernels/signature.ts";
import { KERNELS } from "../device/kernels/table.ts";
import { uint8 } from "../dtype.ts";
import { DTypeError } from "../errors.ts";
import { broadcastShapes, broadcastStrides } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { expectDtype, pairOfOneDType } from "./check.ts";
import { type ComputeOp, type OpContext, recordsOf } from "./op.ts";
import { sumTo } from "./sum_to.ts";

/** `mask = op(a, b)`, both broadcasting to the dense mask. */
export function compareInto(context: OpContext, op: CompareOp, mask: Tensor, a: Tensor, b: Tensor): void {
  const { shape } = mask;
  const strides = { aStrides: broadcastStrides(a.layout, shape), bStrides: broadcastStrides(b.layout, shape) };
  context.device.kernels.compare({ dtype: a.dtype, op, shape, ...strides, dst: mask.ptr, a: a.ptr, b: b.ptr });
}

/** `result = condition ? a : b`, all three broadcasting to the dense result. */
export function selectInto(context: OpContext, result: Tensor, condition: Tensor, a: Tensor, b: Tensor): void {
  const { shape, dtype } = result;
  context.device.kernels.select({
    ...{ dtype, shape, conditionStrides: broadcastStrides(condition.layout, shape) },
    ...{ aStrides: broadcastStrides(a.layout, shape), bStrides: broadcastStrides(b.layout, shape) },
    ...{ dst: result.ptr, condition: condition.ptr, a: a.ptr, b: b.ptr },
  });
}

/** A zero that broadcasts. */
export function zeroOf(context: OpContext, { dtype }: Tensor): Tensor {
  const zero = context.empty([], dtype);
  context.device.kernels.fill({ dtype, n: 1, value: 0, dst: zero.ptr });
  return zero;
}

function comparison(name: CompareOp): ComputeOp<undefined> {
  return {
    name,
    infer: (inputs) => {
      const [a, b] = pairOfOneDType(name, inputs);
      expectDtype(name, a.dtype, KERNELS.compare.values.dtype.dtypes);
      return [{ shape: broadcastShapes(name, a.shape, b.shape), dtype: uint8 }];
    },
    forward: (call) => compareInto(call, name, call.output(0), call.input(0), call.input(1)),
  };
}

/** The record of a comparison, or of a logical function, of two values. */
export const compareOp: (name: CompareOp) => ComputeOp<undefined> = recordsOf(OPS.compareOp, comparison);

/** condition uint8, a and b of one dtype → a where the condition is not 0, else b; all three broadcast. */
export const whereOp: ComputeOp<undefined> = {
  name: "where",
  infer: ([condition, ...values]) => {
    if (condition?.dtype !== uint8) {
      throw new DTypeError(
        "where",
        "the condition must be uint8, as comparisons give",
        condition?.dtype.name ?? "nothing",
      );
    }
    const [a, b] = pairOfOneDType("where", values);
    return [{
      shape: broadcastShapes("where", condition.shape, broadcastShapes("where", a.shape, b.shape)),
      dtype: a.dtype,
    }];
  },
  forward: (call) => {
    selectInto(call, call.output(0), call.input(0), call.input(1), call.input(2));
    call.save(call.input(0));
  },
  backward: (call) => {
    const [condition, dy] = [call.saved(0), call.grad(0)];
    const zero = zeroOf(call, dy);
    for (const [i, a, b] of [[1, dy, zero], [2, zero, dy]] as const) {
      if (!call.needs(i)) continue;
      const chosen = call.empty(dy.shape, dy.dtype);
      selectInto(call, chosen, condition, a, b);
      call.give(i, sumTo(call, chosen, call.spec(i).shape));
    }
  },
};

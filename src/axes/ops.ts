/**
 * Collectives that gradients flow through: the two ends of a region in which each rank of an axis computes with its parts of some
 * weights (Megatron-LM's `f` and `g`: Shoeybi et al. 2019, section 3). What enters is the same on all ranks, and its gradient is a sum over
 * them; what leaves is a part of a sum, and its gradient is the same on all ranks. Calls have no phase, as compute waits for them.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import { castTo, copyElements } from "../ops/convert.ts";
import type { ComputeOp, ViewOp } from "../ops/op.ts";
import { applyOne, applyView } from "../tensor/apply.ts";
import type { Tensor } from "../tensor/tensor.ts";

/** The ranks that are summed over, and the module that asks. */
export interface RegionAttrs {
  readonly group: ProcessGroup;
  /** Name of the module, for messages. */
  readonly unit: string;
}

const enterOp: ViewOp<RegionAttrs> = {
  name: "enter",
  view: ({ layout }) => layout,
  backward(call) {
    const { group, unit } = call.attrs;
    // Of a parameter, the memory of its gradient, which may be wider than what the layer computes with: then the sum is taken in that.
    const [out, grad] = [call.out(0), call.grad(0)];
    if (out.dtype === grad.dtype) copyElements(out, grad);
    else castTo(out, call.dense(grad));
    group.allReduce(out.ptr, out.numel, out.dtype, { unit: `gradient of the input of '${unit}'` }).wait();
  },
};

const leaveOp: ComputeOp<RegionAttrs> = {
  name: "leave",
  infer: (inputs) => inputs.map(({ shape, dtype }) => ({ shape, dtype })),
  forward(call) {
    const { group, unit } = call.attrs;
    const out = call.output(0);
    copyElements(out, call.input(0));
    group.allReduce(out.ptr, out.numel, out.dtype, { unit: `output of '${unit}'` }).wait();
  },
  backward: (call) => call.give(0, call.grad(0)),
};

/**
 * Begins a region in which each rank computes with its part of values that all ranks have: their gradient is summed over the
 * ranks.
 */
export function enter(x: Tensor, attrs: RegionAttrs): Tensor {
  return applyView(enterOp, x, attrs);
}

/** The sum over the ranks of what each has computed with its parts; all have it alike. */
export function leave(x: Tensor, attrs: RegionAttrs): Tensor {
  return applyOne(leaveOp, [x], attrs);
}

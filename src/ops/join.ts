/**
 * Concatenation of tensors along a dim.
 *
 * @module
 */
import { at } from "../at.ts";
import { DTypeError, ShapeError } from "../errors.ts";
import { narrowed } from "../shape.ts";
import { copyElements } from "./convert.ts";
import type { ComputeOp } from "./op.ts";

/** Tensors of one dtype, with equal shapes in all dims but the given one → their concatenation. */
export const catOp: ComputeOp<number> = {
  name: "cat",
  infer: (inputs, dim) => {
    const { shape, dtype } = at(inputs, 0, "input");
    for (const input of inputs) {
      if (input.dtype !== dtype) throw new DTypeError("cat", "all must have one dtype", dtype.name, input.dtype.name);
      if (input.ndim !== shape.length || input.shape.some((size, i) => i !== dim && size !== shape[i])) {
        throw new ShapeError("cat", `all sizes but those of dim ${dim} must be equal`, shape, input.shape);
      }
    }
    const size = inputs.reduce((sum, input) => sum + at(input.shape, dim, "dim"), 0);
    return [{ shape: shape.with(dim, size), dtype }];
  },
  forward: (call) => {
    let start = 0;
    for (let i = 0; i < call.inputs; i++) {
      const input = call.input(i);
      const length = at(input.shape, call.attrs, "dim");
      copyElements(call.output(0).view(narrowed(call.output(0).layout, call.attrs, start, length)), input);
      start += length;
    }
  },
  backward: (call) => {
    const grad = call.grad(0);
    let start = 0;
    for (let i = 0; i < call.inputs; i++) {
      const length = at(call.spec(i).shape, call.attrs, "dim");
      call.give(i, grad.view(narrowed(grad.layout, call.attrs, start, length)));
      start += length;
    }
  },
};

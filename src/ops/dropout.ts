/**
 * Dropout (Srivastava et al. 2014), whose mask the backward computes again instead of keeping it.
 *
 * @module
 */
import { at } from "../at.ts";
import type { DevicePtr } from "../device/device.ts";
import { ArgumentError } from "../errors.ts";
import { isWithin } from "../held.ts";
import { numelOf } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { valueText } from "../words.ts";
import { floatInput } from "./check.ts";
import type { ComputeOp, OpContext } from "./op.ts";

/** Source of random numbers of samples: the same for a sample in any batch. */
export interface RandomStream {
  /** The stream's key, from `keyOf`. */
  readonly key: number;
  /** Number of the batch's first sample; the others are consecutive. */
  readonly sample: number;
}

/** Probability and random numbers of a dropout. */
export interface DropoutAttrs extends RandomStream {
  /** Probability that an element becomes zero; the others are divided by `1 - p`. */
  readonly p: number;
}

/** Refuses a `p` that is not a probability. */
export function requireProbability(p: number): number {
  if (isWithin(p, 0, 1)) return p;
  throw new ArgumentError(`Cannot drop out with p ${valueText(p)}: it must be a probability, from 0 to 1`);
}

function drop({ device }: OpContext, { shape, dtype, ptr: x }: Tensor, y: DevicePtr, attrs: DropoutAttrs): void {
  const [batch, cols] = [at(shape, 0, "dim"), at(shape, shape.length - 1, "dim")];
  const rows = numelOf(shape.slice(1, -1));
  device.kernels.dropout({ dtype, batch, rows, cols, ...attrs, y, x });
}

/** x [batch, .., cols] → the same shape */
export const dropoutOp: ComputeOp<DropoutAttrs> = {
  name: "dropout",
  infer: (inputs, { p }) => {
    const { shape, dtype, ndim } = floatInput("dropout", inputs);
    if (ndim < 2) throw new ArgumentError(`Cannot drop out of [${shape.join(", ")}]: it must be [batch, .., cols]`);
    requireProbability(p);
    return [{ shape, dtype }];
  },
  forward: (call) => drop(call, call.dense(call.input(0)), call.output(0).ptr, call.attrs),
  backward: (call) => {
    const dy = call.dense(call.grad(0));
    drop(call, dy, call.out(0, dy.dtype).ptr, call.attrs);
  },
};

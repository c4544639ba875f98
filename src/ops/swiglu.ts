/**
 * SwiGLU's gate: `silu(gate) * up` (Shazeer 2020).
 *
 * @module
 */
import { ShapeError } from "../errors.ts";
import { sameShape } from "../shape.ts";
import { floatPair } from "./check.ts";
import type { ComputeOp } from "./op.ts";

/** gate and up of one shape → silu(gate) * up. */
export const swigluOp: ComputeOp<undefined> = {
  name: "swiglu",
  infer: (inputs) => {
    const [gate, up] = floatPair("swiglu", inputs);
    if (!sameShape(gate.shape, up.shape)) throw new ShapeError("swiglu", "shapes must be equal", gate.shape, up.shape);
    return [{ shape: gate.shape, dtype: gate.dtype }];
  },
  forward: (call) => {
    const [gate, up] = [call.dense(call.input(0)), call.dense(call.input(1))];
    const { dtype, numel: n } = gate;
    call.device.kernels.swiglu({ dtype, n, y: call.output(0).ptr, gate: gate.ptr, up: up.ptr });
    call.save(gate, up);
  },
  backward: (call) => {
    const [gate, up] = [call.saved(0), call.saved(1)];
    const { dtype, numel: n } = gate;
    const [dy, dgate, dup] = [call.dense(call.grad(0)), call.out(0, dtype), call.out(1, dtype)];
    const gradients = { dgate: dgate.ptr, dup: dup.ptr, dy: dy.ptr };
    call.device.kernels.swigluBackward({ dtype, n, ...gradients, gate: gate.ptr, up: up.ptr });
  },
};

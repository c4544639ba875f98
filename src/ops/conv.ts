/**
 * Convolution along a sequence.
 *
 * @module
 */
import type { DevicePtr } from "../device/device.ts";
import { KERNELS } from "../device/kernels/table.ts";
import { ShapeError } from "../errors.ts";
import { threeSizes } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { floatPair } from "./check.ts";
import { writeFloat32 } from "./convert.ts";
import type { ComputeOp } from "./op.ts";

const MAX_WIDTH = KERNELS.causalConv.values.width.atMost;

/** Arguments of both directions. */
function common(x: Tensor, w: Tensor) {
  const [batch, seq, channels] = threeSizes("causalConv", x.shape);
  const [, , width] = threeSizes("causalConv", w.shape);
  return { dtype: x.dtype, batch, seq, channels, width, x: x.ptr, w: w.ptr };
}

/**
 * x [batch, seq, channels], weight [channels, 1, width] (PyTorch's depthwise `Conv1d`) → [batch, seq, channels]: each channel's
 * sum of its own and its `width - 1` earlier values, times its weights.
 */
export const causalConvOp: ComputeOp<undefined> = {
  name: "causalConv",
  infer: (inputs) => {
    const [x, w] = floatPair("causalConv", inputs, "input and weight");
    const expected = `x must be [batch, seq, channels] and the weight [channels, 1, at most ${MAX_WIDTH}]`;
    const [, , channels] = threeSizes("causalConv", x.shape, expected);
    const [rows, one, width] = threeSizes("causalConv", w.shape, expected);
    if (one !== 1 || rows !== channels || width > MAX_WIDTH) {
      throw new ShapeError("causalConv", expected, x.shape, w.shape);
    }
    return [{ shape: x.shape, dtype: x.dtype }];
  },
  forward: (call) => {
    const [x, w] = [call.dense(call.input(0)), call.dense(call.input(1))];
    call.device.kernels.causalConv({ ...common(x, w), y: call.output(0).ptr });
    call.save(x, w);
  },
  backward: (call) => {
    const [x, w, dy] = [call.saved(0), call.saved(1), call.dense(call.grad(0))];
    const dx = call.needs(0) ? call.out(0, x.dtype).ptr : undefined;
    const launch = (dw?: DevicePtr): void => {
      call.device.kernels.causalConvBackward({ ...common(x, w), dx, dw, dy: dy.ptr });
    };
    if (call.needs(1)) writeFloat32(call, 1, launch);
    else launch();
  },
};

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
import { floatPair, requireStarts } from "./check.ts";
import { writeFloat32 } from "./convert.ts";
import type { ComputeOp } from "./op.ts";

const MAX_WIDTH = KERNELS.causalConv.values.width.atMost;

/** The arguments that both directions share. */
function common(x: Tensor, w: Tensor, starts: Tensor | undefined) {
  const [batch, seq, channels] = threeSizes("causalConv", x.shape);
  const [, , width] = threeSizes("causalConv", w.shape);
  return { dtype: x.dtype, batch, seq, channels, width, x: x.ptr, w: w.ptr, starts: starts?.ptr };
}

/**
 * x [batch, seq, channels], weight [channels, 1, width] as in PyTorch's depthwise `Conv1d`, optional beginnings of
 * documents int32 [batch, seq] → the same shape: each channel's sum of its own and its `width - 1` earlier values by its weights.
 */
export const causalConvOp: ComputeOp<undefined> = {
  name: "causalConv",
  infer: (inputs) => {
    const [x, w] = floatPair("causalConv", inputs, "input and weight");
    const starts = inputs[2];
    const expected = `x must be [batch, seq, channels] and the weight [channels, 1, at most ${MAX_WIDTH}]`;
    const [batch, seq, channels] = threeSizes("causalConv", x.shape, expected);
    const [rows, one, width] = threeSizes("causalConv", w.shape, expected);
    if (one !== 1 || rows !== channels || width > MAX_WIDTH) {
      throw new ShapeError("causalConv", expected, x.shape, w.shape);
    }
    if (starts !== undefined) requireStarts("causalConv", starts, [batch, seq]);
    return [{ shape: x.shape, dtype: x.dtype }];
  },
  forward: (call) => {
    const [x, w] = [call.dense(call.input(0)), call.dense(call.input(1))];
    const starts = call.inputs > 2 ? call.dense(call.input(2)) : undefined;
    call.device.kernels.causalConv({ ...common(x, w, starts), y: call.output(0).ptr });
    call.save(x, w);
    if (starts !== undefined) call.save(starts);
  },
  backward: (call) => {
    const [x, w, dy] = [call.saved(0), call.saved(1), call.dense(call.grad(0))];
    const starts = call.inputs > 2 ? call.saved(2) : undefined;
    const dx = call.needs(0) ? call.out(0, x.dtype).ptr : undefined;
    const launch = (dw?: DevicePtr): void => {
      call.device.kernels.causalConvBackward({ ...common(x, w, starts), dx, dw, dy: dy.ptr });
    };
    if (call.needs(1)) writeFloat32(call, 1, launch);
    else launch();
  },
};

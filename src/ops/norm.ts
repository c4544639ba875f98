/**
 * RMSNorm and LayerNorm over the last dim, with optional weight and bias.
 *
 * @module
 */
import type { DevicePtr } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import { DTypeError, ShapeError } from "../errors.ts";
import { matrixOf } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { floatInput } from "./check.ts";
import { writeFloat32 } from "./convert.ts";
import type { ComputeOp, OutputSpec } from "./op.ts";

function inferNorm(name: string, inputs: readonly Tensor[]): readonly OutputSpec[] {
  const x = floatInput(name, inputs);
  const cols = x.shape.at(-1);
  for (const parameter of inputs.slice(1)) {
    if (parameter.ndim !== 1 || parameter.shape[0] !== cols) {
      throw new ShapeError(name, `weight and bias must be [${cols}]`, x.shape, parameter.shape);
    }
    if (parameter.dtype !== x.dtype) {
      throw new DTypeError(name, "dtypes must agree", x.dtype.name, parameter.dtype.name);
    }
  }
  return [{ shape: x.shape, dtype: x.dtype }];
}

/** Addend of the mean squares; with `zeroCentered`, the factor is 1 plus the weight. */
export interface RmsNormAttrs {
  readonly eps: number;
  readonly zeroCentered: boolean;
}

/** x, optional weight → weight * x / rms(x) (Zhang & Sennrich 2019; rounding as in transformers' Llama, or Qwen3-Next). */
export const rmsNormOp: ComputeOp<RmsNormAttrs> = {
  name: "rmsNorm",
  infer: (inputs) => inferNorm("rmsNorm", inputs),
  forward: (call) => {
    const x = call.dense(call.input(0));
    const weight = call.inputs > 1 ? call.dense(call.input(1)) : undefined;
    const rstd = call.empty(x.shape.slice(0, -1), float32);
    const args = { dtype: x.dtype, ...matrixOf(x), ...call.attrs, x: x.ptr, w: weight?.ptr };
    call.device.kernels.rmsNorm({ ...args, y: call.output(0).ptr, rstd: rstd.ptr });
    call.save(x, rstd);
    if (weight !== undefined) call.save(weight);
  },
  backward: (call) => {
    const [x, rstd, dy] = [call.saved(0), call.saved(1), call.dense(call.grad(0))];
    const w = call.inputs > 1 ? call.saved(2).ptr : undefined;
    const dx = call.needs(0) ? call.out(0, x.dtype).ptr : undefined;
    const { zeroCentered } = call.attrs;
    const args = { dtype: x.dtype, ...matrixOf(x), zeroCentered, dx, dy: dy.ptr, x: x.ptr, w, rstd: rstd.ptr };
    const launch = (dw?: DevicePtr): void => call.device.kernels.rmsNormBackward({ ...args, dw });
    if (call.inputs > 1 && call.needs(1)) writeFloat32(call, 1, launch);
    else launch();
  },
};

/** x, optional weight and bias → (x - mean) / std * weight + bias, eps as attribute (Ba et al. 2016). */
export const layerNormOp: ComputeOp<number> = {
  name: "layerNorm",
  infer: (inputs) => inferNorm("layerNorm", inputs),
  forward: (call) => {
    const x = call.dense(call.input(0));
    const weight = call.inputs > 1 ? call.dense(call.input(1)) : undefined;
    const b = call.inputs > 2 ? call.dense(call.input(2)).ptr : undefined;
    const [mean, rstd] = [call.empty(x.shape.slice(0, -1), float32), call.empty(x.shape.slice(0, -1), float32)];
    const args = { dtype: x.dtype, ...matrixOf(x), eps: call.attrs, x: x.ptr, w: weight?.ptr, b };
    call.device.kernels.layerNorm({ ...args, y: call.output(0).ptr, mean: mean.ptr, rstd: rstd.ptr });
    call.save(x, mean, rstd);
    if (weight !== undefined) call.save(weight);
  },
  backward: (call) => {
    const [x, mean, rstd, dy] = [call.saved(0), call.saved(1), call.saved(2), call.dense(call.grad(0))];
    const w = call.inputs > 1 ? call.saved(3).ptr : undefined;
    const dx = call.needs(0) ? call.out(0, x.dtype).ptr : undefined;
    const statistics = { mean: mean.ptr, rstd: rstd.ptr };
    const args = { dtype: x.dtype, ...matrixOf(x), dx, dy: dy.ptr, x: x.ptr, w, ...statistics };
    const launch = (dw?: DevicePtr): void => {
      if (call.inputs > 2 && call.needs(2)) {
        writeFloat32(call, 2, (db) => call.device.kernels.layerNormBackward({ ...args, dw, db }));
      } else call.device.kernels.layerNormBackward({ ...args, dw });
    };
    if (call.inputs > 1 && call.needs(1)) writeFloat32(call, 1, launch);
    else launch();
  },
};

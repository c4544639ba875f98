/**
 * RMSNorm and LayerNorm over the last dim, with optional weight and bias.
 *
 * @module
 */
import { type DevicePtr, NO_PTR } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import { DTypeError, ShapeError } from "../errors.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { writeFloat32 } from "./float_out.ts";
import type { ComputeOp, OutputSpec } from "./op.ts";

function inferNorm(name: string, inputs: readonly Tensor[]): readonly OutputSpec[] {
  const [x, ...affine] = inputs;
  if (x === undefined || x.dtype.kind !== "float") {
    throw new DTypeError(name, "the input must be a float", x?.dtype.name ?? "");
  }
  const cols = x.shape.at(-1);
  for (const parameter of affine) {
    if (parameter.ndim !== 1 || parameter.shape[0] !== cols) {
      throw new ShapeError(name, `weight and bias must be [${cols}]`, x.shape, parameter.shape);
    }
    if (parameter.dtype !== x.dtype) {
      throw new DTypeError(name, "dtypes must agree", x.dtype.name, parameter.dtype.name);
    }
  }
  return [{ shape: x.shape, dtype: x.dtype }];
}

function sizes(x: Tensor): [rows: number, cols: number] {
  const cols = x.shape.at(-1) ?? 1;
  return [x.numel / Math.max(1, cols), cols];
}

/** x, optional weight → weight * x / rms(x), eps as attribute (Zhang & Sennrich 2019; rounding as in transformers' Llama). */
export const rmsNormOp: ComputeOp<number> = {
  name: "rmsNorm",
  infer: (inputs) => inferNorm("rmsNorm", inputs),
  forward: (call) => {
    const x = call.dense(call.input(0));
    const weight = call.inputs > 1 ? call.dense(call.input(1)) : undefined;
    const [rows, cols] = sizes(x);
    const rstd = call.empty([rows], float32);
    call.device.kernels.rmsNorm(
      x.dtype,
      call.output(0).ptr,
      rstd.ptr,
      x.ptr,
      weight?.ptr ?? NO_PTR,
      rows,
      cols,
      call.attrs,
    );
    call.save(x, rstd);
    if (weight !== undefined) call.save(weight);
  },
  backward: (call) => {
    const [x, rstd] = [call.saved(0), call.saved(1)];
    const weight = call.inputs > 1 ? call.saved(2).ptr : NO_PTR;
    const [rows, cols] = sizes(x);
    const dy = call.dense(call.grad(0));
    const dx = call.needs(0) ? call.out(0, x.dtype).ptr : NO_PTR;
    const launch = (dw: DevicePtr): void =>
      call.device.kernels.rmsNormBackward(x.dtype, dx, dw, dy.ptr, x.ptr, weight, rstd.ptr, rows, cols);
    if (call.inputs > 1 && call.needs(1)) writeFloat32(call, 1, launch);
    else launch(NO_PTR);
  },
};

/** x, optional weight and bias → (x - mean) / std * weight + bias, eps as attribute (Ba et al. 2016). */
export const layerNormOp: ComputeOp<number> = {
  name: "layerNorm",
  infer: (inputs) => inferNorm("layerNorm", inputs),
  forward: (call) => {
    const x = call.dense(call.input(0));
    const weight = call.inputs > 1 ? call.dense(call.input(1)) : undefined;
    const bias = call.inputs > 2 ? call.dense(call.input(2)).ptr : NO_PTR;
    const [rows, cols] = sizes(x);
    const [mean, rstd] = [call.empty([rows], float32), call.empty([rows], float32)];
    const w = weight?.ptr ?? NO_PTR;
    call.device.kernels.layerNorm(
      x.dtype,
      call.output(0).ptr,
      mean.ptr,
      rstd.ptr,
      x.ptr,
      w,
      bias,
      rows,
      cols,
      call.attrs,
    );
    call.save(x, mean, rstd);
    if (weight !== undefined) call.save(weight);
  },
  backward: (call) => {
    const [x, mean, rstd] = [call.saved(0), call.saved(1), call.saved(2)];
    const weight = call.inputs > 1 ? call.saved(3).ptr : NO_PTR;
    const [rows, cols] = sizes(x);
    const dy = call.dense(call.grad(0));
    const dx = call.needs(0) ? call.out(0, x.dtype).ptr : NO_PTR;
    const launch = (dw: DevicePtr, db: DevicePtr): void =>
      call.device.kernels.layerNormBackward(
        x.dtype,
        dx,
        dw,
        db,
        dy.ptr,
        x.ptr,
        weight,
        mean.ptr,
        rstd.ptr,
        rows,
        cols,
      );
    const withBias = (dw: DevicePtr): void => {
      if (call.inputs > 2 && call.needs(2)) writeFloat32(call, 2, (db) => launch(dw, db));
      else launch(dw, NO_PTR);
    };
    if (call.inputs > 1 && call.needs(1)) writeFloat32(call, 1, withBias);
    else withBias(NO_PTR);
  },
};

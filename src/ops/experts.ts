/**
 * Tokens to experts and back. Rows are pairs of a token and one of its experts, sorted by expert. The ends of experts' rows lie
 * in device memory, so no shape and no call depends on the routing.
 *
 * @module
 */
import { at } from "../at.ts";
import { float32, int32 } from "../dtype.ts";
import { DTypeError, ShapeError } from "../errors.ts";
import { numelOf, threeSizes, twoSizes } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { floatInput, floatPair } from "./check.ts";
import { castTo, writeFloat32 } from "./convert.ts";
import type { WeightLayout } from "./matmul.ts";
import type { ComputeOp } from "./op.ts";

/** Largest number of pairs of a call: int32 holds their places. */
const MOST_PAIRS = 2 ** 31 - 1;

/** experts int32 [rows, topK] → the place of each pair int32 [rows, topK], the ends of experts' rows int32 [experts]. */
export const sortPairsOp: ComputeOp<{ readonly numExperts: number }> = {
  name: "sortPairs",
  infer: (inputs, { numExperts }) => {
    const { shape, dtype } = at(inputs, 0, "input");
    if (dtype !== int32) throw new DTypeError("sortPairs", "experts must be int32", dtype.name);
    if (numelOf(shape) > MOST_PAIRS) {
      throw new ShapeError("sortPairs", `there must be at most ${MOST_PAIRS} pairs`, shape);
    }
    return [{ shape, dtype: int32 }, { shape: [numExperts], dtype: int32 }];
  },
  forward: (call) => {
    const [chosen, places, ends] = [call.dense(call.input(0)), call.output(0), call.output(1)];
    const sizes = { pairs: chosen.numel, experts: ends.numel };
    call.device.kernels.sortPairs({ ...sizes, places: places.ptr, ends: ends.ptr, chosen: chosen.ptr });
  },
};

/** Sizes of `count` pairs for each row. */
function pairSizes(x: Tensor, places: Tensor) {
  const [rows, count] = [at(places.shape, 0, "dim"), at(places.shape, 1, "dim")];
  return { dtype: x.dtype, rows, count, cols: at(x.shape, 1, "dim") };
}

/** x [rows, width], places int32 [rows, topK] → each pair's row, at its place, [rows * topK, width]. */
export const dispatchOp: ComputeOp<undefined> = {
  name: "dispatch",
  infer: (inputs) => {
    const [x, places] = [floatInput("dispatch", inputs), at(inputs, 1, "input")];
    if (x.ndim !== 2 || places.ndim !== 2 || places.dtype !== int32 || places.shape[0] !== x.shape[0]) {
      throw new ShapeError("dispatch", "there must be int32 places for each row", x.shape, places.shape);
    }
    return [{ shape: [places.numel, at(x.shape, 1, "dim")], dtype: x.dtype }];
  },
  forward: (call) => {
    const [x, places] = [call.dense(call.input(0)), call.dense(call.input(1))];
    call.device.kernels.combinePairsBackward({
      ...pairSizes(x, places),
      ...{ dx: call.output(0).ptr, dy: x.ptr, places: places.ptr },
    });
    call.save(places);
  },
  backward: (call) => {
    const [places, dy] = [call.saved(0), call.dense(call.grad(0))];
    const dx = call.out(0, dy.dtype);
    call.device.kernels.combinePairs({ ...pairSizes(dy, places), y: dx.ptr, x: dy.ptr, places: places.ptr });
  },
};

/**
 * x [rows * topK, width], places int32 and weights float32 [rows, topK] → [rows, width]: for each row, the weighted sum of its
 * pairs.
 */
export const combineOp: ComputeOp<undefined> = {
  name: "combine",
  infer: (inputs) => {
    const [x, places, weights] = [floatInput("combine", inputs), at(inputs, 1, "input"), at(inputs, 2, "input")];
    if (weights.dtype !== float32) throw new DTypeError("combine", "weights must be float32", weights.dtype.name);
    const fits = x.ndim === 2 && places.ndim === 2 && places.dtype === int32 && places.numel === x.shape[0] &&
      weights.shape.length === 2 && weights.shape.every((size, dim) => size === places.shape[dim]);
    if (!fits) {
      throw new ShapeError("combine", "there must be a row for each pair", x.shape, places.shape, weights.shape);
    }
    return [{ shape: [at(places.shape, 0, "dim"), at(x.shape, 1, "dim")], dtype: x.dtype }];
  },
  forward: (call) => {
    const [x, places, weights] = [call.dense(call.input(0)), call.dense(call.input(1)), call.dense(call.input(2))];
    const pointers = { y: call.output(0).ptr, x: x.ptr, places: places.ptr, weights: weights.ptr };
    call.device.kernels.combinePairs({ ...pairSizes(x, places), ...pointers });
    call.save(x, places, weights);
  },
  backward: (call) => {
    const [x, places, weights, dy] = [call.saved(0), call.saved(1), call.saved(2), call.dense(call.grad(0))];
    call.device.kernels.combinePairsBackward({
      ...pairSizes(x, places),
      dx: call.needs(0) ? call.out(0, x.dtype).ptr : undefined,
      dweights: call.needs(2) ? call.out(2, float32).ptr : undefined,
      ...{ dy: dy.ptr, x: x.ptr, places: places.ptr, weights: weights.ptr },
    });
  },
};

/** Output and input features of the weight of all experts. */
function featuresOf({ shape }: Tensor, layout: WeightLayout) {
  const [, first, second] = threeSizes("groupedLinear", shape);
  return layout === "outIn" ? [first, second] as const : [second, first] as const;
}

/**
 * x [rows, in], weight [experts, out, in] or [experts, in, out], ends of experts' rows int32 [experts], optional bias [experts,
 * out] → [rows, out]: each row times its expert's weight. The gradient of an expert without rows is zero.
 */
export const groupedLinearOp: ComputeOp<WeightLayout> = {
  name: "groupedLinear",
  infer: (inputs, layout) => {
    const [x, weight] = floatPair("groupedLinear", inputs, "input and weight");
    const [ends, bias] = [at(inputs, 2, "input"), inputs[3]];
    const [outFeatures, inFeatures] = featuresOf(weight, layout);
    const [groups] = weight.shape;
    if (x.ndim !== 2 || weight.ndim !== 3 || x.shape[1] !== inFeatures || ends.shape[0] !== groups) {
      throw new ShapeError("groupedLinear", "rows and weights must fit", x.shape, weight.shape, ends.shape);
    }
    const isOf = (size: number, dim: number): boolean => size === [groups, outFeatures][dim];
    if (bias !== undefined && (bias.ndim !== 2 || !bias.shape.every(isOf) || bias.dtype !== x.dtype)) {
      throw new ShapeError("groupedLinear", "the bias must be [experts, out]", bias.shape);
    }
    return [{ shape: [at(x.shape, 0, "dim"), outFeatures], dtype: x.dtype }];
  },
  forward: (call) => {
    const [x, weight, ends] = [call.dense(call.input(0)), call.dense(call.input(1)), call.dense(call.input(2))];
    const [n, k] = featuresOf(weight, call.attrs);
    const [rows, groups, c] = [at(x.shape, 0, "dim"), ends.numel, call.output(0).ptr];
    const { kernels } = call.device;
    const sizes = { dtype: x.dtype, groups, rows, ends: ends.ptr };
    kernels.groupedGemm({ ...sizes, transB: call.attrs === "outIn", n, k, c, a: x.ptr, b: weight.ptr });
    if (call.inputs > 3) kernels.groupedBias({ ...sizes, cols: n, x: c, bias: call.dense(call.input(3)).ptr });
    call.save(x, weight, ends);
  },
  backward: (call) => {
    const [x, weight, ends, dy] = [call.saved(0), call.saved(1), call.saved(2), call.dense(call.grad(0))];
    const [n, k] = featuresOf(weight, call.attrs);
    const { kernels } = call.device;
    const isOutIn = call.attrs === "outIn";
    const sizes = { dtype: x.dtype, groups: ends.numel, rows: at(x.shape, 0, "dim"), ends: ends.ptr };
    if (call.needs(0)) {
      const c = call.out(0, x.dtype).ptr;
      kernels.groupedGemm({ ...sizes, transB: !isOutIn, n: k, k: n, c, a: dy.ptr, b: weight.ptr });
    }
    if (call.needs(1)) {
      const { dtype: outDtype, ptr: c } = call.out(1);
      const factors = isOutIn ? { m: n, n: k, a: dy.ptr, b: x.ptr } : { m: k, n, a: x.ptr, b: dy.ptr };
      kernels.groupedGemmOuter({ ...sizes, outDtype, ...factors, c });
    }
    if (call.inputs > 3 && call.needs(3)) {
      const { groups, rows } = sizes;
      const wide = dy.dtype === float32 ? dy : call.empty(dy.shape, float32);
      if (wide !== dy) castTo(wide, dy);
      writeFloat32(call, 3, (y) => kernels.groupedSum({ groups, rows, cols: n, y, x: wide.ptr, ends: ends.ptr }));
    }
  },
};

/** Constants of a clamped SwiGLU. */
export interface ClampedSwigluAttrs {
  /** Factor of a gate inside its sigmoid. */
  readonly alpha: number;
  /** Upper limit of a gate, and of the magnitude of an up. */
  readonly limit: number;
}

/**
 * Alternating gates and ups [rows, 2 * width] → `(clamp(up) + 1) g sigmoid(alpha g)` with `g = min(gate, limit)`, [rows, width].
 */
export const clampedSwigluOp: ComputeOp<ClampedSwigluAttrs> = {
  name: "clampedSwiglu",
  infer: (inputs) => {
    const { dtype, shape } = floatInput("clampedSwiglu", inputs);
    const expected = "it must be [rows, 2 * width]";
    const [rows, both] = twoSizes("clampedSwiglu", shape, expected);
    if (both % 2 !== 0) throw new ShapeError("clampedSwiglu", expected, shape);
    return [{ shape: [rows, both / 2], dtype }];
  },
  forward: (call) => {
    const [gateUp, y] = [call.dense(call.input(0)), call.output(0)];
    const args = { dtype: y.dtype, n: y.numel, ...call.attrs };
    call.device.kernels.clampedSwiglu({ ...args, y: y.ptr, gateUp: gateUp.ptr });
    call.save(gateUp);
  },
  backward: (call) => {
    const [gateUp, dy] = [call.saved(0), call.dense(call.grad(0))];
    const args = { dtype: dy.dtype, n: dy.numel, ...call.attrs };
    const dgateUp = call.out(0, dy.dtype).ptr;
    call.device.kernels.clampedSwigluBackward({ ...args, dgateUp, dy: dy.ptr, gateUp: gateUp.ptr });
  },
};

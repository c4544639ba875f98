/**
 * Fuzzing of methods and functions that are composed of several ops.
 *
 * @module
 */
import { binaryCrossEntropyWithLogits, l1Loss, mseLoss, type Reduction, stack } from "../../doors/nn.ts";
import { at } from "../../src/at.ts";
import { int32, uint8 } from "../../src/dtype.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import type { FuzzOp, InputDraw } from "./cases.ts";
import type { Draw } from "./draw.ts";

const signed = (shape: readonly number[]): InputDraw => ({ shape, data: { kind: "signed" } });

/** A function of one to three tensors. */
function composed<A extends object>(
  draw: (draw: Draw) => { readonly inputs: readonly InputDraw[]; readonly attrs: A },
  run: (attrs: A, x: Tensor, y: Tensor, z: Tensor) => Tensor | readonly Tensor[],
): FuzzOp {
  return {
    draw: (choices) => {
      const { inputs, attrs } = draw(choices);
      return {
        inputs,
        attrs,
        run: (tensors) => {
          const x = at(tensors, 0, "input");
          const result = run(attrs, x, tensors[1] ?? x, tensors[2] ?? x);
          return result instanceof Array ? result : [result];
        },
      };
    },
  };
}

function withDim(draw: Draw): { readonly shape: number[]; readonly dim: number } {
  const shape = draw.shape(1);
  return { shape, dim: draw.int(0, shape.length - 1) };
}

function spread(draw: Draw) {
  const shape = draw.shape(1).map((size) => size + 1);
  const dims = draw.order(shape.length).slice(0, draw.int(1, shape.length));
  const attrs = { dims, keepDims: draw.chance(0.5), correction: draw.int(0, 1) };
  return { inputs: [{ shape, data: { kind: "distinct" } } as const], attrs };
}

function loss(run: (x: Tensor, y: Tensor, reduction: Reduction) => Tensor): FuzzOp {
  return composed((draw) => {
    const shape = draw.shape();
    const target = { shape, data: { kind: "unit" } } as const;
    const reduction = draw.pick(["mean", "sum", "none"] as const);
    return { inputs: [signed(shape), target], attrs: { reduction } };
  }, ({ reduction }, x, y) => run(x, y, reduction));
}

function triangle(draw: Draw) {
  return { inputs: [signed(draw.shape(2))], attrs: { diagonal: draw.int(-2, 2) } };
}

function alongDim(draw: Draw) {
  const { shape, dim } = withDim(draw);
  return { inputs: [signed(shape)], attrs: { dim } };
}

/** An index of one dim. */
function indexOf(draw: Draw, n: number): InputDraw {
  return { shape: [n === 0 ? 0 : draw.size()], data: { kind: "below", n: Math.max(1, n) }, dtype: int32 };
}

/** Fuzzed functions by name. */
export const COMPOSED_FUZZ: readonly (readonly [string, FuzzOp])[] = [
  ["composed var", composed(spread, ({ dims, keepDims, correction }, x) => x.var(dims, keepDims, correction))],
  ["composed std", composed(spread, ({ dims, keepDims, correction }, x) => x.std(dims, keepDims, correction))],
  ["composed tril", composed(triangle, ({ diagonal }, x) => x.tril(diagonal))],
  ["composed triu", composed(triangle, ({ diagonal }, x) => x.triu(diagonal))],
  ["composed softmax", composed(alongDim, ({ dim }, x) => x.softmax(dim))],
  ["composed cumsum", composed(alongDim, ({ dim }, x) => x.cumsum(dim))],
  ["composed mseLoss", loss(mseLoss)],
  ["composed l1Loss", loss(l1Loss)],
  ["composed bceLoss", loss(binaryCrossEntropyWithLogits)],
  [
    "composed split",
    composed((draw) => {
      const { shape, dim } = withDim(draw);
      return { inputs: [signed(shape)], attrs: { size: draw.int(1, 3), dim } };
    }, ({ size, dim }, x) => x.split(size, dim)),
  ],
  [
    "composed chunk",
    composed((draw) => {
      const { shape, dim } = withDim(draw);
      return {
        inputs: [signed(shape.with(dim, Math.max(1, at(shape, dim, "dim"))))],
        attrs: { chunks: draw.int(1, 3), dim },
      };
    }, ({ chunks, dim }, x) => x.chunk(chunks, dim)),
  ],
  [
    "composed select",
    composed((draw) => {
      const { shape, dim } = withDim(draw);
      const size = Math.max(1, at(shape, dim, "dim"));
      return { inputs: [signed(shape.with(dim, size))], attrs: { dim, index: draw.int(-size, size - 1) } };
    }, ({ dim, index }, x) => x.select(dim, index)),
  ],
  [
    "composed flatten",
    composed((draw) => {
      const shape = draw.shape();
      const start = draw.int(0, Math.max(0, shape.length - 1));
      return { inputs: [signed(shape)], attrs: { start, end: draw.int(start, Math.max(0, shape.length - 1)) } };
    }, ({ start, end }, x) => x.flatten(start, end)),
  ],
  [
    "composed stack",
    composed((draw) => {
      const shape = draw.shape(0, 3);
      return { inputs: [signed(shape), signed(shape)], attrs: { dim: draw.int(0, shape.length) } };
    }, ({ dim }, x, y) => stack([x, y], dim)),
  ],
  [
    "composed indexSelect",
    composed((draw) => {
      const { shape, dim } = withDim(draw);
      return { inputs: [signed(shape), indexOf(draw, at(shape, dim, "dim"))], attrs: { dim } };
    }, ({ dim }, x, index) => x.indexSelect(dim, index)),
  ],
  [
    "composed indexAdd",
    composed((draw) => {
      const { shape, dim } = withDim(draw);
      const index = indexOf(draw, at(shape, dim, "dim"));
      const source = signed(shape.with(dim, at(index.shape, 0, "dim")));
      return { inputs: [signed(shape), index, source], attrs: { dim } };
    }, ({ dim }, x, index, source) => x.indexAdd(dim, index, source)),
  ],
  [
    "composed maskedFill",
    composed((draw) => {
      const shape = draw.shape();
      const mask = { shape: draw.broadcastable(shape), data: { kind: "mask" }, dtype: uint8 } as const;
      return { inputs: [signed(shape), mask], attrs: { value: draw.pick([0, -3, 1.5]) } };
    }, ({ value }, x, mask) => x.maskedFill(mask, value)),
  ],
  [
    "composed scalars",
    composed((draw) => {
      return { inputs: [signed(draw.shape())], attrs: { value: draw.pick([0.25, 2, -4]) } };
    }, ({ value }, x) => x.div(value).sub(0.5).maximum(value)),
  ],
];

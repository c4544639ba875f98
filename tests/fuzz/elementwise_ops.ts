/**
 * Fuzzing of ops that work on elements, move them or reduce them.
 *
 * @module
 */
import { at } from "../../src/at.ts";
import { OPS } from "../../src/device/kernels/signature.ts";
import { bfloat16, type DType, float16, float32, int32, uint8 } from "../../src/dtype.ts";
import { castOp, castToIntOp } from "../../src/ops/convert.ts";
import { cumsumOp } from "../../src/ops/cumsum.ts";
import { dropoutOp } from "../../src/ops/dropout.ts";
import { binaryOp, swigluOp, unaryOp } from "../../src/ops/elementwise.ts";
import { gatherOp, scatterAddOp } from "../../src/ops/index.ts";
import { catOp } from "../../src/ops/join.ts";
import { compareOp, whereOp } from "../../src/ops/mask.ts";
import type { ComputeOp, ViewOp } from "../../src/ops/op.ts";
import { argmaxOp, maxOp, meanOp, minOp, type ReduceAttrs, sumOp } from "../../src/ops/reduce.ts";
import { topkOp } from "../../src/ops/topk.ts";
import { denseOp, expandOp, narrowOp, permuteOp, reshapeOp, squeezeOp, unsqueezeOp } from "../../src/ops/view.ts";
import { apply, applyOne, applyView } from "../../src/tensor/apply.ts";
import { ones } from "../../src/tensor/create.ts";
import { scope } from "../../src/tensor/scope.ts";
import type { CallDraw, FuzzOp, InputDraw } from "./cases.ts";
import type { Draw } from "./draw.ts";

const FLOATS = [float32, bfloat16, float16];
/** Of dtypes that views take, floats come most often. */
const ANY = [...FLOATS, ...FLOATS, int32, uint8];

const signed = (shape: readonly number[]): InputDraw => ({ shape, data: { kind: "signed" } });
/** Numbers that every dtype holds. */
const numbers = (shape: readonly number[], dtype: DType): InputDraw =>
  dtype.kind === "float" ? signed(shape) : { shape, data: { kind: "below", n: 7 } };

/** An op whose attributes the reference is told as they are. */
export function fuzzOf<A extends object>(
  op: ComputeOp<A>,
  draw: (draw: Draw, dtype: DType) => { readonly inputs: readonly InputDraw[]; readonly attrs: A },
  dtypes?: readonly DType[],
): FuzzOp {
  return {
    record: op,
    ...dtypes === undefined ? {} : { dtypes },
    draw: (choices, dtype) => {
      const { inputs, attrs } = draw(choices, dtype);
      return { inputs, attrs, run: (tensors) => apply(op, tensors, attrs) };
    },
  };
}

/** An op whose attributes the reference is told by another name. */
export function fuzzNamed<A>(
  op: ComputeOp<A>,
  draw: (draw: Draw, dtype: DType) => Pick<CallDraw, "inputs" | "attrs"> & { readonly own: A },
  dtypes?: readonly DType[],
): FuzzOp {
  return {
    record: op,
    ...dtypes === undefined ? {} : { dtypes },
    draw: (choices, dtype) => {
      const { own, ...told } = draw(choices, dtype);
      return { ...told, run: (tensors) => apply(op, tensors, own) };
    },
  };
}

function fuzzView<A>(
  op: ViewOp<A>,
  draw: (draw: Draw, shape: number[]) => { readonly own: A; readonly attrs: CallDraw["attrs"] },
  least: number = 0,
): FuzzOp {
  return {
    record: op,
    dtypes: ANY,
    draw: (choices, dtype) => {
      const shape = choices.shape(least);
      const { own, attrs } = draw(choices, shape);
      const run: CallDraw["run"] = (tensors) => [applyView(op, at(tensors, 0, "input"), own)];
      return { inputs: [numbers(shape, dtype)], attrs, run };
    },
  };
}

const POSITIVE = ["log", "sqrt", "rsqrt", "reciprocal", "powScalar"];

function unaryFuzz(name: typeof OPS.unaryOp[number]): FuzzOp {
  return fuzzOf(unaryOp(name), (draw) => {
    const kind = POSITIVE.includes(name) ? "positive" : "signed";
    const attrs = name === "clamp"
      ? { p0: -draw.int(0, 64) / 32, p1: draw.int(0, 64) / 32 } // inputs lie at limits too
      : { p0: draw.int(-64, 64) / 32, p1: 0 };
    return { inputs: [{ shape: draw.shape(), data: { kind } }], attrs };
  });
}

function binaryFuzz(name: typeof OPS.binaryOp[number]): FuzzOp {
  return fuzzNamed(binaryOp(name), (draw) => {
    const shape = draw.shape();
    const [a, b] = draw.chance(0.5)
      ? [shape, draw.broadcastable(shape)] as const
      : [draw.broadcastable(shape), shape] as const;
    const first = { shape: a, data: { kind: name === "pow" ? "positive" : "signed" } } as const;
    const second = { shape: b, data: { kind: name === "div" ? "positive" : "signed" } } as const;
    return { inputs: [first, second], attrs: {}, own: undefined };
  });
}

function compareFuzz(name: typeof OPS.compareOp[number]): FuzzOp {
  return fuzzNamed(compareOp(name), (draw, dtype) => {
    const shape = draw.shape();
    const few = (of: readonly number[]): InputDraw => ({ shape: of, data: { kind: "below", n: 3 } });
    const inputs = draw.chance(0.5)
      ? [few(shape), few(draw.broadcastable(shape))]
      : [numbers(draw.broadcastable(shape), dtype), numbers(shape, dtype)];
    return { inputs, attrs: {}, own: undefined };
  }, ANY);
}

function reduceFuzz(op: ComputeOp<ReduceAttrs>): FuzzOp {
  const least = op === maxOp || op === minOp ? 1 : 0; // of no elements none is the largest
  return fuzzNamed(op, (draw) => {
    const shape = draw.shape().map((size) => Math.max(size, least));
    const dims = draw.chance(0.2) || shape.length === 0
      ? undefined
      : draw.order(shape.length).slice(0, draw.int(1, shape.length)).map((dim) =>
        draw.chance(0.3) ? dim - shape.length : dim
      );
    const own = { dims, keepDims: draw.chance(0.5) };
    return { inputs: [signed(shape)], attrs: { ...own, dims: dims ?? null }, own };
  });
}

const dropoutFuzz: FuzzOp = {
  record: dropoutOp,
  draw: (draw, _, device) => {
    const shape = draw.shape(2);
    const own = { p: draw.pick([0, 0.25, 0.5, 1]), key: draw.seed(), sample: draw.int(0, 99) };
    // The reference does not know the random numbers: it is told what ones become in float32, and computes the rest.
    using _frame = scope();
    const kept = [...applyOne(dropoutOp, [ones(device, shape)], own).toArray()].map((value) => value === 0 ? 0 : 1);
    const attrs = { keep: kept, factor: own.p === 1 ? 0 : 1 / (1 - own.p) };
    return { inputs: [signed(shape)], attrs, run: (tensors) => apply(dropoutOp, tensors, own) };
  },
};

/** A tensor, a dim of it, and the shape of an index along that dim. */
function indexed(draw: Draw): { shape: number[]; dim: number; index: InputDraw } {
  const shape = draw.shape(1);
  const dim = draw.int(0, shape.length - 1);
  const n = at(shape, dim, "dim");
  const index = {
    shape: shape.with(dim, n === 0 ? 0 : draw.size()),
    data: { kind: "below", n: Math.max(1, n) },
  } as const;
  return { shape, dim, index: { ...index, dtype: int32 } };
}

/** Fuzzed ops by name. */
export const ELEMENTWISE_FUZZ: readonly (readonly [string, FuzzOp])[] = [
  ...OPS.unaryOp.map((name) => [`unary ${name}`, unaryFuzz(name)] as const),
  ...OPS.binaryOp.map((name) => [`binary ${name}`, binaryFuzz(name)] as const),
  ...OPS.compareOp.map((name) => [`compare ${name}`, compareFuzz(name)] as const),
  ...[sumOp, meanOp, maxOp, minOp].map((op) => [op.name, reduceFuzz(op)] as const),
  ["dropout", dropoutFuzz],
  [
    "where",
    fuzzNamed(whereOp, (draw, dtype) => {
      const shape = draw.shape();
      const mask = { shape: draw.broadcastable(shape), data: { kind: "mask" }, dtype: uint8 } as const;
      const inputs = [mask, numbers(draw.broadcastable(shape), dtype), numbers(shape, dtype)];
      return { inputs, attrs: {}, own: undefined };
    }, ANY),
  ],
  [
    "swiglu",
    fuzzNamed(swigluOp, (draw) => {
      const shape = draw.shape();
      return { inputs: [signed(shape), signed(shape)], attrs: {}, own: undefined };
    }),
  ],
  [
    "to float",
    fuzzNamed(castOp, (draw, dtype) => {
      const own = draw.pick(FLOATS);
      return { inputs: [numbers(draw.shape(), dtype)], attrs: { dtype: own.name }, own };
    }, ANY),
  ],
  [
    "to integer",
    fuzzNamed(castToIntOp, (draw, dtype) => {
      const own = draw.pick([int32, uint8]);
      const shape = draw.shape();
      const input = own === uint8 && dtype.kind === "float"
        ? { shape, data: { kind: "positive" } } as const
        : numbers(shape, dtype);
      return { inputs: [input], attrs: { dtype: own.name }, own };
    }, ANY),
  ],
  [
    "cumsum",
    fuzzNamed(cumsumOp, (draw) => ({ inputs: [signed(draw.shape(1))], attrs: {}, own: undefined })),
  ],
  [
    "gather",
    fuzzNamed(gatherOp, (draw, dtype) => {
      const { shape, dim, index } = indexed(draw);
      return { inputs: [numbers(shape, dtype), index], attrs: { dim }, own: dim };
    }, ANY),
  ],
  [
    "scatterAdd",
    fuzzNamed(scatterAddOp, (draw) => {
      const { shape, dim, index } = indexed(draw);
      return { inputs: [signed(shape), index, signed(index.shape)], attrs: { dim }, own: dim };
    }),
  ],
  [
    "cat",
    fuzzNamed(catOp, (draw, dtype) => {
      const shape = draw.shape(1);
      const dim = draw.int(0, shape.length - 1);
      const inputs = Array.from({ length: draw.int(1, 4) }, () => numbers(shape.with(dim, draw.size()), dtype));
      return { inputs, attrs: { dim }, own: dim };
    }, ANY),
  ],
  [
    "argmax",
    fuzzNamed(argmaxOp, (draw) => {
      const shape = [...draw.shape(0, 2), draw.int(1, 9)];
      const kind = draw.pick(["signed", "distinct"] as const);
      return { inputs: [{ shape, data: { kind } }], attrs: {}, own: undefined };
    }),
  ],
  [
    "topk",
    fuzzNamed(topkOp, (draw) => {
      const cols = draw.int(1, 9);
      const k = draw.int(1, cols);
      const kind = draw.pick(["signed", "distinct"] as const);
      return { inputs: [{ shape: [...draw.shape(0, 2), cols], data: { kind } }], attrs: { k }, own: k };
    }),
  ],
  [
    "contiguous",
    fuzzNamed(denseOp, (draw, dtype) => ({ inputs: [numbers(draw.shape(), dtype)], attrs: {}, own: undefined }), ANY),
  ],
  [
    "reshape",
    {
      record: reshapeOp,
      dtypes: ANY,
      draw: (draw, dtype) => {
        const shape = draw.shape();
        const numel = shape.reduce((n, size) => n * size, 1);
        const divisors = [1, 2, 3, 4, 5].filter((n) => numel % n === 0);
        const first = draw.pick(divisors);
        const to = draw.pick([[numel], [first, numel / first], [numel / first, 1, first], [1, numel]]);
        const own = numel > 0 && draw.chance(0.3) ? to.with(0, -1) : to;
        const run: CallDraw["run"] = (tensors) => {
          const x = at(tensors, 0, "input");
          return [applyView(reshapeOp, x.contiguous(), own)];
        };
        return { inputs: [numbers(shape, dtype)], attrs: { shape: own }, run };
      },
    },
  ],
  [
    "squeeze",
    fuzzView(squeezeOp, (draw, shape) => {
      const ones = [...shape.keys()].filter((dim) => shape[dim] === 1);
      const own = draw.chance(0.5) ? ones : ones.slice(0, 1);
      return { own, attrs: { dims: own } };
    }),
  ],
  [
    "unsqueeze",
    fuzzView(unsqueezeOp, (draw, shape) => {
      const own = draw.int(0, shape.length);
      return { own, attrs: { dim: own } };
    }),
  ],
  [
    "permute",
    fuzzView(permuteOp, (draw, shape) => {
      const own = draw.order(shape.length);
      return { own, attrs: { dims: own } };
    }),
  ],
  [
    "narrow",
    fuzzView(narrowOp, (draw, shape) => {
      const dim = draw.int(0, shape.length - 1);
      const size = at(shape, dim, "dim");
      const start = draw.int(0, size);
      const own = { dim, start, length: draw.int(0, size - start) };
      return { own, attrs: own };
    }, 1),
  ],
  [
    "expand",
    fuzzView(expandOp, (draw, shape) => {
      const lead = draw.chance(0.4) ? [draw.int(1, 3)] : [];
      const own = [...lead, ...shape.map((size) => size === 1 ? draw.int(1, 3) : size)];
      return { own, attrs: { shape: own } };
    }),
  ],
];

/**
 * Element-wise functions of one or two values.
 *
 * @module
 */
import { type BinaryOp, type CompareOp, OPS, type UnaryOp } from "../device/kernels/signature.ts";
import type { ArgsOf } from "../device/kernels/table.ts";
import { uint8 } from "../dtype.ts";
import { ShapeError } from "../errors.ts";
import { broadcastShapes, broadcastStrides, sameShape } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { floatInput, floatPair } from "./check.ts";
import { compareInto, selectInto, zeroOf } from "./mask.ts";
import { type BackwardCall, type ComputeOp, type OpContext, recordsOf } from "./op.ts";
import { sumTo } from "./sum_to.ts";

/** Scalar parameters of a function of one value. */
export type UnaryAttrs = Pick<ArgsOf<"unary">, "p0" | "p1">;

function unary(name: UnaryOp): ComputeOp<UnaryAttrs> {
  return {
    name,
    infer: (inputs) => {
      const { shape, dtype } = floatInput(name, inputs);
      return [{ shape, dtype }];
    },
    forward: (call) => {
      const x = call.dense(call.input(0));
      const args = { dtype: x.dtype, op: name, n: x.numel, ...call.attrs };
      call.device.kernels.unary({ ...args, dst: call.output(0).ptr, src: x.ptr });
      call.save(x);
    },
    backward: (call) => {
      const x = call.saved(0);
      const [dx, dy] = [call.out(0, x.dtype), call.dense(call.grad(0))];
      const args = { dtype: x.dtype, op: name, n: x.numel, ...call.attrs };
      call.device.kernels.unaryBackward({ ...args, dx: dx.ptr, dy: dy.ptr, x: x.ptr });
    },
  };
}

/** `op(a, b)`, broadcasting, as a new dense tensor. */
function combine(context: OpContext, op: BinaryOp, a: Tensor, b: Tensor): Tensor {
  const shape = broadcastShapes(op, a.shape, b.shape);
  const result = context.empty(shape, a.dtype);
  combineInto(context, op, result, a, b);
  return result;
}

/** `result = op(a, b)`, both broadcasting to the dense result, which may be one of them. */
export function combineInto(context: OpContext, op: BinaryOp, result: Tensor, a: Tensor, b: Tensor): void {
  const { shape } = result;
  const strides = { aStrides: broadcastStrides(a.layout, shape), bStrides: broadcastStrides(b.layout, shape) };
  context.device.kernels.binary({ dtype: a.dtype, op, shape, ...strides, dst: result.ptr, a: a.ptr, b: b.ptr });
}

/** A mask of dy's shape: 1 where `op(a, b)` holds. */
function maskOf(call: BackwardCall<undefined>, op: CompareOp, { shape }: Tensor, a: Tensor, b: Tensor): Tensor {
  const mask = call.empty(shape, uint8);
  compareInto(call, op, mask, a, b);
  return mask;
}

/** Gradients of maximum and minimum: half to each where both are equal, else all to the taken one; to both where one is NaN. */
function extremeGradients(
  op: "maximum" | "minimum",
  call: BackwardCall<undefined>,
  dy: Tensor,
): [Tensor | undefined, Tensor | undefined] {
  const [a, b] = [call.saved(0), call.saved(1)];
  const select = (mask: Tensor, yes: Tensor, no: Tensor): Tensor => {
    const result = call.empty(dy.shape, dy.dtype);
    selectInto(call, result, mask, yes, no);
    return result;
  };
  const shared = select(maskOf(call, "eq", dy, a, b), scaled(call, dy, 0.5), dy);
  const [lessA, lessB] = op === "maximum" ? ["lt", "gt"] as const : ["gt", "lt"] as const;
  const unless = (lost: CompareOp): Tensor => select(maskOf(call, lost, dy, a, b), zeroOf(call, dy), shared);
  return [call.needs(0) ? unless(lessA) : undefined, call.needs(1) ? unless(lessB) : undefined];
}

function scaled(context: OpContext, x: Tensor, factor: number): Tensor {
  const result = context.empty(x.shape, x.dtype);
  const src = context.dense(x).ptr;
  context.device.kernels.scale({ dtype: x.dtype, n: x.numel, factor, dst: result.ptr, src });
  return result;
}

function mapped(context: OpContext, op: UnaryOp, x: Tensor, p0: number = 0): Tensor {
  const result = context.empty(x.shape, x.dtype);
  const args = { dtype: x.dtype, op, n: x.numel, p0, p1: 0 };
  context.device.kernels.unary({ ...args, dst: result.ptr, src: context.dense(x).ptr });
  return result;
}

/** Gradients of `a^b`; 0 where the power is constant although its factors may be infinite: of a at b = 0, and of b at a = 0. */
function powGradients(call: BackwardCall<undefined>, dy: Tensor): [Tensor | undefined, Tensor | undefined] {
  const [a, b] = [call.saved(0), call.saved(1)];
  const zero = zeroOf(call, dy);
  const is = (op: CompareOp, x: Tensor): Tensor => {
    const mask = call.empty(x.shape, uint8);
    compareInto(call, op, mask, x, zero);
    return mask;
  };
  const unless = (mask: Tensor, grad: Tensor): Tensor => {
    const result = call.empty(grad.shape, grad.dtype);
    selectInto(call, result, mask, zero, grad);
    return result;
  };
  const da = (): Tensor => {
    const slope = combine(call, "mul", b, combine(call, "pow", a, mapped(call, "addScalar", b, -1)));
    return unless(is("eq", b), combine(call, "mul", dy, slope));
  };
  const db = (): Tensor => {
    const slope = combine(call, "mul", combine(call, "pow", a, b), mapped(call, "log", a));
    const isConstant = call.empty(dy.shape, uint8);
    compareInto(call, "logicalAnd", isConstant, is("eq", a), is("ge", b));
    return unless(isConstant, combine(call, "mul", dy, slope));
  };
  return [call.needs(0) ? da() : undefined, call.needs(1) ? db() : undefined];
}

/** Gradients of both arguments, in the output's shape. */
function gradients(op: BinaryOp, call: BackwardCall<undefined>): [Tensor | undefined, Tensor | undefined] {
  const dy = call.grad(0);
  const [needsA, needsB] = [call.needs(0), call.needs(1)];
  switch (op) {
    case "add":
      return [dy, dy];
    case "sub":
      return [dy, needsB ? scaled(call, dy, -1) : undefined];
    case "mul":
      return [
        needsA ? combine(call, "mul", dy, call.saved(1)) : undefined,
        needsB ? combine(call, "mul", dy, call.saved(0)) : undefined,
      ];
    case "div": {
      const da = combine(call, "div", dy, call.saved(1));
      if (!needsB) return [da, undefined];
      const ratio = combine(call, "div", call.saved(0), call.saved(1));
      return [da, scaled(call, combine(call, "mul", da, ratio), -1)];
    }
    case "maximum":
    case "minimum":
      return extremeGradients(op, call, dy);
    case "pow":
      return powGradients(call, dy);
  }
}

function binary(name: BinaryOp): ComputeOp<undefined> {
  return {
    name,
    infer: (inputs) => {
      const [a, b] = floatPair(name, inputs);
      return [{ shape: broadcastShapes(name, a.shape, b.shape), dtype: a.dtype }];
    },
    forward: (call) => {
      combineInto(call, name, call.output(0), call.input(0), call.input(1));
      if (name !== "add" && name !== "sub") call.save(call.input(0), call.input(1));
    },
    backward: (call) => {
      gradients(name, call).forEach((grad, i) => {
        if (grad !== undefined && call.needs(i)) call.give(i, sumTo(call, grad, call.spec(i).shape));
      });
    },
  };
}

/** The record of a function of one value. */
export const unaryOp: (name: UnaryOp) => ComputeOp<UnaryAttrs> = recordsOf(OPS.unaryOp, unary);
/** The record of a function of two values. */
export const binaryOp: (name: BinaryOp) => ComputeOp<undefined> = recordsOf(OPS.binaryOp, binary);

/** SwiGLU (Shazeer 2020): gate and up of one shape → silu(gate) * up. */
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

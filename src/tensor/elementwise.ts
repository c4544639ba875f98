/**
 * The element-wise methods of tensors: arithmetic, functions, comparisons, choices by a mask. Two tensors broadcast, and have one
 * dtype; a number counts as a tensor of that number.
 *
 * @module
 */
import { requireWord } from "../config/known_values.ts";
import type { BinaryOp, CompareOp, UnaryOp } from "../device/kernels/signature.ts";
import { bfloat16, float16 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { overflows } from "../held.ts";
import { requireTensor } from "../ops/check.ts";
import { binaryOp, unaryOp } from "../ops/elementwise.ts";
import { compareOp, whereOp } from "../ops/mask.ts";
import { applyOne } from "./apply.ts";
import { inFloat32 } from "./composed.ts";
import { scalar } from "./host.ts";
import type { Tensor } from "./tensor.ts";

/** Forms of {@link ElementwiseMethods.gelu}. */
const APPROXIMATIONS = ["none", "tanh"] as const;

/** Base class of {@link Tensor}, in a file of its own. */
export abstract class ElementwiseMethods {
  static {
    // Text of `console.log`, in Bun and in Deno.
    const value = function (this: ElementwiseMethods): string {
      return this.toString();
    };
    Object.defineProperty(this.prototype, Symbol.for("nodejs.util.inspect.custom"), { value });
  }

  #unary(this: Tensor, op: UnaryOp, p0: number = 0, p1: number = 0): Tensor {
    return applyOne(unaryOp(op), [this], { p0, p1 });
  }

  /** Calls `compute` with the other operand, which is made a tensor if it is a number. */
  #with(this: Tensor, other: Tensor | number, op: string, compute: (other: Tensor) => Tensor): Tensor {
    if (typeof other !== "number") {
      requireTensor(op, other, "a tensor or a number");
      return compute(other);
    }
    using made = scalar(this, other, op);
    return compute(made);
  }

  #binary(this: Tensor, op: BinaryOp, other: Tensor | number): Tensor {
    return this.#with(other, op, (tensor) => applyOne(binaryOp(op), [this, tensor], undefined));
  }

  #compare(this: Tensor, op: CompareOp, other: Tensor | number): Tensor {
    return this.#with(other, op, (tensor) => applyOne(compareOp(op), [this, tensor], undefined));
  }

  /** Element-wise sum, broadcasting. */
  add(this: Tensor, other: Tensor | number): Tensor {
    return typeof other === "number" ? this.#unary("addScalar", other) : this.#binary("add", other);
  }
  /** Element-wise difference, broadcasting. */
  sub(this: Tensor, other: Tensor | number): Tensor {
    return typeof other === "number" ? this.#unary("addScalar", -other) : this.#binary("sub", other);
  }
  /** Element-wise product, broadcasting. */
  mul(this: Tensor, other: Tensor | number): Tensor {
    return typeof other === "number" ? this.#unary("mulScalar", other) : this.#binary("mul", other);
  }
  /** Element-wise quotient, broadcasting. */
  div(this: Tensor, other: Tensor | number): Tensor {
    // A narrow dtype would round the number first, to infinity or 0 too.
    if (typeof other === "number" && (this.dtype === float16 || this.dtype === bfloat16)) {
      return inFloat32(this, (wide) => wide.div(other));
    }
    return this.#binary("div", other);
  }
  /** Element-wise larger value; equal values share the gradient in halves. */
  maximum(this: Tensor, other: Tensor | number): Tensor {
    return this.#binary("maximum", other);
  }
  /** Element-wise smaller value; equal values share the gradient in halves. */
  minimum(this: Tensor, other: Tensor | number): Tensor {
    return this.#binary("minimum", other);
  }
  /** Element-wise power, broadcasting; its gradient is 0 where the exponent is 0. */
  pow(this: Tensor, exponent: Tensor | number): Tensor {
    if (typeof exponent !== "number") return this.#binary("pow", exponent);
    return exponent === 2 ? this.square() : this.#unary("powScalar", exponent);
  }

  /** Element-wise mask: equal. Broadcasts; all comparisons give uint8, 1 or 0. */
  eq(this: Tensor, other: Tensor | number): Tensor {
    return this.#compare("eq", other);
  }
  /** Element-wise mask: not equal; NaN equals nothing. */
  ne(this: Tensor, other: Tensor | number): Tensor {
    return this.#compare("ne", other);
  }
  /** Element-wise mask: less. */
  lt(this: Tensor, other: Tensor | number): Tensor {
    return this.#compare("lt", other);
  }
  /** Element-wise mask: less or equal. */
  le(this: Tensor, other: Tensor | number): Tensor {
    return this.#compare("le", other);
  }
  /** Element-wise mask: greater. */
  gt(this: Tensor, other: Tensor | number): Tensor {
    return this.#compare("gt", other);
  }
  /** Element-wise mask: greater or equal. */
  ge(this: Tensor, other: Tensor | number): Tensor {
    return this.#compare("ge", other);
  }
  /** Element-wise mask: both are not 0. */
  logicalAnd(this: Tensor, other: Tensor): Tensor {
    return this.#compare("logicalAnd", other);
  }
  /** Element-wise mask: at least one is not 0. */
  logicalOr(this: Tensor, other: Tensor): Tensor {
    return this.#compare("logicalOr", other);
  }
  /** Element-wise mask: 0. */
  logicalNot(this: Tensor): Tensor {
    return this.#compare("eq", 0);
  }
  /** `value` where the uint8 mask is not 0, else this; the mask broadcasts. */
  maskedFill(this: Tensor, mask: Tensor, value: number): Tensor {
    if (overflows(this.dtype, value)) {
      const { name } = this.dtype;
      throw new ArgumentError(`Cannot apply 'maskedFill' to ${name} with ${value}: ${name} makes it infinite`);
    }
    return this.#with(value, "maskedFill", (filled) => applyOne(whereOp, [mask, filled, this], undefined));
  }

  /** -x */
  neg(this: Tensor): Tensor {
    return this.#unary("neg");
  }
  /** eˣ */
  exp(this: Tensor): Tensor {
    return this.#unary("exp");
  }
  /** Natural logarithm. */
  log(this: Tensor): Tensor {
    return this.#unary("log");
  }
  /** Square root. */
  sqrt(this: Tensor): Tensor {
    return this.#unary("sqrt");
  }
  /** 1 / √x */
  rsqrt(this: Tensor): Tensor {
    return this.#unary("rsqrt");
  }
  /** 1 / x */
  reciprocal(this: Tensor): Tensor {
    return this.#unary("reciprocal");
  }
  /** Hyperbolic tangent. */
  tanh(this: Tensor): Tensor {
    return this.#unary("tanh");
  }
  /** 1 / (1 + e⁻ˣ) */
  sigmoid(this: Tensor): Tensor {
    return this.#unary("sigmoid");
  }
  /** x · sigmoid(x) */
  silu(this: Tensor): Tensor {
    return this.#unary("silu");
  }
  /** x Φ(x), exact or in the tanh approximation. @throws {ArgumentError} for another word */
  gelu(this: Tensor, approximate: "none" | "tanh" = "none"): Tensor {
    requireWord("apply 'gelu'", "approximate", approximate, APPROXIMATIONS);
    return this.#unary(approximate === "tanh" ? "geluTanh" : "gelu");
  }
  /** max(x, 0) */
  relu(this: Tensor): Tensor {
    return this.#unary("relu");
  }
  /** ln(1 + eˣ) */
  softplus(this: Tensor): Tensor {
    return this.#unary("softplus");
  }
  /** x² */
  square(this: Tensor): Tensor {
    return this.#unary("square");
  }
  /** |x| */
  abs(this: Tensor): Tensor {
    return this.#unary("abs");
  }
  /** Sine. */
  sin(this: Tensor): Tensor {
    return this.#unary("sin");
  }
  /** Cosine. */
  cos(this: Tensor): Tensor {
    return this.#unary("cos");
  }
  /**
   * Values limited to [low, high]; for an upper limit alone, `low` is -Infinity.
   *
   * @throws {ArgumentError} if a limit is NaN or no number
   */
  clamp(this: Tensor, low: number, high: number = Infinity): Tensor {
    for (const limit of [low, high]) {
      if (typeof limit === "number" && !Number.isNaN(limit)) continue;
      throw new ArgumentError(
        `Cannot clamp to [${String(low)}, ${
          String(high)
        }]: both limits must be numbers; no limit is -Infinity or Infinity`,
      );
    }
    return this.#unary("clamp", low, high);
  }
}

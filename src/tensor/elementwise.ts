/**
 * The methods of tensors that work on each element alone: arithmetic, functions, comparisons, choices by a mask. Two tensors
 * broadcast, and have one dtype; a number stands for a tensor of that number.
 *
 * @module
 */
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

/** What {@link Tensor} inherits: a part of the same class, in a file of its own. */
export abstract class ElementwiseMethods {
  static {
    // What `console.log` shows, in Bun and in Deno.
    const value = function (this: ElementwiseMethods): string {
      return this.toString();
    };
    Object.defineProperty(this.prototype, Symbol.for("nodejs.util.inspect.custom"), { value });
  }

  #unary(this: Tensor, op: UnaryOp, p0: number = 0, p1: number = 0): Tensor {
    return applyOne(unaryOp(op), [this], { p0, p1 });
  }

  /** Runs `run` with the other operand, for which a number is made a tensor. */
  #with(this: Tensor, other: Tensor | number, op: string, run: (other: Tensor) => Tensor): Tensor {
    if (typeof other !== "number") {
      requireTensor(op, other, "a tensor or a number");
      return run(other);
    }
    using made = scalar(this, other, op);
    return run(made);
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
  /** Element-wise larger one; the gradient of equals goes to both in halves. */
  maximum(this: Tensor, other: Tensor | number): Tensor {
    return this.#binary("maximum", other);
  }
  /** Element-wise smaller one; the gradient of equals goes to both in halves. */
  minimum(this: Tensor, other: Tensor | number): Tensor {
    return this.#binary("minimum", other);
  }
  /** Element-wise power, broadcasting; its gradient is 0 where the exponent is. */
  pow(this: Tensor, exponent: Tensor | number): Tensor {
    if (typeof exponent !== "number") return this.#binary("pow", exponent);
    return exponent === 2 ? this.square() : this.#unary("powScalar", exponent);
  }

  /** Mask of where they are equal, broadcasting: uint8, 1 or 0, as of all comparisons. */
  eq(this: Tensor, other: Tensor | number): Tensor {
    return this.#compare("eq", other);
  }
  /** Mask of where they are not equal; NaN never is. */
  ne(this: Tensor, other: Tensor | number): Tensor {
    return this.#compare("ne", other);
  }
  /** Mask of where this is less. */
  lt(this: Tensor, other: Tensor | number): Tensor {
    return this.#compare("lt", other);
  }
  /** Mask of where this is less or equal. */
  le(this: Tensor, other: Tensor | number): Tensor {
    return this.#compare("le", other);
  }
  /** Mask of where this is greater. */
  gt(this: Tensor, other: Tensor | number): Tensor {
    return this.#compare("gt", other);
  }
  /** Mask of where this is greater or equal. */
  ge(this: Tensor, other: Tensor | number): Tensor {
    return this.#compare("ge", other);
  }
  /** Mask of where both are not 0. */
  logicalAnd(this: Tensor, other: Tensor): Tensor {
    return this.#compare("logicalAnd", other);
  }
  /** Mask of where at least one is not 0. */
  logicalOr(this: Tensor, other: Tensor): Tensor {
    return this.#compare("logicalOr", other);
  }
  /** Mask of where it is 0. */
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
  /** x Φ(x), exact or in the tanh approximation. */
  gelu(this: Tensor, approximate: "none" | "tanh" = "none"): Tensor {
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

/**
 * Sums of attention round a ring: outputs over the keys of several shards, and gradients of a shard over several queries.
 *
 * @module
 */
import { at } from "../at.ts";
import type { DevicePtr } from "../device/device.ts";
import { type DType, float32 } from "../dtype.ts";
import type { OpContext } from "../ops/op.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { placeAt, type RingSizes } from "./ring_sizes.ts";
import type { RingPiece } from "./ring_tiles.ts";

/** Joins a piece's output and the logarithms of its sums to those of the keys before. */
export class Joiner {
  readonly #sizes: RingSizes;
  readonly #context: OpContext;
  /** A piece's output as the kernel gives it, and in float32. */
  readonly output: Tensor;
  readonly lse: Tensor;
  readonly #wide: Tensor;
  readonly #growth: Tensor;

  constructor(context: OpContext, sizes: RingSizes) {
    const { dtype, piece, heads, valueDim } = sizes;
    this.#sizes = sizes;
    this.#context = context;
    this.output = context.empty([piece, heads, valueDim], dtype);
    this.#wide = dtype === float32 ? this.output : context.empty([piece, heads, valueDim], float32);
    this.lse = context.empty([heads, piece], float32);
    this.#growth = context.empty([heads, piece], float32);
  }

  /** Takes the output of the first keys of some queries. */
  widen(total: DevicePtr, queries: number): void {
    const { heads, valueDim } = this.#sizes;
    this.#toFloat32(total, queries * heads * valueDim);
  }

  /**
   * `total += sigmoid(lse' - lse) (o' - total)`, `lse += softplus(lse' - lse)`. A query that sees no key of the piece has an output of
   * zeros and a logarithm of -Infinity, and keeps its bits.
   */
  join(total: DevicePtr, lse: DevicePtr, queries: number): void {
    const { device: { kernels } } = this.#context;
    const { heads, valueDim } = this.#sizes;
    const [n, rows] = [queries * heads * valueDim, queries * heads];
    const difference = this.lse.ptr;
    const flat = { dtype: float32, shape: [rows], aStrides: [1], bStrides: [1] };
    kernels.binary({ ...flat, op: "sub", dst: difference, a: difference, b: lse });
    const ofDifference = { dtype: float32, n: rows, p0: 0, p1: 0, src: difference };
    kernels.unary({ ...ofDifference, op: "softplus", dst: this.#growth.ptr });
    kernels.accumulate({ dstDtype: float32, srcDtype: float32, n: rows, dst: lse, src: this.#growth.ptr });
    kernels.unary({ ...ofDifference, op: "sigmoid", dst: difference });
    const part = this.#wide.ptr;
    if (this.#wide !== this.output) this.#toFloat32(part, n);
    kernels.binary({
      ...{ dtype: float32, op: "sub", shape: [n], aStrides: [1], bStrides: [1], dst: part, a: part, b: total },
    });
    kernels.binary({
      ...{ dtype: float32, op: "mul", shape: [queries, heads, valueDim], dst: part, a: part, b: difference },
      ...{ aStrides: [heads * valueDim, valueDim, 1], bStrides: [1, queries, 0] },
    });
    kernels.accumulate({ dstDtype: float32, srcDtype: float32, n, dst: total, src: part });
  }

  #toFloat32(dst: DevicePtr, n: number): void {
    const { dtype, ptr: src } = this.output;
    this.#context.device.kernels.cast({ dstDtype: float32, srcDtype: dtype, n, dst, src });
  }
}

/** Gradients of one shard, and memory of a piece's. */
export class ShardGradients {
  readonly #context: OpContext;
  readonly #dtype: DType;
  /** What a kernel gives of one row: keys and values. */
  readonly #ofPiece: readonly Tensor[];

  constructor(context: OpContext, [k, v]: readonly [Tensor, Tensor]) {
    this.#context = context;
    this.#dtype = k.dtype;
    this.#ofPiece = [k, v].map(({ shape, dtype }) => context.empty(shape.slice(1), dtype));
  }

  /** Memory into which a kernel writes the gradients of a piece's keys and values. */
  get piece(): { readonly dk: DevicePtr; readonly dv: DevicePtr } {
    return { dk: at(this.#ofPiece, 0, "keys").ptr, dv: at(this.#ofPiece, 1, "values").ptr };
  }

  /** Adds a piece's gradients to those of a row of a shard. */
  add(shard: readonly Tensor[], sizes: RingSizes, row: number, { keys }: RingPiece): void {
    for (const [i, sum] of shard.entries()) {
      const part = at(this.#ofPiece, i, "gradient");
      const n = part.numel / 2 / sizes.width * keys;
      const args = { dstDtype: float32, srcDtype: this.#dtype, n };
      this.#context.device.kernels.accumulate({ ...args, dst: placeAt(sum, sizes, row, 0), src: part.ptr });
    }
  }
}

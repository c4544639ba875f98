/**
 * The tensor: a {@link Layout} over a {@link Buffer} on a device, with the edge that its gradient flows along. Each method
 * is one line over `apply`; the mathematics lies in `src/ops/`.
 *
 * A tensor is a handle: it dies with its scope or by `dispose`, and the memory goes with the last handle on it.
 *
 * @module
 */
import type { Edge } from "../autograd/node.ts";
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import type { BinaryOp, UnaryOp } from "../device/kernels/signature.ts";
import type { DType } from "../dtype.ts";
import { ShapeError, UseAfterDisposeError } from "../errors.ts";
import { castOp } from "../ops/convert.ts";
import { binaryOp, unaryOp } from "../ops/elementwise.ts";
import { matmulOp } from "../ops/matmul.ts";
import { argmaxOp, maxOp, meanOp, sumOp } from "../ops/reduce.ts";
import { softmaxOp } from "../ops/softmax.ts";
import { denseOp, expandOp, narrowOp, permuteOp, reshapeOp } from "../ops/view.ts";
import { denseLayout, isDense, type Layout, normalizeDim, numelOf, type Shape } from "../shape.ts";
import { applyOne, applyView } from "./apply.ts";
import { addGradients, startBackward } from "./backward.ts";
import { formatTensor } from "./format.ts";
import { type HostArray, readHost, scalar, writeHost } from "./host.ts";
import { scope, track, untrack } from "./scope.ts";

/** An n-dimensional array on a device. */
export class Tensor {
  #buffer: Buffer;
  #layout: Layout;
  #dtype: DType;
  #edge: Edge | undefined;
  #alive = true;

  /**
   * Used by the library; users call `tensor`, `zeros`, `randn` and the like.
   *
   * @param buffer one reference on it becomes the tensor's
   */
  constructor(buffer: Buffer, layout: Layout, dtype: DType, edge?: Edge) {
    this.#buffer = buffer;
    this.#layout = layout;
    this.#dtype = dtype;
    this.#edge = edge;
    edge?.node?.retain();
  }

  /** Sizes of the dims, outermost first. */
  get shape(): Shape {
    return this.#layout.shape;
  }

  /** Number of dims. */
  get ndim(): number {
    return this.#layout.shape.length;
  }

  /** Number of elements. */
  get numel(): number {
    return numelOf(this.#layout.shape);
  }

  /** Element type. */
  get dtype(): DType {
    return this.#dtype;
  }

  /** Where the elements lie in the buffer. */
  get layout(): Layout {
    return this.#layout;
  }

  /** The memory behind it, perhaps shared with others. */
  get buffer(): Buffer {
    return this.#buffer;
  }

  /** The device it lives on. */
  get device(): Device {
    return this.#buffer.device;
  }

  /**
   * Address of element 0, 0, …
   *
   * @throws {UseAfterDisposeError} if it was disposed, or has no memory
   */
  get ptr(): DevicePtr {
    this.#refuseDisposed();
    return devicePtr(this.#buffer.ptr + this.#layout.offset * this.#dtype.byteLength);
  }

  /** Whether operations on it are recorded. */
  get requiresGrad(): boolean {
    return this.#edge !== undefined;
  }

  /**
   * The edge that its gradient flows along.
   *
   * @internal
   */
  get edge(): Edge | undefined {
    return this.#edge;
  }

  /**
   * Sets the edge.
   *
   * @internal
   */
  setEdge(edge: Edge | undefined): void {
    edge?.node?.retain();
    this.#edge?.node?.release();
    this.#edge = edge;
  }

  /** Puts other memory behind the handle. Used by parameters, when they are sharded. */
  protected rebind(buffer: Buffer, layout: Layout, dtype: DType): void {
    const before = this.#buffer;
    this.#buffer = buffer;
    this.#layout = layout;
    this.#dtype = dtype;
    before.release();
  }

  /** A new dense tensor, uninitialized and in no scope: the caller disposes it. Used by the library. */
  static empty(device: Device, shape: Shape, dtype: DType, owner: string): Tensor {
    return new Tensor(Buffer.allocate(device, numelOf(shape) * dtype.byteLength, owner), denseLayout(shape), dtype);
  }

  /** A new dense tensor on the same device, uninitialized, in the scope under way. Used by the library. */
  spawn(shape: Shape, dtype: DType, owner: string): Tensor {
    return track(Tensor.empty(this.device, shape, dtype, owner));
  }

  /** Another handle on the same memory, without a gradient, in another layout. */
  view(layout: Layout): Tensor {
    return track(this.alias(layout));
  }

  /** Another handle in no scope, without a gradient: the caller disposes it. */
  alias(layout: Layout = this.#layout): Tensor {
    this.#refuseDisposed();
    this.#buffer.retain();
    return new Tensor(this.#buffer, layout, this.#dtype);
  }

  /** A handle on the same memory that is not part of the graph. */
  detach(): Tensor {
    return this.view(this.#layout);
  }

  /** Takes it out of its scope: it lives until {@link dispose}. */
  persist(): this {
    untrack(this);
    return this;
  }

  /** Lets go of the memory and of the graph. A second call does nothing. */
  dispose(): void {
    if (!this.#alive) return;
    this.#alive = false;
    this.#edge?.node?.release();
    this.#edge = undefined;
    this.#buffer.release();
  }

  /** A disposed handle is no way to memory, even where other handles keep it. */
  #refuseDisposed(): void {
    if (this.#alive) return;
    throw new UseAfterDisposeError(`A tensor of '${this.#buffer.owner}' is used after it was disposed`);
  }

  /** Whether {@link dispose} was called, by hand or by a scope. */
  get disposed(): boolean {
    return !this.#alive;
  }

  /** `using x = …` disposes it. */
  [Symbol.dispose](): void {
    this.dispose();
  }

  /**
   * The sum with another tensor of the same shape, using this one's memory where nobody else sees it. Both handles are
   * consumed. Used by the backward pass.
   */
  absorb(other: Tensor): Tensor {
    return addGradients(this, other);
  }

  /**
   * Runs the backward pass from this tensor.
   *
   * @param seed gradient to start from, of this shape; without it the tensor must be a scalar and the gradient is 1
   * @throws {ShapeError} if it is no scalar, or the seed has another shape
   * @throws {DTypeError} if the seed has another dtype
   */
  backward(seed?: Tensor): void {
    startBackward(this, seed);
  }

  /**
   * Its values on the host, row-major: float32 for float dtypes, int32 or uint8 otherwise. Waits for the device.
   *
   * @throws {DTypeError} for other dtypes
   */
  toArray(): HostArray {
    return readHost(this);
  }

  /**
   * The value of a tensor with one element. Waits for the device.
   *
   * @throws {ShapeError} if it has more or none
   */
  item(): number {
    const [value] = this.numel === 1 ? this.toArray() : [];
    if (value === undefined) throw new ShapeError("item", "it must have one element", this.shape);
    return value;
  }

  /** Shape, dtype, device and values, shortened. */
  toString(): string {
    return this.#alive && this.#buffer.attached ? formatTensor(this) : `Tensor [${this.shape.join(", ")}] (no memory)`;
  }

  #unary(op: UnaryOp, p0: number = 0, p1: number = 0): Tensor {
    return applyOne(unaryOp(op), [this], { p0, p1 });
  }

  #binary(op: BinaryOp, other: Tensor): Tensor {
    return applyOne(binaryOp(op), [this, other], undefined);
  }

  /** Element-wise sum, broadcasting. */
  add(other: Tensor | number): Tensor {
    return typeof other === "number" ? this.#unary("addScalar", other) : this.#binary("add", other);
  }
  /** Element-wise difference, broadcasting. */
  sub(other: Tensor | number): Tensor {
    return typeof other === "number" ? this.#unary("addScalar", -other) : this.#binary("sub", other);
  }
  /** Element-wise product, broadcasting. */
  mul(other: Tensor | number): Tensor {
    return typeof other === "number" ? this.#unary("mulScalar", other) : this.#binary("mul", other);
  }
  /** Element-wise quotient, broadcasting. */
  div(other: Tensor | number): Tensor {
    if (typeof other !== "number") return this.#binary("div", other);
    using divisor = scalar(this, other);
    return this.#binary("div", divisor);
  }
  /** Element-wise larger one; the gradient of equals goes to both in halves. */
  maximum(other: Tensor): Tensor {
    return this.#binary("maximum", other);
  }
  /** Element-wise smaller one; the gradient of equals goes to both in halves. */
  minimum(other: Tensor): Tensor {
    return this.#binary("minimum", other);
  }
  /** -x */
  neg(): Tensor {
    return this.#unary("neg");
  }
  /** eˣ */
  exp(): Tensor {
    return this.#unary("exp");
  }
  /** Natural logarithm. */
  log(): Tensor {
    return this.#unary("log");
  }
  /** Square root. */
  sqrt(): Tensor {
    return this.#unary("sqrt");
  }
  /** 1 / √x */
  rsqrt(): Tensor {
    return this.#unary("rsqrt");
  }
  /** Hyperbolic tangent. */
  tanh(): Tensor {
    return this.#unary("tanh");
  }
  /** 1 / (1 + e⁻ˣ) */
  sigmoid(): Tensor {
    return this.#unary("sigmoid");
  }
  /** x · sigmoid(x) */
  silu(): Tensor {
    return this.#unary("silu");
  }
  /** x Φ(x), exact or in the tanh approximation. */
  gelu(approximate: "none" | "tanh" = "none"): Tensor {
    return this.#unary(approximate === "tanh" ? "geluTanh" : "gelu");
  }
  /** max(x, 0) */
  relu(): Tensor {
    return this.#unary("relu");
  }
  /** x² */
  square(): Tensor {
    return this.#unary("square");
  }
  /** |x| */
  abs(): Tensor {
    return this.#unary("abs");
  }
  /** Sine. */
  sin(): Tensor {
    return this.#unary("sin");
  }
  /** Cosine. */
  cos(): Tensor {
    return this.#unary("cos");
  }
  /** Values limited to [low, high]. */
  clamp(low: number, high: number): Tensor {
    return this.#unary("clamp", low, high);
  }

  /** Sum of all elements, or along dims. */
  sum(dims?: number | readonly number[], keepDims: boolean = false): Tensor {
    return applyOne(sumOp, [this], { dims, keepDims });
  }
  /** Mean of all elements, or along dims. */
  mean(dims?: number | readonly number[], keepDims: boolean = false): Tensor {
    return applyOne(meanOp, [this], { dims, keepDims });
  }
  /** Largest element of all, or along dims; the gradient is shared by equals. */
  max(dims?: number | readonly number[], keepDims: boolean = false): Tensor {
    return applyOne(maxOp, [this], { dims, keepDims });
  }
  /** Softmax along the last dim. */
  softmax(): Tensor {
    return applyOne(softmaxOp, [this], undefined);
  }
  /** Index of the largest element along the last dim: int32, the first of equals. */
  argmax(): Tensor {
    return applyOne(argmaxOp, [this], undefined);
  }

  /** Matrix product over the last two dims: [.., m, k] @ [.., k, n]; leading dims broadcast. */
  matmul(other: Tensor): Tensor {
    return applyOne(matmulOp, [this, other], undefined);
  }

  /** The same elements in another shape; one size may be -1. Copies only what is not dense. */
  reshape(shape: Shape): Tensor {
    using frame = scope();
    const view = applyView(reshapeOp, this.contiguous(), shape);
    frame.keep(view);
    return view;
  }
  /** Dims in another order. */
  permute(dims: readonly number[]): Tensor {
    return applyView(permuteOp, this, dims);
  }
  /** Two dims exchanged. */
  transpose(a: number, b: number): Tensor {
    const x = normalizeDim("transpose", a, this.shape);
    const y = normalizeDim("transpose", b, this.shape);
    return this.permute(this.shape.map((_, dim) => dim === x ? y : dim === y ? x : dim));
  }
  /** `length` indices of one dim, from `start`. */
  narrow(dim: number, start: number, length: number): Tensor {
    return applyView(narrowOp, this, { dim: normalizeDim("narrow", dim, this.shape), start, length });
  }
  /** Dims of size 1, or new leading ones, repeated without a copy. */
  expand(shape: Shape): Tensor {
    return applyView(expandOp, this, shape);
  }
  /** Itself when dense, else a dense copy: dispose it only if it is another tensor. */
  contiguous(): Tensor {
    return isDense(this.#layout) ? this : applyOne(denseOp, [this], undefined);
  }
  /** The values in another float dtype; itself when it has that one: dispose it only if it is another tensor. */
  to(dtype: DType): Tensor {
    return this.#dtype === dtype ? this : applyOne(castOp, [this], dtype);
  }

  /** Overwrites all elements. The tensor must be dense; nothing is recorded. */
  copyFromHost(values: HostArray): this {
    writeHost(this, values);
    return this;
  }
}

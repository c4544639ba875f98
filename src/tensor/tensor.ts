/**
 * The tensor: a {@link Layout} over a {@link Buffer} on a device, with the edge along which its gradient flows. Each method is
 * one line over `apply`; `src/ops/` holds the mathematics.
 *
 * A tensor is a handle: it ends with its scope or by `dispose`, and the memory is freed with its last handle.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Edge } from "../autograd/node.ts";
import type { MemoryHolder } from "../device/allocator.ts";
import { Buffer } from "../device/buffer.ts";
import { type Device, type DevicePtr, devicePtr } from "../device/device.ts";
import { type DType, requireDType } from "../dtype.ts";
import { ShapeError, UseAfterDisposeError } from "../errors.ts";
import { requireList } from "../ops/check.ts";
import { castOp, castToIntOp } from "../ops/convert.ts";
import { gatherOp, scatterAddOp } from "../ops/index.ts";
import { denseOp, expandOp, narrowOp, permuteOp, reshapeOp, squeezeOp, unsqueezeOp } from "../ops/view.ts";
import { denseLayout, isDense, type Layout, normalizeDim, normalizeReducedDim, numelOf, type Shape } from "../shape.ts";
import { AlongDimsMethods } from "./along_dims.ts";
import { applyOne, applyView } from "./apply.ts";
import { addGradients, type BackwardOptions, startBackward } from "./backward.ts";
import { alongDim, chunk, split, triangle } from "./composed.ts";
import { formatTensor } from "./format.ts";
import { heldBytes } from "./held.ts";
import { type HostArray, readHost, writeHost } from "./host.ts";
import { scope, track, untrack } from "./scope.ts";

/** An n-dimensional array on a device. */
export class Tensor extends AlongDimsMethods implements MemoryHolder {
  #buffer: Buffer;
  #layout: Layout;
  #dtype: DType;
  #edge: Edge | undefined;
  #alive = true;

  /**
   * Used by the library; users call `tensor`, `zeros`, `randn` and others.
   *
   * @param buffer the tensor takes over one reference on it
   */
  constructor(buffer: Buffer, layout: Layout, dtype: DType, edge?: Edge) {
    super();
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

  /** Layout of the elements in the buffer. */
  get layout(): Layout {
    return this.#layout;
  }

  /** The memory, which other tensors may share. */
  get buffer(): Buffer {
    return this.#buffer;
  }

  /** Device of the memory. */
  get device(): Device {
    return this.#buffer.device;
  }

  /**
   * Address of element 0, 0, …
   *
   * @throws {UseAfterDisposeError} if it was disposed, or has no memory
   */
  get ptr(): DevicePtr {
    this.requireAlive();
    return devicePtr(this.#buffer.ptr + this.#layout.offset * this.#dtype.byteLength);
  }

  /** True if operations on it are recorded. */
  get requiresGrad(): boolean {
    return this.#edge !== undefined;
  }

  /**
   * The edge along which its gradient flows.
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

  /** Replaces the memory of the handle. Used by parameters that are sharded. */
  protected rebind(buffer: Buffer, layout: Layout, dtype: DType): void {
    const before = this.#buffer;
    this.#buffer = buffer;
    this.#layout = layout;
    this.#dtype = dtype;
    before.release();
  }

  /** A new dense tensor, uninitialized and in no scope: the caller disposes it. Used by the library. */
  static empty(device: Device, shape: Shape, dtype: DType, owner: string): Tensor {
    requireDType(owner, dtype);
    return new Tensor(Buffer.allocate(device, numelOf(shape) * dtype.byteLength, owner), denseLayout(shape), dtype);
  }

  /** A new dense tensor on the same device, uninitialized, in the current scope. Used by the library. */
  spawn(shape: Shape, dtype: DType, owner: string): Tensor {
    return track(Tensor.empty(this.device, shape, dtype, owner));
  }

  /** Another handle on the same memory, without a gradient, in another layout. */
  view(layout: Layout): Tensor {
    return track(this.alias(layout));
  }

  /** Another handle in no scope, without a gradient: the caller disposes it. */
  alias(layout: Layout = this.#layout): Tensor {
    this.requireAlive();
    this.#buffer.retain();
    return new Tensor(this.#buffer, layout, this.#dtype);
  }

  /** A handle on the same memory that is not part of the graph. */
  detach(): Tensor {
    return this.view(this.#layout);
  }

  /** Removes it from its scope: it lives until {@link dispose}. */
  persist(): this {
    this.requireAlive();
    untrack(this);
    return this;
  }

  /** Releases the memory and the graph. A second call does nothing. */
  dispose(): void {
    if (!this.#alive) return;
    this.#alive = false;
    this.device.allocator.unscoped.delete(this);
    this.#edge?.node?.release();
    this.#edge = undefined;
    this.#buffer.release();
  }

  /**
   * Refuses a disposed tensor, even if other handles keep its memory or graph.
   *
   * @throws {UseAfterDisposeError} if it was disposed
   * @internal
   */
  requireAlive(): void {
    if (this.#alive) return;
    throw new UseAfterDisposeError(
      `A tensor of '${this.#buffer.owner}' is used after it was disposed: its scope has ended, or dispose() was called; use it before ` +
        "that, or call keep(tensor) of the scope that it is made in",
    );
  }

  /** True once {@link dispose} was called, explicitly or by a scope. */
  get disposed(): boolean {
    return !this.#alive;
  }

  /** Bytes of activations that live as long as it does. Used when memory runs out. */
  heldBytes(seen: Set<object>): number {
    return heldBytes(this, seen);
  }

  /** `using x = …` disposes it. */
  [Symbol.dispose](): void {
    this.dispose();
  }

  /**
   * The sum with another tensor of the same shape, in this tensor's memory if no other tensor shares it. Both handles are
   * consumed. Used by the backward pass.
   */
  absorb(other: Tensor): Tensor {
    return addGradients(this, other);
  }

  /**
   * Makes the backward pass from this tensor.
   *
   * @param seed gradient of this tensor, of its shape; without it the tensor must be a scalar, and the gradient is 1
   * @throws {ShapeError} if it is not a scalar, or the seed has another shape
   * @throws {DTypeError} if the seed has another dtype
   * @throws {UseAfterDisposeError} if it was disposed, or an earlier backward without `retainGraph` has freed its graph
   */
  backward(seed?: Tensor, options: BackwardOptions = {}): void {
    startBackward(this, seed, options);
  }

  /**
   * Its values on the host, row-major: float32 for float dtypes, else int32 or uint8. Waits for the device.
   *
   * @throws {DTypeError} for other dtypes
   */
  toArray(): HostArray {
    return readHost(this);
  }

  /**
   * The value of a tensor with one element. Waits for the device.
   *
   * @throws {ShapeError} if it has more elements or none
   */
  item(): number {
    const [value] = this.numel === 1 ? this.toArray() : [];
    if (value === undefined) throw new ShapeError("item", "it must have one element", this.shape);
    return value;
  }

  /** Shape, dtype, device and values, shortened. */
  override toString(): string {
    return this.#alive && this.#buffer.hasMemory ? formatTensor(this) : `Tensor [${this.shape.join(", ")}] (no memory)`;
  }

  /** The same elements in another shape; one size may be -1. Copies only if it is not dense. */
  reshape(shape: Shape): Tensor {
    requireList("reshape", shape, "a list of sizes");
    using frame = scope();
    const view = applyView(reshapeOp, this.contiguous(), shape);
    frame.keep(view);
    return view;
  }
  /** Dims in another order. */
  permute(dims: readonly number[]): Tensor {
    requireList("permute", dims, "a list of dims");
    return applyView(permuteOp, this, dims);
  }
  /** Exchanges two dims. */
  transpose(a: number, b: number): Tensor {
    const x = normalizeReducedDim("transpose", a, this.shape);
    const y = normalizeReducedDim("transpose", b, this.shape);
    return this.permute(this.shape.map((_, dim) => dim === x ? y : dim === y ? x : dim));
  }
  /** `length` indices of one dim, from `start`. */
  narrow(dim: number, start: number, length: number): Tensor {
    return applyView(narrowOp, this, { dim: normalizeDim("narrow", dim, this.shape), start, length });
  }
  /** One index of a dim, which is removed; negative from the end. */
  select(dim: number, index: number): Tensor {
    const place = normalizeDim("select", dim, this.shape);
    using one = this.narrow(place, index < 0 ? index + at(this.shape, place, "dim") : index, 1);
    return one.squeeze(place);
  }
  /** Consecutive parts of a dim: of the given sizes, or of one size, with a smaller last one if needed. */
  split(sizes: number | readonly number[], dim: number = 0): readonly Tensor[] {
    return split(this, sizes, dim);
  }
  /** At most `chunks` parts of a dim, of one size, with a smaller last one if needed. */
  chunk(chunks: number, dim: number = 0): readonly Tensor[] {
    return chunk(this, chunks, dim);
  }
  /** Repeats dims of size 1, and adds leading dims, without a copy; -1 keeps a dim. */
  expand(shape: Shape): Tensor {
    requireList("expand", shape, "a list of sizes");
    const lead = shape.length - this.ndim;
    return applyView(expandOp, this, shape.map((size, dim) => size === -1 ? this.shape[dim - lead] ?? size : size));
  }
  /** Joins the dims from `start` to `end`. Copies only if it is not dense. */
  flatten(start: number = 0, end: number = -1): Tensor {
    if (this.ndim === 0) return this.reshape([1]);
    const { shape } = this;
    const [first, last] = [normalizeDim("flatten", start, shape), normalizeDim("flatten", end, shape)];
    if (first > last) throw new ShapeError("flatten", `dim ${start} must not come after dim ${end}`, shape);
    return this.reshape([...shape.slice(0, first), numelOf(shape.slice(first, last + 1)), ...shape.slice(last + 1)]);
  }
  /** Removes the dims of size 1, or the given dim if its size is 1. */
  squeeze(dim?: number): Tensor {
    const candidates = dim === undefined ? [...this.shape.keys()] : [normalizeReducedDim("squeeze", dim, this.shape)];
    return applyView(squeezeOp, this, candidates.filter((place) => this.shape[place] === 1));
  }
  /** Inserts a dim of size 1 at the given place. */
  unsqueeze(dim: number): Tensor {
    return applyView(unsqueezeOp, this, normalizeDim("unsqueeze", dim, [...this.shape, 1]));
  }
  /** The lower triangle of the last two dims, up to a diagonal; the rest is 0. */
  tril(diagonal: number = 0): Tensor {
    return triangle("tril", this, diagonal);
  }
  /** The upper triangle of the last two dims, from a diagonal on; the rest is 0. */
  triu(diagonal: number = 0): Tensor {
    return triangle("triu", this, diagonal);
  }
  /**
   * The elements at an int32 index along a dim; the index has the tensor's shape in all other dims.
   *
   * @throws {ArgumentError} if an index is out of range
   */
  gather(dim: number, index: Tensor): Tensor {
    return applyOne(gatherOp, [this, index], normalizeDim("gather", dim, this.shape));
  }
  /** Adds `source` at an int32 index of its shape along a dim; elements of one index are added in order. */
  scatterAdd(dim: number, index: Tensor, source: Tensor): Tensor {
    return applyOne(scatterAddOp, [this, index, source], normalizeDim("scatterAdd", dim, this.shape));
  }
  /** Slices along a dim, at an int32 index of one dim. */
  indexSelect(dim: number, index: Tensor): Tensor {
    const place = normalizeDim("indexSelect", dim, this.shape);
    return alongDim("indexSelect", this, place, index, (places) => this.gather(place, places));
  }
  /** Adds slice i of `source` along `dim` to slice `index[i]` of this tensor; `index` is int32 of one dim. */
  indexAdd(dim: number, index: Tensor, source: Tensor): Tensor {
    const place = normalizeDim("indexAdd", dim, this.shape);
    return alongDim("indexAdd", this, place, index, (places) => this.scatterAdd(place, places, source));
  }
  /** The tensor itself if it is dense, else a dense copy: dispose the result only if it is another tensor. */
  contiguous(): Tensor {
    this.requireAlive();
    return isDense(this.#layout) ? this : applyOne(denseOp, [this], undefined);
  }
  /** A dense copy. */
  clone(): Tensor {
    return applyOne(denseOp, [this], undefined);
  }
  /**
   * The values in another dtype; the tensor itself when it has that dtype, so dispose the result only if it is another tensor.
   *
   * - Floats are rounded to the nearest.
   * - Integers are rounded towards zero and have no gradient.
   * - A float beyond the range of int32 becomes the nearer end of the range, and NaN becomes 0; PyTorch leaves that to the processor.
   * - uint8 is the low byte of the int32, so 300 becomes 44 and -1 becomes 255. A mask of what is not 0 is `ne(0)`.
   */
  to(dtype: DType): Tensor {
    this.requireAlive();
    requireDType("to", dtype);
    return this.#dtype === dtype ? this : applyOne(dtype.kind === "float" ? castOp : castToIntOp, [this], dtype);
  }

  /** Overwrites all elements. The tensor must be dense; nothing is recorded. */
  copyFromHost(values: HostArray): this {
    writeHost(this, values);
    return this;
  }
}

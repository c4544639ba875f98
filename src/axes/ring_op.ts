/**
 * Attention round a ring (Ring Attention: Liu et al. 2023; striped over both ends of a row by the zigzag of `positions.ts`). Each rank
 * keeps its queries; keys and values go from rank to rank while the block before is computed. Outputs over parts of the keys are joined by
 * the logarithms of their sums, in float32.
 *
 * In the backward blocks go round again, and their gradients with them, one step behind, in float32: each rank adds its part, and the
 * last one sends them to the block's rank, which adds its own.
 *
 * @module
 */
import { at } from "../at.ts";
import { type DevicePtr, devicePtr } from "../device/device.ts";
import { type DType, float32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { type AttentionAttrs, attentionOp } from "../ops/attention.ts";
import { castTo } from "../ops/convert.ts";
import type { BackwardCall, ComputeOp, ForwardCall, OpContext } from "../ops/op.ts";
import { threeSizes } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { RegionAttrs } from "./ops.ts";
import { RingBlocks, RingMessages } from "./ring_messages.ts";
import { FirstKeysInBlocks, firstKeysOf, MOST_PLACES, ownerAt, type RingTile, tilesOf } from "./ring_tiles.ts";

/** An attention, the ranks that share its positions, and the module's name. */
export interface RingAttrs extends Omit<AttentionAttrs, "dropout" | "causal">, RegionAttrs {}

/** Sizes of a call. */
interface RingSizes {
  readonly dtype: DType;
  readonly batch: number;
  /** Positions of a part: half of this rank's. */
  readonly width: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
}

function sizesOf(q: Tensor, v: Tensor, { heads, kvHeads }: RingAttrs): RingSizes {
  const [batch, seq, widthQ] = threeSizes("ring attention", q.shape);
  const [, , widthV] = threeSizes("ring attention", v.shape);
  const dims = { headDim: widthQ / heads, valueDim: widthV / kvHeads };
  return { dtype: q.dtype, batch, width: seq / 2, heads, kvHeads, ...dims };
}

/** The address of a part of a row in a dense tensor [batch, seq of a rank, ..] or [batch, 2, ..]. */
function partAt({ ptr, numel, dtype }: Tensor, { batch }: RingSizes, row: number, part: number): DevicePtr {
  return devicePtr(ptr + (row * 2 + part) * (numel / batch / 2) * dtype.byteLength);
}

/** Arguments of both directions for a tile of a row. */
function common(
  { q, k, v, first }: {
    readonly q: Tensor;
    readonly k: Tensor;
    readonly v: Tensor;
    readonly first: Tensor | undefined;
  },
  sizes: RingSizes,
  { queries, keyParts, causal }: RingTile,
  row: number,
  { scale, softcap = 0 }: RingAttrs,
) {
  const { dtype, width, heads, kvHeads, headDim, valueDim } = sizes;
  const strides = { strideQ: heads * headDim, strideK: kvHeads * headDim, strideV: kvHeads * valueDim };
  const lengths = { batch: 1, seqQ: width, seqK: keyParts * width, heads, kvHeads, headDim, valueDim };
  // Windows are in `starts`, and nothing is dropped or masked.
  const none = { window: 0, maskRows: 1, p: 0, key: 0, sample: 0, keyMask: undefined };
  const hasRows = first !== undefined && first.shape[0] === sizes.batch;
  return {
    ...{ dtype, ...lengths, ...strides, scale, softcap, causal, ...none },
    q: partAt(q, sizes, row, queries),
    k: partAt(k, sizes, row, 0),
    v: partAt(v, sizes, row, 0),
    starts: first && partAt(first, hasRows ? sizes : { ...sizes, batch: 1 }, hasRows ? row : 0, queries),
  };
}

/** The inputs that are there only for some calls. */
function optionalInputs(inputs: number, { documents = false, sinks = false }: RingAttrs) {
  return { starts: documents ? 3 : undefined, sinks: sinks ? inputs - 1 : undefined };
}

/** Memory of blocks of other ranks: for the one that is computed with, and for the next one. */
function blockBuffers(context: OpContext, own: readonly Tensor[], size: number): readonly (readonly Tensor[])[] {
  const count = Math.min(2, size - 1);
  return Array.from({ length: count }, () => own.map(({ shape, dtype }) => context.empty(shape, dtype)));
}

/** Joins a part's output and the logarithm of its sums to those of the keys before. */
class Joiner {
  readonly #sizes: RingSizes;
  readonly #context: OpContext;
  /** A part's output as the kernel gives it, and in float32. */
  readonly output: Tensor;
  readonly lse: Tensor;
  readonly #wide: Tensor;
  readonly #growth: Tensor;

  constructor(context: OpContext, sizes: RingSizes) {
    const { dtype, width, heads, valueDim } = sizes;
    this.#sizes = sizes;
    this.#context = context;
    this.output = context.empty([width, heads, valueDim], dtype);
    this.#wide = dtype === float32 ? this.output : context.empty([width, heads, valueDim], float32);
    this.lse = context.empty([heads, width], float32);
    this.#growth = context.empty([heads, width], float32);
  }

  /** Takes the first part's output. */
  widen(total: DevicePtr): void {
    const { dtype, numel: n, ptr: src } = this.output;
    this.#context.device.kernels.cast({ dstDtype: float32, srcDtype: dtype, n, dst: total, src });
  }

  /**
   * `total += sigmoid(lse' - lse) (o' - total)`, `lse += softplus(lse' - lse)`. A query that sees no key of the part has an output of
   * zeros and a logarithm of -Infinity, and keeps its bits.
   */
  join(total: DevicePtr, lse: DevicePtr): void {
    const { device: { kernels } } = this.#context;
    const { width, heads, valueDim } = this.#sizes;
    const [n, rows] = [this.#wide.numel, this.lse.numel];
    const difference = this.lse.ptr;
    const flat = { dtype: float32, shape: [rows], aStrides: [1], bStrides: [1] };
    kernels.binary({ ...flat, op: "sub", dst: difference, a: difference, b: lse });
    const ofDifference = { dtype: float32, n: rows, p0: 0, p1: 0, src: difference };
    kernels.unary({ ...ofDifference, op: "softplus", dst: this.#growth.ptr });
    kernels.accumulate({ dstDtype: float32, srcDtype: float32, n: rows, dst: lse, src: this.#growth.ptr });
    kernels.unary({ ...ofDifference, op: "sigmoid", dst: difference });
    if (this.#wide !== this.output) castTo(this.#wide, this.output);
    const part = this.#wide.ptr;
    kernels.binary({
      ...{ dtype: float32, op: "sub", shape: [n], aStrides: [1], bStrides: [1], dst: part, a: part, b: total },
    });
    kernels.binary({
      ...{ dtype: float32, op: "mul", shape: [width, heads, valueDim], dst: part, a: part, b: difference },
      ...{ aStrides: [heads * valueDim, valueDim, 1], bStrides: [1, width, 0] },
    });
    kernels.accumulate({ dstDtype: float32, srcDtype: float32, n, dst: total, src: part });
  }
}

/** Sizes of a sink's call for one part of a row. */
function sinkSizes({ dtype, width, heads, valueDim }: RingSizes) {
  return { dtype, batch: 1, seq: width, heads, headDim: valueDim };
}

/** Calls `body` for both parts of each row. */
function eachPart({ batch }: RingSizes, body: (row: number, part: 0 | 1) => void): void {
  for (let row = 0; row < batch; row++) {
    body(row, 0);
    body(row, 1);
  }
}

function forward(call: ForwardCall<RingAttrs>): void {
  const { attrs, device: { kernels } } = call;
  const { group, unit, window } = attrs;
  const [q, k, v] = [call.dense(call.input(0)), call.dense(call.input(1)), call.dense(call.input(2))];
  const places = optionalInputs(call.inputs, attrs);
  const [starts, sinks] = [places.starts, places.sinks].map((i) =>
    i === undefined ? undefined : call.dense(call.input(i))
  );
  const sizes = sizesOf(q, v, attrs);
  const { batch, width, heads, dtype } = sizes;
  const output = call.output(0);
  // All memory is there before the first message: a rank that runs out of it has nothing under way.
  const total = dtype === float32 ? output : call.empty(output.shape, float32);
  const lse = call.empty([batch, 2, heads, width], float32);
  const joiner = new Joiner(call, sizes);
  const buffers = blockBuffers(call, [k, v], group.size);
  const seen = firstKeysOf(call, starts, window, 2 * width, group);
  const first = seen && new FirstKeysInBlocks(call, seen, group.size);
  using messages = new RingMessages(call.device, group, `keys and values of '${unit}' round the ring`);
  const blocks = new RingBlocks(messages, [k, v], buffers);
  for (let step = 0; step < group.size; step++) {
    blocks.begin(step === group.size - 1);
    const owner = ownerAt(step, group);
    const [keys, values] = [at(blocks.present, 0, "keys"), at(blocks.present, 1, "values")];
    const firstOf = first?.of(owner);
    for (const tile of tilesOf(owner, group)) {
      for (let row = 0; row < batch; row++) {
        const inputs = { q, k: keys, v: values, first: firstOf };
        const sum = partAt(total, sizes, row, tile.queries);
        const logarithms = partAt(lse, sizes, row, tile.queries);
        const isFirst = step === 0;
        kernels.attention({
          ...common(inputs, sizes, tile, row, attrs),
          o: isFirst && dtype === float32 ? sum : joiner.output.ptr,
          lse: isFirst ? logarithms : joiner.lse.ptr,
        });
        messages.advance();
        if (!isFirst) joiner.join(sum, logarithms);
        else if (dtype !== float32) joiner.widen(sum);
      }
    }
    blocks.finish();
  }
  if (total !== output) castTo(output, total);
  if (sinks !== undefined) {
    eachPart(sizes, (row, part) => {
      const pointers = { o: partAt(output, sizes, row, part), lse: partAt(lse, sizes, row, part), sinks: sinks.ptr };
      kernels.attentionSinks({ ...sinkSizes(sizes), ...pointers });
    });
  }
  call.save(q, k, v, output, lse);
  for (const tensor of [starts, sinks]) if (tensor !== undefined) call.save(tensor);
}

/** Gradients of one block, and memory of a tile's. */
class BlockGradients {
  readonly #context: OpContext;
  readonly #dtype: DType;
  /** What a kernel gives of one row: keys and values. */
  readonly #ofTile: readonly Tensor[];

  constructor(context: OpContext, [k, v]: readonly [Tensor, Tensor]) {
    this.#context = context;
    this.#dtype = k.dtype;
    this.#ofTile = [k, v].map(({ shape, dtype }) => context.empty(shape.slice(1), dtype));
  }

  /** Memory into which a kernel writes the gradients of a tile's keys and values. */
  get tile(): { readonly dk: DevicePtr; readonly dv: DevicePtr } {
    return { dk: at(this.#ofTile, 0, "keys").ptr, dv: at(this.#ofTile, 1, "values").ptr };
  }

  /** Adds a tile's gradients to those of a row of a block. */
  add(block: readonly Tensor[], sizes: RingSizes, row: number, { keyParts }: RingTile): void {
    for (const [i, sum] of block.entries()) {
      const part = at(this.#ofTile, i, "gradient");
      const n = part.numel / 2 * keyParts;
      const args = { dstDtype: float32, srcDtype: this.#dtype, n };
      this.#context.device.kernels.accumulate({ ...args, dst: partAt(sum, sizes, row, 0), src: part.ptr });
    }
  }
}

function clear({ device: { kernels }, ptr, numel }: Tensor): void {
  kernels.fill({ dtype: float32, n: numel, value: 0, dst: ptr });
}

function addTo(sum: Tensor, part: Tensor): void {
  sum.device.kernels.accumulate({
    ...{ dstDtype: float32, srcDtype: float32, n: sum.numel, dst: sum.ptr, src: part.ptr },
  });
}

function backward(call: BackwardCall<RingAttrs>): void {
  const { attrs, device: { kernels } } = call;
  const { group, group: { size }, unit, window } = attrs;
  const [q, k, v] = [call.saved(0), call.saved(1), call.saved(2)];
  const [output, lse, dO] = [call.saved(3), call.saved(4), call.dense(call.grad(0))];
  const places = optionalInputs(call.inputs, attrs);
  // The optional inputs were saved behind the output and its logarithms.
  const [starts, sinks] = [places.starts, places.sinks].map((i) => i === undefined ? undefined : call.saved(i + 2));
  const sizes = sizesOf(q, v, attrs);
  const { batch, width, heads, headDim, dtype } = sizes;
  const outs = [q, k, v].map((input, i) =>
    call.needs(i) ? call.out(i, input.dtype) : call.empty(input.shape, input.dtype)
  );
  const wide = outs.map((out) => out.dtype === float32 ? out : call.empty(out.shape, float32));
  const [dq, home] = [at(wide, 0, "gradient"), wide.slice(1)];
  const wideBlock = (): readonly Tensor[] => [k, v].map(({ shape }) => call.empty(shape, float32));
  // Of gradients one block is computed, one is sent, and one is received.
  const sums = Array.from({ length: Math.min(2, size - 1) }, wideBlock);
  const arriving = size > 1 ? wideBlock() : [];
  const partQ = call.empty([width, heads * headDim], dtype);
  const ofTile = new BlockGradients(call, [k, v]);
  const buffers = blockBuffers(call, [k, v], size);
  const seen = firstKeysOf(call, starts, window, 2 * width, group);
  const first = seen && new FirstKeysInBlocks(call, seen, group.size);
  for (const sum of wide) clear(sum);
  using messages = new RingMessages(call.device, group, `keys, values and their gradients of '${unit}' round the ring`);
  const blocks = new RingBlocks(messages, [k, v], buffers);
  let done: readonly Tensor[] = [];
  for (let step = 0; step < size; step++) {
    // The gradients of the present block come from the rank before, which had the block one step earlier.
    const arrived = step < 2 ? [] : arriving;
    blocks.begin(step === size - 1, done, arrived);
    const owner = ownerAt(step, group);
    const [keys, values] = [at(blocks.present, 0, "keys"), at(blocks.present, 1, "values")];
    const firstOf = first?.of(owner);
    const sum = step === 0 ? home : at(sums, step % sums.length, "sums");
    if (step > 0) sum.forEach(clear);
    for (const tile of tilesOf(owner, group)) {
      for (let row = 0; row < batch; row++) {
        const inputs = { q, k: keys, v: values, first: firstOf };
        const partOf = (tensor: Tensor): DevicePtr => partAt(tensor, sizes, row, tile.queries);
        kernels.attentionBackward({
          ...common(inputs, sizes, tile, row, attrs),
          ...{ dq: partQ.ptr, ...ofTile.tile, dO: partOf(dO), o: partOf(output), lse: partOf(lse) },
        });
        messages.advance();
        const n = partQ.numel;
        kernels.accumulate({ dstDtype: float32, srcDtype: dtype, n, dst: partOf(dq), src: partQ.ptr });
        ofTile.add(sum, sizes, row, tile);
      }
    }
    blocks.finish();
    for (const [i, part] of arrived.entries()) addTo(at(sum, i, "gradient"), part);
    done = step === 0 ? [] : sum;
  }
  messages.begin(done, arriving);
  messages.finish();
  for (const [i, part] of arriving.entries()) addTo(at(home, i, "gradient"), part);
  for (const [i, out] of outs.entries()) {
    const sum = at(wide, i, "gradient");
    if (sum !== out) castTo(out, sum);
  }
  if (sinks !== undefined && places.sinks !== undefined && call.needs(places.sinks)) {
    sinkGradients(call, { dO, output, lse, sinks }, sizes, places.sinks);
  }
}

function sinkGradients(
  call: BackwardCall<RingAttrs>,
  { dO, output, lse, sinks }: Readonly<Record<"dO" | "output" | "lse" | "sinks", Tensor>>,
  sizes: RingSizes,
  place: number,
): void {
  const out = call.out(place);
  const sum = out.dtype === float32 ? out : call.empty(out.shape, float32);
  const part = call.empty(out.shape, float32);
  clear(sum);
  eachPart(sizes, (row, half) => {
    const of = (tensor: Tensor): DevicePtr => partAt(tensor, sizes, row, half);
    const pointers = { dO: of(dO), o: of(output), lse: of(lse), sinks: sinks.ptr, dsinks: part.ptr };
    call.device.kernels.attentionSinksBackward({ ...sinkSizes(sizes), ...pointers });
    addTo(sum, part);
  });
  if (sum !== out) castTo(out, sum);
}

/**
 * q [batch, seq of this rank, heads * d], k and v of the same positions, optional beginnings of documents int32 [batch, seq of this rank],
 * optional sinks [heads] → [batch, seq of this rank, heads * dV]. It bears the name of attention, so that activation checkpointing which
 * keeps results of attention keeps these.
 */
export const ringAttentionOp: ComputeOp<RingAttrs> = {
  name: attentionOp.name,
  infer: (inputs, attrs) => {
    const { group: { size }, window, documents = false } = attrs;
    const specs = attentionOp.infer(inputs, { ...attrs, causal: true });
    const [, seq] = threeSizes("ring attention", at(inputs, 0, "input").shape);
    if (seq % 2 !== 0) {
      throw new ArgumentError(
        `Cannot attend round a ring to ${seq} positions of a rank: each rank has two parts of a row`,
      );
    }
    if ((window !== undefined || documents) && seq * size > MOST_PLACES) {
      throw new ArgumentError(
        `Cannot attend round a ring within a window or documents in rows of ${
          seq * size
        } positions: they may have ${MOST_PLACES}; ` +
          'use commStrategy "allgather"',
      );
    }
    return specs;
  },
  forward,
  backward,
};

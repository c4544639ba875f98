/**
 * Attention round a ring (Ring Attention: Liu et al. 2023), with the zigzag of `positions.ts`. Each rank keeps its queries. The keys and
 * values of a rank, its shard, go from rank to rank: while a rank computes with one shard, it passes it on and receives the next. Outputs
 * over the keys of several shards are joined by the logarithms of their sums, in float32.
 *
 * In the backward shards go round again, and gradients of each shard follow it one step behind, in float32: each rank adds its part, and
 * the last one sends the sum to the shard's own rank, which adds what it has computed first.
 *
 * @module
 */
import { at } from "../at.ts";
import type { DevicePtr } from "../device/device.ts";
import type { ArgsOf } from "../device/kernels/table.ts";
import { float32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { attentionOp } from "../ops/attention.ts";
import { castTo } from "../ops/convert.ts";
import type { BackwardCall, ComputeOp, ForwardCall, OpContext } from "../ops/op.ts";
import { threeSizes } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { RingMessages, RingShards } from "./ring_messages.ts";
import { kernelArgs, placeAt, type RingAttrs, type RingSizes, sizesOf } from "./ring_sizes.ts";
import { Joiner, ShardGradients } from "./ring_sums.ts";
import {
  FirstKeysInShards,
  firstKeysOf,
  MOST_PLACES,
  ownerAt,
  piecesOf,
  type RingPiece,
  tilesOf,
} from "./ring_tiles.ts";

/** The inputs that are there only for some calls. */
function optionalInputs(inputs: number, { documents = false, sinks = false }: RingAttrs) {
  return { starts: documents ? 3 : undefined, sinks: sinks ? inputs - 1 : undefined };
}

/** Memory for two shards of other ranks: the present shard, and the next one, which is being received. */
function shardBuffers(context: OpContext, own: readonly Tensor[], size: number): readonly (readonly Tensor[])[] {
  const count = Math.min(2, size - 1);
  return Array.from({ length: count }, () => own.map(({ shape, dtype }) => context.empty(shape, dtype)));
}

/** Sizes of a sink's call for a piece. */
type SinkSizes = Pick<ArgsOf<"attentionSinks">, "dtype" | "batch" | "seq" | "heads" | "headDim">;

/** Calls `body` with each piece of the queries of each row, and sizes of a sink's call for it. */
function eachPiece(
  { batch, width, piece, dtype, heads, valueDim }: RingSizes,
  body: (row: number, start: number, ofPiece: SinkSizes) => void,
): void {
  for (const part of [0, 1] as const) {
    for (const { start, queries: seq } of piecesOf({ queries: part, keyParts: 1, causal: false }, width, piece)) {
      for (let row = 0; row < batch; row++) body(row, start, { dtype, batch: 1, seq, heads, headDim: valueDim });
    }
  }
}

/** The pieces that a rank computes with the shard of `owner`. */
function piecesAt(owner: number, group: RingAttrs["group"], { width, piece }: RingSizes): readonly RingPiece[] {
  return tilesOf(owner, group).flatMap((tile) => piecesOf(tile, width, piece));
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
  // Of each piece [heads, queries], one behind the other.
  const lse = call.empty([batch, 2 * width, heads], float32);
  const joiner = new Joiner(call, sizes);
  const buffers = shardBuffers(call, [k, v], group.size);
  const seen = firstKeysOf(call, starts, window, 2 * width, group);
  const first = seen && new FirstKeysInShards(call, seen, group.size);
  using messages = new RingMessages(call.device, group, `keys and values of '${unit}' round the ring`);
  const shards = new RingShards(messages, [k, v], buffers);
  for (let step = 0; step < group.size; step++) {
    shards.begin(step === group.size - 1);
    const owner = ownerAt(step, group);
    const [keys, values] = [at(shards.present, 0, "keys"), at(shards.present, 1, "values")];
    const firstOf = first?.of(owner);
    for (const piece of piecesAt(owner, group, sizes)) {
      for (let row = 0; row < batch; row++) {
        const inputs = { q, k: keys, v: values, first: firstOf };
        const sum = placeAt(total, sizes, row, piece.start);
        const logarithms = placeAt(lse, sizes, row, piece.start);
        const isFirst = step === 0;
        kernels.attention({
          ...kernelArgs(inputs, sizes, piece, row, attrs),
          o: isFirst && dtype === float32 ? sum : joiner.output.ptr,
          lse: isFirst ? logarithms : joiner.lse.ptr,
        });
        messages.advance();
        if (!isFirst) joiner.join(sum, logarithms, piece.queries);
        else if (dtype !== float32) joiner.widen(sum, piece.queries);
      }
    }
    shards.finish();
  }
  if (total !== output) castTo(output, total);
  if (sinks !== undefined) {
    eachPiece(sizes, (row, start, ofPiece) => {
      const pointers = { o: placeAt(output, sizes, row, start), lse: placeAt(lse, sizes, row, start) };
      kernels.attentionSinks({ ...ofPiece, ...pointers, sinks: sinks.ptr });
    });
  }
  call.save(q, k, v, output, lse);
  for (const tensor of [starts, sinks]) if (tensor !== undefined) call.save(tensor);
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
  const [dq, ownSums] = [at(wide, 0, "gradient"), wide.slice(1)];
  const wideShard = (): readonly Tensor[] => [k, v].map(({ shape }) => call.empty(shape, float32));
  // Of gradients one shard is computed, one is sent, and one is received.
  const sums = Array.from({ length: Math.min(2, size - 1) }, wideShard);
  const arriving = size > 1 ? wideShard() : [];
  const partQ = call.empty([sizes.piece, heads * headDim], dtype);
  const ofPiece = new ShardGradients(call, [k, v]);
  const buffers = shardBuffers(call, [k, v], size);
  const seen = firstKeysOf(call, starts, window, 2 * width, group);
  const first = seen && new FirstKeysInShards(call, seen, group.size);
  for (const sum of wide) clear(sum);
  using messages = new RingMessages(call.device, group, `keys, values and their gradients of '${unit}' round the ring`);
  const shards = new RingShards(messages, [k, v], buffers);
  let done: readonly Tensor[] = [];
  for (let step = 0; step < size; step++) {
    // The gradients of the present shard come from the rank before, which had the shard one step earlier.
    const arrived = step < 2 ? [] : arriving;
    shards.begin(step === size - 1, done, arrived);
    const owner = ownerAt(step, group);
    const [keys, values] = [at(shards.present, 0, "keys"), at(shards.present, 1, "values")];
    const firstOf = first?.of(owner);
    const sum = step === 0 ? ownSums : at(sums, step % sums.length, "sums");
    if (step > 0) sum.forEach(clear);
    for (const piece of piecesAt(owner, group, sizes)) {
      for (let row = 0; row < batch; row++) {
        const inputs = { q, k: keys, v: values, first: firstOf };
        const of = (tensor: Tensor): DevicePtr => placeAt(tensor, sizes, row, piece.start);
        kernels.attentionBackward({
          ...kernelArgs(inputs, sizes, piece, row, attrs),
          ...{ dq: partQ.ptr, ...ofPiece.piece, dO: of(dO), o: of(output), lse: of(lse) },
        });
        messages.advance();
        const n = piece.queries * heads * headDim;
        kernels.accumulate({ dstDtype: float32, srcDtype: dtype, n, dst: of(dq), src: partQ.ptr });
        ofPiece.add(sum, sizes, row, piece);
      }
    }
    shards.finish();
    for (const [i, part] of arrived.entries()) addTo(at(sum, i, "gradient"), part);
    done = step === 0 ? [] : sum;
  }
  messages.begin(done, arriving);
  messages.finish();
  for (const [i, part] of arriving.entries()) addTo(at(ownSums, i, "gradient"), part);
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
  eachPiece(sizes, (row, start, ofPiece) => {
    const of = (tensor: Tensor): DevicePtr => placeAt(tensor, sizes, row, start);
    const pointers = { dO: of(dO), o: of(output), lse: of(lse), sinks: sinks.ptr, dsinks: part.ptr };
    call.device.kernels.attentionSinksBackward({ ...ofPiece, ...pointers });
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

/**
 * Sizes and places of attention round a ring: what kernels are called with.
 *
 * @module
 */
import { type DevicePtr, devicePtr } from "../device/device.ts";
import type { ArgsOf } from "../device/kernels/table.ts";
import type { DType } from "../dtype.ts";
import type { AttentionAttrs } from "../ops/attention.ts";
import { threeSizes } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { RegionAttrs } from "./ops.ts";
import type { RingPiece } from "./ring_tiles.ts";

/** An attention, the ranks that share its positions, and the module's name. */
export interface RingAttrs extends Omit<AttentionAttrs, "dropout" | "causal">, RegionAttrs {}

/**
 * Most queries of a kernel call where the host moves messages between calls. A kernel packs keys anew for each 128 queries, so calls of
 * this many pack no more than a single call.
 */
const PIECE_QUERIES = 256;

/** Sizes of a call. */
export interface RingSizes {
  readonly dtype: DType;
  readonly batch: number;
  /** Positions of a part: half of this rank's. */
  readonly width: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  /** Most queries of a call of a kernel. */
  readonly piece: number;
}

/** Sizes of a call on this rank. */
export function sizesOf(q: Tensor, v: Tensor, { heads, kvHeads, group }: RingAttrs): RingSizes {
  const [batch, seq, widthQ] = threeSizes("ring attention", q.shape);
  const [, , widthV] = threeSizes("ring attention", v.shape);
  const dims = { headDim: widthQ / heads, valueDim: widthV / kvHeads };
  const width = seq / 2;
  const piece = group.twin.standsFor === "nccl" ? width : Math.min(width, PIECE_QUERIES);
  return { dtype: q.dtype, batch, width, heads, kvHeads, piece, ...dims };
}

/** The address of a rank's position of a row in a dense tensor [batch, seq of a rank, ..]. */
export function placeAt(
  { ptr, numel, dtype }: Tensor,
  { batch, width }: RingSizes,
  row: number,
  start: number,
): DevicePtr {
  return devicePtr(ptr + (row * 2 * width + start) * (numel / batch / 2 / width) * dtype.byteLength);
}

/** Arguments that both directions have. */
type RingKernelArgs = Omit<ArgsOf<"attention">, "o" | "lse">;

/** Arguments that the kernels of both directions take for a piece of a row. */
export function kernelArgs(
  { q, k, v, first }: {
    readonly q: Tensor;
    readonly k: Tensor;
    readonly v: Tensor;
    readonly first: Tensor | undefined;
  },
  sizes: RingSizes,
  { start, queries, keys, causal }: RingPiece,
  row: number,
  { scale, softcap = 0 }: RingAttrs,
): RingKernelArgs {
  const { dtype, heads, kvHeads, headDim, valueDim } = sizes;
  const strides = { strideQ: heads * headDim, strideK: kvHeads * headDim, strideV: kvHeads * valueDim };
  const lengths = { batch: 1, seqQ: queries, seqK: keys, heads, kvHeads, headDim, valueDim };
  // Windows are in `starts`, and nothing is dropped or masked.
  const none = { window: 0, maskRows: 1, p: 0, key: 0, sample: 0, keyMask: undefined };
  const hasRows = first !== undefined && first.shape[0] === sizes.batch;
  return {
    ...{ dtype, ...lengths, ...strides, scale, softcap, causal, ...none },
    q: placeAt(q, sizes, row, start),
    k: placeAt(k, sizes, row, 0),
    v: placeAt(v, sizes, row, 0),
    starts: first && placeAt(first, hasRows ? sizes : { ...sizes, batch: 1 }, hasRows ? row : 0, start),
  };
}

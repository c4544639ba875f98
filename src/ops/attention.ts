/**
 * Scaled dot-product attention in the flash manner (Dao et al. 2022): memory linear in the sequence, probabilities
 * recomputed in the backward from the saved log-sum-exp.
 *
 * @module
 */
import { KERNELS } from "../device/kernels/table.ts";
import { float32, uint8 } from "../dtype.ts";
import { ArgumentError, DTypeError, ShapeError } from "../errors.ts";
import { sameShape, threeSizes } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { writeFloat32 } from "./convert.ts";
import { requireStarts } from "./check.ts";
import { type DropoutAttrs, requireProbability } from "./dropout.ts";
import type { ComputeOp } from "./op.ts";

const MAX_HEAD_DIM = KERNELS.attention.values.headDim.atMost;

/** Heads and options of an attention. */
export interface AttentionAttrs {
  /** Heads of the queries. */
  readonly heads: number;
  /** A divisor of `heads` (grouped-query attention). */
  readonly kvHeads: number;
  /** True if a query sees only keys up to its own position. */
  readonly causal: boolean;
  /** Factor on q·k; usually 1 / √headDim. */
  readonly scale: number;
  /** Bound c of the scores: a score becomes c tanh(score / c). @default none */
  readonly softcap?: number | undefined;
  /** Number of keys that a query of a causal attention sees, up to its own. @default all */
  readonly window?: number | undefined;
  /**
   * True if an input after the key mask gives the starts of documents.
   * @default false
   */
  readonly documents?: boolean | undefined;
  /**
   * True if the last input is a sink of each head [heads]: the score of one more key, which all queries see and whose value is
   * zero.
   * @default false
   */
  readonly sinks?: boolean | undefined;
  /** Dropout of probabilities, after the softmax. @default none */
  readonly dropout?: DropoutAttrs | undefined;
}

/** For the kernel, a probability of 0 drops nothing. */
const NO_DROPOUT: DropoutAttrs = { p: 0, key: 0, sample: 0 };

/** The arguments that both directions share. */
function common(
  [q, k, v]: readonly [Tensor, Tensor, Tensor],
  [keyMask, starts]: readonly [keyMask: Tensor | undefined, starts: Tensor | undefined],
  attrs: AttentionAttrs,
) {
  const [batch, seqQ, strideQ] = threeSizes("attention", q.shape);
  const [, seqK, strideK] = threeSizes("attention", k.shape);
  const [, , strideV] = threeSizes("attention", v.shape);
  // For the kernel, a window or a bound of 0 is none.
  const { window = 0, softcap = 0 } = attrs;
  const { sinks: _, documents: __, dropout = NO_DROPOUT, ...options } = attrs;
  const dims = { headDim: strideQ / attrs.heads, valueDim: strideV / attrs.kvHeads };
  const maskRows = keyMask?.ndim === 3 ? seqQ : 1;
  const sizes = { batch, seqQ, seqK, ...dims, strideQ, strideK, strideV, window, softcap, maskRows };
  const pointers = { q: q.ptr, k: k.ptr, v: v.ptr, keyMask: keyMask?.ptr, starts: starts?.ptr };
  return { dtype: q.dtype, ...options, ...dropout, ...sizes, ...pointers };
}

/** The places of the key mask, the starts of documents and the sinks among the inputs. */
function optionalInputs(inputs: number, { documents = false, sinks = false }: AttentionAttrs) {
  const others = Number(documents) + Number(sinks);
  return {
    mask: inputs > 3 + others ? 3 : undefined,
    starts: documents ? inputs - others : undefined,
    sinks: sinks ? inputs - 1 : undefined,
  };
}

function sinkSizes({ shape, dtype }: Tensor, { heads }: AttentionAttrs) {
  const [batch, seq, width] = threeSizes("attention", shape);
  return { dtype, batch, seq, heads, headDim: width / heads };
}

/**
 * q [batch, seqQ, heads * d], k [batch, seqK, kvHeads * d], v [batch, seqK, kvHeads * dV], optional key mask uint8 [batch, seqK] or
 * [batch, seqQ, seqK] (0 hides), optional beginnings of documents int32 [batch, seqQ], optional sinks [heads] → [batch, seqQ, heads * dV].
 */
export const attentionOp: ComputeOp<AttentionAttrs> = {
  name: "attention",
  infer: (inputs, attrs) => {
    const [q, k, v] = inputs;
    const { heads, kvHeads, causal, window, softcap, dropout = NO_DROPOUT } = attrs;
    requireProbability(dropout.p);
    if (softcap !== undefined && !(softcap > 0 && Number.isFinite(Math.fround(softcap)))) {
      throw new ArgumentError(`Cannot bound scores by ${softcap}: softcap must be a number above 0`);
    }
    const places = optionalInputs(inputs.length, attrs);
    const mask = places.mask === undefined ? undefined : inputs[places.mask];
    const starts = places.starts === undefined ? undefined : inputs[places.starts];
    const sinks = places.sinks === undefined ? undefined : inputs[places.sinks];
    if (window !== undefined && !(causal && Number.isSafeInteger(window) && window > 0)) {
      throw new ArgumentError(
        `Cannot attend within a window of ${window}: it must be 1 key or more, of a causal attention`,
      );
    }
    if (q === undefined || k === undefined || v === undefined || q.dtype !== k.dtype || q.dtype !== v.dtype) {
      throw new DTypeError(
        "attention",
        "q, k and v must have one dtype",
        ...[q, k, v].map((x) => x?.dtype.name ?? "nothing"),
      );
    }
    const expected = `${heads} query and ${kvHeads} kv heads must fit [batch, seq, heads * headDim]`;
    const [batch, seqQ, widthQ] = threeSizes("attention", q.shape, expected);
    const [batchK, seqK, widthK] = threeSizes("attention", k.shape, expected);
    const [batchV, seqV, widthV] = threeSizes("attention", v.shape, expected);
    const [headDim, valueDim] = [widthQ / heads, widthV / kvHeads];
    const fits = Number.isInteger(headDim) && Number.isInteger(valueDim) && heads % kvHeads === 0 &&
      widthK === kvHeads * headDim && batchK === batch && batchV === batch && seqV === seqK;
    if (!fits) throw new ShapeError("attention", expected, q.shape, k.shape, v.shape);
    if (Math.max(headDim, valueDim) > MAX_HEAD_DIM) {
      throw new ShapeError("attention", `a head must have at most ${MAX_HEAD_DIM} elements`, q.shape, v.shape);
    }
    const maskShape = mask?.ndim === 3 ? [batch, seqQ, seqK] : [batch, seqK];
    if (mask !== undefined && (mask.dtype !== uint8 || !sameShape(mask.shape, maskShape))) {
      throw new ShapeError(
        "attention",
        "the key mask must be uint8 [batch, seqK] or [batch, seqQ, seqK]",
        mask.shape,
        k.shape,
      );
    }
    if (starts !== undefined) {
      requireStarts("attention", starts, [batch, seqQ]);
      if (!causal) throw new ArgumentError("Cannot attend within documents if attention is not causal: set 'causal'");
    }
    if (sinks !== undefined && (sinks.dtype !== q.dtype || sinks.ndim !== 1 || sinks.shape[0] !== heads)) {
      throw new ShapeError("attention", `sinks must be ${q.dtype.name} [${heads}]`, sinks.shape);
    }
    return [{ shape: q.shape.with(2, heads * valueDim), dtype: q.dtype }];
  },
  forward: (call) => {
    const inputs = [call.dense(call.input(0)), call.dense(call.input(1)), call.dense(call.input(2))] as const;
    const places = optionalInputs(call.inputs, call.attrs);
    const optional = [places.mask, places.starts, places.sinks]
      .map((i) => i === undefined ? undefined : call.dense(call.input(i)));
    const [mask, starts, sinks] = optional;
    const args = common(inputs, [mask, starts], call.attrs);
    const [o, lse] = [call.output(0), call.empty([args.batch, args.heads, args.seqQ], float32)];
    call.device.kernels.attention({ ...args, o: o.ptr, lse: lse.ptr });
    if (sinks !== undefined) {
      const pointers = { o: o.ptr, lse: lse.ptr, sinks: sinks.ptr };
      call.device.kernels.attentionSinks({ ...sinkSizes(o, call.attrs), ...pointers });
    }
    call.save(...inputs, o, lse);
    for (const tensor of optional) if (tensor !== undefined) call.save(tensor);
  },
  backward: (call) => {
    const inputs = [call.saved(0), call.saved(1), call.saved(2)] as const;
    const [o, lse, dO] = [call.saved(3), call.saved(4), call.dense(call.grad(0))];
    const places = optionalInputs(call.inputs, call.attrs);
    const out = ({ shape, dtype }: Tensor, i: number): Tensor =>
      call.needs(i) ? call.out(i, dtype) : call.empty(shape, dtype);
    // The optional inputs were saved behind the output and its logarithms.
    const saved = (i: number | undefined): Tensor | undefined => i === undefined ? undefined : call.saved(i + 2);
    const [dq, dk, dv] = [out(inputs[0], 0), out(inputs[1], 1), out(inputs[2], 2)];
    call.device.kernels.attentionBackward({
      ...common(inputs, [saved(places.mask), saved(places.starts)], call.attrs),
      dq: dq.ptr,
      dk: dk.ptr,
      dv: dv.ptr,
      dO: dO.ptr,
      o: o.ptr,
      lse: lse.ptr,
    });
    const sinks = saved(places.sinks);
    if (sinks === undefined || places.sinks === undefined || !call.needs(places.sinks)) return;
    const pointers = { dO: dO.ptr, o: o.ptr, lse: lse.ptr, sinks: sinks.ptr };
    writeFloat32(call, places.sinks, (dsinks) => {
      call.device.kernels.attentionSinksBackward({ ...sinkSizes(o, call.attrs), ...pointers, dsinks });
    });
  },
};

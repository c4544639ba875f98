/**
 * The gated delta rule (Yang et al. 2024): attention whose memory is one state for each head, which each token decays, corrects
 * and reads. It is computed in chunks; the backward starts from the state before each chunk.
 *
 * @module
 */
import { at } from "../at.ts";
import type { DevicePtr } from "../device/device.ts";
import { KERNELS } from "../device/kernels/table.ts";
import { float32 } from "../dtype.ts";
import { DTypeError, ShapeError } from "../errors.ts";
import { sameShape, type Shape, threeSizes } from "../shape.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { requireStarts } from "./check.ts";
import type { ComputeOp, OpContext } from "./op.ts";

const { chunk: { atMost: CHUNK }, keyDim: { atMost: MAX_KEY_DIM }, valueDim: { atMost: MAX_VALUE_DIM } } =
  KERNELS.gatedDelta.values;

/** Indices of the inputs. */
const INPUTS = [0, 1, 2, 3, 4] as const;

/** Heads and scale of a gated delta rule. */
export interface GatedDeltaAttrs {
  /** Heads of queries and keys: a divisor of `valueHeads`. */
  readonly keyHeads: number;
  /** Heads of values, each with a state of its own. */
  readonly valueHeads: number;
  /** Factor on the queries. */
  readonly scale: number;
  /**
   * float32 [batch, valueHeads, keyDim, valueDim]: the states before the first token, overwritten with the states after the last.
   * @default zeros, and the last states are dropped
   */
  readonly state?: Tensor | undefined;
}

/** Sizes of both directions. */
function sizesOf(q: Tensor, v: Tensor, { keyHeads, valueHeads, scale }: GatedDeltaAttrs) {
  const [batch, seq] = [at(q.shape, 0, "dim"), at(q.shape, 1, "dim")];
  const [keyDim, valueDim] = [at(q.shape, 2, "dim") / keyHeads, at(v.shape, 2, "dim") / valueHeads];
  const chunks = Math.ceil(seq / CHUNK);
  return { dtype: q.dtype, batch, seq, keyHeads, valueHeads, keyDim, valueDim, chunk: CHUNK, chunks, scale };
}

/** States of zeros, one for each head. */
function emptyStates(call: OpContext, shape: Shape): Tensor {
  const states = call.empty(shape, float32);
  call.device.kernels.fill({ dtype: float32, n: states.numel, value: 0, dst: states.ptr });
  return states;
}

/** The arrays that both directions read. */
function arraysOf(inputs: readonly Tensor[], starts: Tensor | undefined) {
  const ptr = (i: number) => at(inputs, i, "input").ptr;
  return { q: ptr(0), k: ptr(1), v: ptr(2), g: ptr(3), beta: ptr(4), starts: starts?.ptr };
}

/**
 * q and k [batch, seq, keyHeads * keyDim], v [batch, seq, valueHeads * valueDim], g float32 and beta [batch, seq, valueHeads], optional
 * beginnings of documents int32 [batch, seq], where the state becomes zeros → the shape of v.
 */
export const gatedDeltaOp: ComputeOp<GatedDeltaAttrs> = {
  name: "gatedDeltaRule",
  infer: ([q, k, v, g, beta, starts], { keyHeads, valueHeads, state }) => {
    if (q === undefined || k === undefined || v === undefined || g === undefined || beta === undefined) {
      throw new ShapeError("gatedDeltaRule", "it takes q, k, v, g and beta", []);
    }
    if (g.dtype !== float32 || [k, v, beta].some(({ dtype }) => dtype !== q.dtype)) {
      const expected = "g must be float32, and q, k, v and beta of one dtype";
      throw new DTypeError("gatedDeltaRule", expected, g.dtype.name, ...[q, k, v, beta].map(({ dtype }) => dtype.name));
    }
    const expected = `${keyHeads} key heads and ${valueHeads} value heads must fit`;
    const [batch, seq, width] = threeSizes("gatedDeltaRule", q.shape, expected);
    const [keyDim, valueDim] = [width / keyHeads, threeSizes("gatedDeltaRule", v.shape, expected)[2] / valueHeads];
    const fits = sameShape(q.shape, k.shape) && valueHeads % keyHeads === 0 &&
      Number.isInteger(keyDim) && Number.isInteger(valueDim) && v.shape[0] === batch && v.shape[1] === seq &&
      [g, beta].every(({ shape }) => sameShape(shape, [batch, seq, valueHeads]));
    if (!fits) {
      throw new ShapeError("gatedDeltaRule", expected, q.shape, k.shape, v.shape, g.shape, beta.shape);
    }
    if (keyDim > MAX_KEY_DIM || valueDim > MAX_VALUE_DIM) {
      throw new ShapeError("gatedDeltaRule", `a head must have at most ${MAX_KEY_DIM} elements`, q.shape, v.shape);
    }
    if (starts !== undefined) requireStarts("gatedDeltaRule", starts, [batch, seq]);
    const stateShape = [batch, valueHeads, keyDim, valueDim];
    if (state !== undefined && (state.dtype !== float32 || !sameShape(state.shape, stateShape))) {
      throw new ShapeError("gatedDeltaRule", `the state must be float32 [${stateShape.join(", ")}]`, state.shape);
    }
    return [{ shape: v.shape, dtype: q.dtype }];
  },
  forward: (call) => {
    const inputs = INPUTS.map((i) => call.dense(call.input(i)));
    const starts = call.inputs > INPUTS.length ? call.dense(call.input(INPUTS.length)) : undefined;
    const sizes = sizesOf(call.input(0), call.input(2), call.attrs);
    const { batch, valueHeads, keyDim, valueDim, chunks } = sizes;
    const state = call.attrs.state ?? emptyStates(call, [batch, valueHeads, keyDim, valueDim]);
    const states = call.recording ? call.empty([batch, valueHeads, chunks, keyDim, valueDim], float32) : undefined;
    const written = { o: call.output(0).ptr, state: state.ptr, states: states?.ptr };
    call.device.kernels.gatedDelta({ ...sizes, ...written, ...arraysOf(inputs, starts) });
    if (states === undefined) return;
    call.save(...inputs, states);
    if (starts !== undefined) call.save(starts);
  },
  backward: (call) => {
    const inputs = INPUTS.map((i) => call.saved(i));
    const sizes = sizesOf(call.saved(0), call.saved(2), call.attrs);
    const { batch, valueHeads, keyDim, valueDim } = sizes;
    const out = (i: number): DevicePtr => {
      const { shape, dtype } = call.saved(i);
      return (call.needs(i) ? call.out(i, dtype) : call.empty(shape, dtype)).ptr;
    };
    call.device.kernels.gatedDeltaBackward({
      ...sizes,
      ...arraysOf(inputs, call.inputs > INPUTS.length ? call.saved(INPUTS.length + 1) : undefined),
      dState: emptyStates(call, [batch, valueHeads, keyDim, valueDim]).ptr,
      dq: out(0),
      dk: out(1),
      dv: out(2),
      dg: out(3),
      dbeta: out(4),
      dO: call.dense(call.grad(0)).ptr,
      states: call.saved(INPUTS.length).ptr,
    });
  },
};

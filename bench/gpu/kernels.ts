/**
 * Kernels of a step of Llama 3.2 1B, or small ones, as calls that enqueue one each on a card.
 *
 * @module
 */
import { bfloat16, type DType, float32 } from "fullyshard";
import type { Device, DevicePtr } from "fullyshard/device";
import { type ArgsOf, KERNELS } from "../../src/device/kernels/table.ts";
import { accessesOf, flopsOf } from "../../src/device/kernels/accesses.ts";
import type { Arguments, KernelEntry } from "../../src/device/kernels/signature.ts";
import { devicePtr } from "../../src/device/device.ts";
import type { LlamaSize } from "../ranks/llama_step.ts";

/** One kernel with its arguments. */
export interface KernelCase {
  readonly call: () => void;
  readonly flops: number;
  /** The bytes that it reads and writes, each element once. */
  readonly bytes: number;
}

const RECORD_BYTES = 56;

/** Memory of random numbers in [-1, 1). */
function random(device: Device, n: number, dtype: DType): DevicePtr {
  const [dst, values] = [
    device.allocator.allocate(n * dtype.byteLength, "bench"),
    device.allocator.allocate(n * 4, "bench"),
  ];
  device.kernels.uniform({ n, key: 1, offset: 0, low: -1, high: 1, dst: values });
  device.kernels.cast({ srcDtype: float32, dstDtype: dtype, n, dst, src: values });
  device.allocator.free(values);
  return dst;
}

function of(device: Device, values: Uint8Array): DevicePtr {
  const dst = device.allocator.allocate(values.byteLength, "bench");
  device.copyIn(dst, values);
  return dst;
}

function caseOf(entry: KernelEntry, args: Arguments, call: () => void): KernelCase {
  const moved = accessesOf(entry, args, devicePtr(0)).map(({ direction, movedBytes }) =>
    direction === "updates" ? 2 * movedBytes : movedBytes
  );
  const bytes = moved.reduce((sum, one) => sum + one, 0);
  return { call, flops: flopsOf(entry, args), bytes };
}

/** Elements of `heads` heads for all tokens of a batch. */
function elementsOf(seq: number, heads: number, { batch, headDim }: { batch: number; headDim: number }): number {
  return batch * seq * heads * headDim;
}

/** The arguments of causal attention, which runs on tensor cores. */
export function attentionArgs(device: Device, { seq, batch, heads, kvHeads, hidden }: LlamaSize): ArgsOf<"attention"> {
  const [dtype, headDim] = [bfloat16, hidden / heads];
  const [queries, keys] = [elementsOf(seq, heads, { batch, headDim }), elementsOf(seq, kvHeads, { batch, headDim })];
  return {
    ...{ dtype, batch, seqQ: seq, seqK: seq, heads, kvHeads, headDim, valueDim: headDim, scale: headDim ** -0.5 },
    ...{ strideQ: heads * headDim, strideK: kvHeads * headDim, strideV: kvHeads * headDim },
    ...{ softcap: 0, causal: true, window: 0, maskRows: 1, p: 0, key: 0, sample: 0 },
    o: random(device, queries, dtype),
    lse: random(device, batch * heads * seq, float32),
    q: random(device, queries, dtype),
    k: random(device, keys, dtype),
    v: random(device, keys, dtype),
  };
}

/** Makes the product `c = a b` of bfloat16, of which either may lie transposed. */
function product(device: Device, [m, n, k]: readonly [number, number, number], transA: boolean, transB: boolean) {
  const dtype = bfloat16;
  const args = {
    ...{ dtype, outDtype: dtype, transA, transB, m, n, k, lda: transA ? m : k, ldb: transB ? k : n, ldc: n, batch: 1 },
    ...{ strideA: 0, strideB: 0, strideC: 0, alpha: 1, beta: 0 },
    ...{ c: random(device, m * n, dtype), a: random(device, m * k, dtype), b: random(device, n * k, dtype) },
  };
  return caseOf(KERNELS.gemm, args, () => device.kernels.gemm(args));
}

/** The arguments of the backward of an attention that was computed. */
export function attentionBackwardArgs(device: Device, forward: ArgsOf<"attention">): ArgsOf<"attentionBackward"> {
  const [queries, keys] = [
    elementsOf(forward.seqQ, forward.heads, forward),
    elementsOf(forward.seqK, forward.kvHeads, forward),
  ];
  return {
    ...{ ...forward, dO: random(device, queries, bfloat16), dq: random(device, queries, bfloat16) },
    ...{ dk: random(device, keys, bfloat16), dv: random(device, keys, bfloat16) },
  };
}

/** Makes a case; its memory stays until the device is disposed. */
type MakeCase = (device: Device, size: LlamaSize) => KernelCase;

/** The products are those of the up projection: its outputs, and the gradients of its inputs and weights. */
const KERNEL_CASES: Readonly<Record<string, MakeCase>> = {
  gemm: (device, { seq, batch, hidden, inner }) => product(device, [seq * batch, inner, hidden], false, true),
  "gemm:input-gradient": (device, { seq, batch, hidden, inner }) =>
    product(device, [seq * batch, hidden, inner], false, false),
  "gemm:weight-gradient": (device, { seq, batch, hidden, inner }) =>
    product(device, [inner, hidden, seq * batch], true, false),
  attention: (device, size) => {
    const args = attentionArgs(device, size);
    return caseOf(KERNELS.attention, args, () => device.kernels.attention(args));
  },
  "attention-backward": (device, size) => {
    const forward = attentionArgs(device, size);
    device.kernels.attention(forward);
    const args = attentionBackwardArgs(device, forward);
    return caseOf(KERNELS.attentionBackward, args, () => device.kernels.attentionBackward(args));
  },
  "rms-norm": (device, { seq, batch, hidden: cols }) => {
    const [dtype, rows] = [bfloat16, seq * batch];
    const args = {
      ...{ dtype, rows, cols, eps: 1e-5, zeroCentered: false, rstd: random(device, rows, float32) },
      ...{
        y: random(device, rows * cols, dtype),
        x: random(device, rows * cols, dtype),
        w: random(device, cols, dtype),
      },
    };
    return caseOf(KERNELS.rmsNorm, args, () => device.kernels.rmsNorm(args));
  },
  "rms-norm-backward": (device, { seq, batch, hidden: cols }) => {
    const [dtype, rows] = [bfloat16, seq * batch];
    const [dx, dy, x] = [1, 2, 3].map(() => random(device, rows * cols, dtype));
    if (dx === undefined || dy === undefined || x === undefined) throw new Error("no memory");
    const args = {
      ...{ dtype, rows, cols, zeroCentered: false, dx, dw: random(device, cols, float32), dy, x },
      ...{ w: random(device, cols, dtype), rstd: random(device, rows, float32) },
    };
    return caseOf(KERNELS.rmsNormBackward, args, () => device.kernels.rmsNormBackward(args));
  },
  "cross-entropy": (device, { seq, vocab: cols }) => {
    const rows = Math.min(seq, 1024);
    const labels = Int32Array.from({ length: rows }, (_, i) => i * 7919 % cols);
    const logits = random(device, rows * cols, float32);
    const args = {
      ...{ dtype: float32, rows, cols, ignoreIndex: -100, firstRow: 0, labelSmoothing: 0, zLoss: 0 },
      ...{ losses: random(device, rows, float32) },
      ...{ dlogits: random(device, rows * cols, float32), logits, labels: of(device, new Uint8Array(labels.buffer)) },
    };
    return caseOf(KERNELS.crossEntropy, args, () => device.kernels.crossEntropy(args));
  },
  adamw: (device, { hidden, inner }) => {
    const n = 4 * hidden * inner;
    const record = new Uint8Array(RECORD_BYTES);
    new Uint32Array(record.buffer).set([0, n, 0, 1]);
    new Float64Array(record.buffer, 16).set([1e-4, 0.1, 0.9, 0.999, 1e-8]);
    const [param, grad, expAvg, expAvgSq] = [1, 2, 3, 4].map(() => random(device, n, float32));
    if (param === undefined || grad === undefined || expAvg === undefined || expAvgSq === undefined) {
      throw new Error("no memory");
    }
    const tables = { records: of(device, record), steps: of(device, new Uint8Array(4)) };
    const args = { n, numStates: n, numRecords: 1, param, grad, expAvg, expAvgSq, ...tables };
    return caseOf(KERNELS.adamw, args, () => device.kernels.adamw(args));
  },
};

/** The case of that name. */
export function caseNamed(name: string): MakeCase {
  const make = KERNEL_CASES[name];
  if (make === undefined) throw new Error(`no case '${name}'`);
  return make;
}

/** Milliseconds of a call, of the best of some rounds of several. */
export function millisecondsOf(device: Device, call: () => void, rounds: number): number {
  const calls = 10;
  let best = Infinity;
  for (let round = 0; round <= rounds; round++) {
    device.synchronize();
    const started = performance.now();
    for (let i = 0; i < calls; i++) call();
    device.synchronize();
    if (round > 0) best = Math.min(best, (performance.now() - started) / calls);
  }
  return best;
}

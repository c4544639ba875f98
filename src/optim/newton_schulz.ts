/**
 * Orthogonalization of a matrix by Newton–Schulz steps of degree five in bfloat16 (Jordan et al. 2024, "Muon"), in the order of
 * operations of PyTorch's `_zeropower_via_newtonschulz`. A tall matrix is multiplied from the right, so that nothing is transposed.
 *
 * @module
 */
import type { Device, DevicePtr } from "../device/device.ts";
import { bfloat16, float32 } from "../dtype.ts";
import type { WorkBuffer, WorkMemory } from "./work_memory.ts";

/** Coefficients of X, of X Xᵀ X and of (X Xᵀ)² X in a step. */
export type Coefficients = readonly [number, number, number];

/** Settings of the iteration. */
export interface NewtonSchulz {
  readonly coefficients: Coefficients;
  readonly steps: number;
  /** The least norm that a matrix is divided by. */
  readonly eps: number;
}

/**
 * Prepares to replace a bfloat16 matrix of `rows` x `cols` by the nearest orthogonal one, roughly: singular values come near 1.
 *
 * @param work plans the memory of it
 * @returns replaces the matrix at an address
 */
export function prepareOrthogonalization(
  work: WorkMemory,
  device: Device,
  rows: number,
  cols: number,
  settings: NewtonSchulz,
): (matrix: DevicePtr) => void {
  if (rows * cols === 0) return () => {};
  const stages = work.inTurn([
    () => prepareDivision(work, device, rows * cols, settings.eps),
    () => prepareSteps(work, device, rows, cols, settings),
  ]);
  return (matrix) => {
    for (const stage of stages) stage(matrix);
  };
}

/** The steps on a matrix whose norm is at most 1. */
function prepareSteps(
  work: WorkMemory,
  device: Device,
  rows: number,
  cols: number,
  { coefficients: [a, b, c], steps }: NewtonSchulz,
): (matrix: DevicePtr) => void {
  const { kernels } = device;
  const numel = rows * cols;
  const small = Math.min(rows, cols);
  const isTall = rows > cols;
  const plan = (elements: number): WorkBuffer => work.plan(device, elements * bfloat16.byteLength);
  const [gram, update, other] = [plan(small ** 2), plan(small ** 2), plan(numel)];
  const copy = (dst: DevicePtr, src: DevicePtr, n: number): void => device.copy(dst, src, n * bfloat16.byteLength);
  const common = { dtype: bfloat16, outDtype: bfloat16, batch: 1, strideA: 0, strideB: 0, strideC: 0 };
  const square = { ...common, m: small, n: small, lda: small, ldb: small, ldc: small };
  return (matrix) => {
    let [x, next] = [matrix, other.ptr];
    for (let step = 0; step < steps; step++) {
      const ofX = { lda: cols, ldb: cols, transA: isTall, transB: !isTall, k: isTall ? rows : cols };
      kernels.gemm({ ...square, ...ofX, alpha: 1, beta: 0, a: x, b: x, c: gram.ptr });
      copy(update.ptr, gram.ptr, small ** 2);
      kernels.gemm({
        ...square,
        ...{ transA: false, transB: false, k: small, alpha: c, beta: b, a: gram.ptr, b: gram.ptr, c: update.ptr },
      });
      copy(next, x, numel);
      const sizes = { ...common, m: rows, n: cols, k: small, ldc: cols, alpha: 1, beta: a, c: next };
      if (isTall) kernels.gemm({ ...sizes, transA: false, transB: true, lda: cols, ldb: small, a: x, b: update.ptr });
      else kernels.gemm({ ...sizes, transA: false, transB: false, lda: small, ldb: cols, a: update.ptr, b: x });
      [x, next] = [next, x];
    }
    if (x !== matrix) copy(matrix, x, numel);
  };
}

/** Divides a bfloat16 matrix by its norm, or by `eps` if that is larger. */
function prepareDivision(work: WorkMemory, device: Device, numel: number, eps: number): (matrix: DevicePtr) => void {
  const { kernels } = device;
  const [squares, norm] = [work.plan(device, numel * float32.byteLength), work.plan(device, float32.byteLength)];
  return (matrix) => {
    kernels.cast({ dstDtype: float32, srcDtype: bfloat16, n: numel, dst: squares.ptr, src: matrix });
    const ofAll = { dtype: float32, n: numel, p0: 0, p1: 0 };
    kernels.unary({ ...ofAll, op: "square", dst: squares.ptr, src: squares.ptr });
    kernels.reduce({ dtype: float32, op: "sum", outer: 1, n: numel, inner: 1, dst: norm.ptr, src: squares.ptr });
    const ofOne = { n: 1, p0: 0, p1: 0 };
    kernels.unary({ ...ofOne, dtype: float32, op: "sqrt", dst: norm.ptr, src: norm.ptr });
    kernels.cast({ dstDtype: bfloat16, srcDtype: float32, n: 1, dst: squares.ptr, src: norm.ptr });
    const limits = { p0: eps, p1: Infinity };
    kernels.unary({ dtype: bfloat16, op: "clamp", n: 1, ...limits, dst: norm.ptr, src: squares.ptr });
    const shapes = { shape: [numel], aStrides: [1], bStrides: [0] };
    kernels.binary({ dtype: bfloat16, op: "div", ...shapes, dst: matrix, a: matrix, b: norm.ptr });
  };
}

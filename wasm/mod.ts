/**
 * The door to the CPU kernels: finds and compiles a module, instantiates it over a memory, and types its raw exports.
 *
 * Both modules (`scripts/build_wasm.sh` makes them) import one memory and nothing else. Addresses are bytes in it,
 * `0` stands for one left out, dtypes are `DType.code`, switches are 0 or 1. Nothing is checked behind this door.
 *
 * @module
 */
import { InternalError } from "../src/errors.ts";

/** Which arithmetic a module has: `strict` gives the same bits everywhere, `relaxed` may fuse multiply and add. */
export type KernelVariant = "strict" | "relaxed";

/** What the module imports its memory as. The linker's choice; a test compares it with the binaries. */
const MEMORY_MODULE = "./fullyshard_wasm_bg.js";

/**
 * The raw exports, in the order of `wasm/src/lib.rs`. Parameters of the same kind are not told apart by type:
 * `src/device/wasm/` is the only caller.
 */
export interface KernelExports {
  /** First address behind the module's data and working space: a heap begins here. Signed; use `>>> 0`. */
  heap_base(): number;
  /** Address of 4096 words for shapes, strides and source addresses. */
  parameter_area(): number;

  fill(dtype: number, dst: number, n: number, value: number): void;
  cast(dstDtype: number, srcDtype: number, dst: number, src: number, n: number): void;
  unary(op: number, dtype: number, dst: number, src: number, n: number, p0: number, p1: number): void;
  unary_backward(
    op: number,
    dtype: number,
    dx: number,
    dy: number,
    x: number,
    n: number,
    p0: number,
    p1: number,
  ): void;
  accumulate(dstDtype: number, srcDtype: number, dst: number, src: number, n: number): void;
  scale(dtype: number, dst: number, src: number, n: number, factor: number): void;
  scale_by(dtype: number, dst: number, src: number, n: number, factor: number): void;
  max_abs(dtype: number, src: number, n: number): number;

  /** Parameters: shape[8], strides of dst[8], of src[8]. */
  copy_strided(byteLength: number, dst: number, src: number, ndim: number): void;
  /** Parameters: shape[8], strides of a[8], of b[8]. */
  binary(op: number, dtype: number, dst: number, a: number, b: number, ndim: number): void;

  reduce(op: number, dtype: number, dst: number, src: number, outer: number, n: number, inner: number): void;
  argmax(dtype: number, dst: number, src: number, rows: number, cols: number): void;
  accumulator_bytes(): number;
  sum_squares(dtype: number, accumulator: number, src: number, rows: number, cols: number): void;
  accumulator_value(accumulator: number): number;

  gemm(
    dtype: number,
    outDtype: number,
    transA: number,
    transB: number,
    m: number,
    n: number,
    k: number,
    alpha: number,
    a: number,
    lda: number,
    strideA: number,
    b: number,
    ldb: number,
    strideB: number,
    beta: number,
    c: number,
    ldc: number,
    strideC: number,
    batch: number,
  ): void;

  softmax(dtype: number, y: number, x: number, rows: number, cols: number): void;
  softmax_backward(dtype: number, dx: number, dy: number, y: number, rows: number, cols: number): void;
  rms_norm(
    dtype: number,
    y: number,
    rstd: number,
    x: number,
    w: number,
    rows: number,
    cols: number,
    eps: number,
  ): void;
  rms_norm_backward(
    dtype: number,
    dx: number,
    dw: number,
    dy: number,
    x: number,
    w: number,
    rstd: number,
    rows: number,
    cols: number,
  ): void;
  layer_norm(
    dtype: number,
    y: number,
    mean: number,
    rstd: number,
    x: number,
    w: number,
    b: number,
    rows: number,
    cols: number,
    eps: number,
  ): void;
  layer_norm_backward(
    dtype: number,
    dx: number,
    dw: number,
    db: number,
    dy: number,
    x: number,
    w: number,
    mean: number,
    rstd: number,
    rows: number,
    cols: number,
  ): void;
  rope(
    dtype: number,
    y: number,
    x: number,
    stride: number,
    cos: number,
    sin: number,
    positions: number,
    batch: number,
    seq: number,
    heads: number,
    headDim: number,
    rotaryDim: number,
    inverse: number,
  ): void;
  rope_table(cos: number, sin: number, invFreq: number, positions: number, half: number, scale: number): void;
  embedding(dtype: number, y: number, w: number, ids: number, n: number, vocab: number, cols: number): number;
  embedding_backward(
    dtype: number,
    dw: number,
    dy: number,
    ids: number,
    n: number,
    vocab: number,
    cols: number,
    padding: number,
  ): void;
  cross_entropy(
    dtype: number,
    losses: number,
    dlogits: number,
    logits: number,
    labels: number,
    rows: number,
    cols: number,
    ignore: number,
    scale: number,
  ): number;
  swiglu(dtype: number, y: number, gate: number, up: number, n: number): void;
  swiglu_backward(
    dtype: number,
    dgate: number,
    dup: number,
    dy: number,
    gate: number,
    up: number,
    n: number,
  ): void;

  /** Parameters: batch, seqQ, seqK, heads, kvHeads, headDim, strideQ, strideK, strideV, causal. */
  attention(
    dtype: number,
    scale: number,
    keyMask: number,
    o: number,
    lse: number,
    q: number,
    k: number,
    v: number,
  ): void;
  /** Parameters as {@link KernelExports.attention}. */
  attention_backward(
    dtype: number,
    scale: number,
    keyMask: number,
    dq: number,
    dk: number,
    dv: number,
    dO: number,
    o: number,
    lse: number,
    q: number,
    k: number,
    v: number,
  ): void;

  adamw(
    param: number,
    grad: number,
    expAvg: number,
    expAvgSq: number,
    ranges: number,
    numRanges: number,
    beta1: number,
    beta2: number,
    eps: number,
    biasCorrection1: number,
    biasCorrection2Sqrt: number,
  ): void;
  sgd(
    param: number,
    grad: number,
    momentumBuffer: number,
    ranges: number,
    numRanges: number,
    momentum: number,
    dampening: number,
    nesterov: number,
    first: number,
  ): void;

  /** Parameters: addresses of the sources. */
  sum_ranks(
    dstDtype: number,
    dtype: number,
    dst: number,
    count: number,
    n: number,
    scale: number,
    accumulate: number,
  ): void;

  uniform(dst: number, n: number, key: number, offset: number, low: number, high: number): void;
  normal(dst: number, n: number, key: number, offset: number, mean: number, std: number): void;

  exact_exp(x: number): number;
  exact_log(x: number): number;
  exact_sin(x: number): number;
  exact_cos(x: number): number;
  exact_pow(x: number, y: number): number;
}

/** Every name of the interface, once; the compiler sees to it that none is missing. */
const EXPORTS: Readonly<Record<keyof KernelExports, true>> = {
  heap_base: true,
  parameter_area: true,
  fill: true,
  cast: true,
  unary: true,
  unary_backward: true,
  accumulate: true,
  scale: true,
  scale_by: true,
  max_abs: true,
  copy_strided: true,
  binary: true,
  reduce: true,
  argmax: true,
  accumulator_bytes: true,
  sum_squares: true,
  accumulator_value: true,
  gemm: true,
  softmax: true,
  softmax_backward: true,
  rms_norm: true,
  rms_norm_backward: true,
  layer_norm: true,
  layer_norm_backward: true,
  rope: true,
  rope_table: true,
  embedding: true,
  embedding_backward: true,
  cross_entropy: true,
  swiglu: true,
  swiglu_backward: true,
  attention: true,
  attention_backward: true,
  adamw: true,
  sgd: true,
  sum_ranks: true,
  uniform: true,
  normal: true,
  exact_exp: true,
  exact_log: true,
  exact_sin: true,
  exact_cos: true,
  exact_pow: true,
};

function isKernelExports(exports: object): exports is KernelExports {
  const found = new Map<string, unknown>(Object.entries(exports));
  return Object.keys(EXPORTS).every((name) => typeof found.get(name) === "function");
}

/**
 * Reads and compiles one of the two kernel modules. A module may be instantiated many times, also in other workers.
 *
 * @param variant which arithmetic
 * @param source the binary or where it lies, a `file:`, `http:` or `https:` URL; by default the file beside this one
 * @throws {Error} if it cannot be read or compiled
 */
export async function loadKernelModule(
  variant: KernelVariant,
  source?: URL | Uint8Array<ArrayBuffer>,
): Promise<WebAssembly.Module> {
  if (source instanceof Uint8Array) return await WebAssembly.compile(source);
  const url = source ?? defaultSource(variant);
  let bytes: ArrayBuffer;
  try {
    const response = await fetch(url);
    if (!response.ok) throw new Error(`HTTP status ${response.status}`);
    bytes = await response.arrayBuffer();
  } catch (cause) {
    throw new Error(`Cannot read the kernel module ${url.href}; the package is incomplete`, { cause });
  }
  return await WebAssembly.compile(bytes);
}

/** One literal URL a file, so that bundlers see both. */
function defaultSource(variant: KernelVariant): URL {
  return variant === "strict"
    ? new URL("./pkg/strict.wasm", import.meta.url)
    : new URL("./pkg/relaxed.wasm", import.meta.url);
}

/**
 * Instantiates a kernel module over a memory, which it fills up to `heap_base()` at once and never grows.
 *
 * @param module from {@link loadKernelModule}
 * @param memory one that this instance alone writes below `heap_base()`
 * @throws {InternalError} if the module lacks an export, or the memory is smaller than what lies below `heap_base()`
 */
export function instantiateKernels(module: WebAssembly.Module, memory: WebAssembly.Memory): KernelExports {
  const exports = new WebAssembly.Instance(module, { [MEMORY_MODULE]: { memory } }).exports;
  if (!isKernelExports(exports)) {
    const missing = Object.keys(EXPORTS).filter((name) => !(name in exports));
    throw new InternalError(`The kernel module lacks ${missing.join(", ")}; rebuild it with scripts/build_wasm.sh`);
  }
  const needed = exports.heap_base() >>> 0;
  if (memory.buffer.byteLength < needed) {
    throw new InternalError(`The kernels need ${needed} bytes of memory, got ${memory.buffer.byteLength}`);
  }
  return exports;
}

/**
 * Matrix products by cuBLASLt, whose matrices are column-major while the library's are row-major: `c = a b` is computed as `cᵀ =
 * bᵀ aᵀ`, which has the same memory. Products that it does not take (an empty sum, overlapping rows) go to the library's own
 * kernel.
 *
 * Layouts, descriptors and the algorithm of its heuristic are kept for each shape.
 *
 * @module
 */
import { bfloat16, type DType, float16 } from "../../dtype.ts";
import { UnsupportedError } from "../../errors.ts";
import { CUBLASLT_CONSTANTS, CUBLASLT_MATMUL_HEURISTIC_RESULT } from "../../ffi/bindings/cublaslt.ts";
import type { Handle, NativeAddress } from "../../ffi/types.ts";
import { checksOf } from "../kernels/arguments.ts";
import { type ArgsOf, KERNELS, type Kernels } from "../kernels/table.ts";
import type { Cublaslt, CudaLibraries } from "./libraries.ts";
import type { CudaStream } from "./streams.ts";

type GemmArgs = ArgsOf<"gemm">;
type MatrixLayout = Handle<"cublasLtMatrixLayout_t">;

/** NVIDIA's advice for its largest cards. */
const WORKSPACE_BYTES = 2 ** 25;

/** Count of the numbers by which products need different descriptors or algorithms. */
const TRAITS = 17;

/** A product of one shape, ready to be enqueued. */
interface Plan {
  readonly traits: Float64Array;
  readonly desc: Handle<"cublasLtMatmulDesc_t">;
  readonly a: MatrixLayout;
  readonly b: MatrixLayout;
  readonly c: MatrixLayout;
  readonly algorithm: Uint8Array;
}

/** Multiplies matrices on one card. */
export class Products {
  readonly #libraries: CudaLibraries;
  readonly #own: Kernels["gemm"];
  readonly #stream: () => CudaStream;
  readonly #handle: Handle<"cublasLtHandle_t">;
  readonly #preference: Handle<"cublasLtMatmulPreference_t">;
  /** Plans by a hash of their traits; different shapes may have the same hash. */
  readonly #plans = new Map<number, Plan[]>();
  readonly #traits = new Float64Array(TRAITS);
  /** Workspaces by stream, as products of several streams are concurrent. */
  readonly #workspaces = new Map<CudaStream, NativeAddress>();
  readonly #checks = checksOf("gemm", KERNELS.gemm);
  readonly #alpha = new Float32Array(1);
  readonly #beta = new Float32Array(1);

  /** @param own the kernel for products that cuBLASLt does not take */
  constructor(libraries: CudaLibraries, own: Kernels["gemm"], stream: () => CudaStream) {
    const { cublaslt: { symbols }, provider } = libraries;
    this.#libraries = libraries;
    this.#own = own;
    this.#stream = stream;
    const [handle, preference] = [provider.out("cublasLtHandle_t"), provider.out("cublasLtMatmulPreference_t")];
    symbols.cublasLtCreate(handle);
    symbols.cublasLtMatmulPreferenceCreate(preference);
    this.#handle = handle.value;
    this.#preference = preference.value;
    const most = CUBLASLT_CONSTANTS.CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
    symbols.cublasLtMatmulPreferenceSetAttribute(this.#preference, most, BigUint64Array.of(BigInt(WORKSPACE_BYTES)), 8);
  }

  /** The kernel `gemm` of the table. */
  gemm(args: GemmArgs): void {
    for (const check of this.#checks) check(args);
    const { m, n, k, batch, lda, ldb, ldc, transA, transB } = args;
    if (m * n * batch === 0) return;
    const isOwn = k === 0 || batch > MOST_BATCH || lda < (transA ? m : k) || ldb < (transB ? k : n) || ldc < n;
    if (isOwn) return this.#own(args);
    const { cublaslt: { symbols }, provider } = this.#libraries;
    const plan = this.#planOf(args);
    const at = (ptr: number): NativeAddress => provider.offset(provider.nullAddress, ptr);
    const stream = this.#stream();
    this.#alpha[0] = args.alpha;
    this.#beta[0] = args.beta;
    const { desc, a, b, c, algorithm } = plan;
    symbols.cublasLtMatmul(
      this.#handle,
      desc,
      this.#alpha,
      at(args.b),
      b,
      at(args.a),
      a,
      this.#beta,
      at(args.c),
      c,
      at(args.c),
      c,
      algorithm,
      this.#workspaceOf(stream),
      WORKSPACE_BYTES,
      stream.handle,
    );
  }

  /** Frees descriptors and workspaces. */
  dispose(): void {
    const { cublaslt: { symbols }, cudart } = this.#libraries;
    for (const { desc, a, b, c } of [...this.#plans.values()].flat()) {
      for (const layout of [a, b, c]) symbols.cublasLtMatrixLayoutDestroy(layout);
      symbols.cublasLtMatmulDescDestroy(desc);
    }
    for (const workspace of this.#workspaces.values()) cudart.symbols.cudaFree(workspace);
    symbols.cublasLtMatmulPreferenceDestroy(this.#preference);
    symbols.cublasLtDestroy(this.#handle);
  }

  #workspaceOf(stream: CudaStream): NativeAddress {
    const found = this.#workspaces.get(stream);
    if (found !== undefined) return found;
    const { cudart, provider } = this.#libraries;
    const place = provider.out("address");
    cudart.symbols.cudaMalloc(place, WORKSPACE_BYTES);
    this.#workspaces.set(stream, place.value);
    return place.value;
  }

  #planOf(args: GemmArgs): Plan {
    const traits = this.#traits;
    writeTraits(traits, args);
    let key = 0;
    for (const trait of traits) key = (Math.imul(key, 31) + trait) | 0;
    const alike = this.#plans.get(key);
    if (alike !== undefined) { for (const plan of alike) if (isSame(plan.traits, traits)) return plan; }
    const plan = this.#makePlan(args, traits.slice());
    if (alike === undefined) this.#plans.set(key, [plan]);
    else alike.push(plan);
    return plan;
  }

  #makePlan(args: GemmArgs, traits: Float64Array): Plan {
    const { dtype, outDtype, transA, transB, m, n, k, lda, ldb, ldc, batch, strideA, strideB, strideC } = args;
    const alignments = [args.b, args.a, args.c, args.c].map(alignmentOf);
    const { cublaslt, provider } = this.#libraries;
    const { symbols } = cublaslt;
    const { CUBLAS_COMPUTE_32F, CUDA_R_32F, CUBLASLT_MATMUL_DESC_TRANSA, CUBLASLT_MATMUL_DESC_TRANSB } =
      CUBLASLT_CONSTANTS;
    const desc = provider.out("cublasLtMatmulDesc_t");
    symbols.cublasLtMatmulDescCreate(desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    // cuBLASLt's first matrix is the second of this kernel.
    symbols.cublasLtMatmulDescSetAttribute(desc.value, CUBLASLT_MATMUL_DESC_TRANSA, Int32Array.of(Number(transB)), 4);
    symbols.cublasLtMatmulDescSetAttribute(desc.value, CUBLASLT_MATMUL_DESC_TRANSB, Int32Array.of(Number(transA)), 4);
    const b = layoutOf(cublaslt, dtype, transB ? [n, k] : [k, n], ldb, batch, strideB);
    const a = layoutOf(cublaslt, dtype, transA ? [k, m] : [m, k], lda, batch, strideA);
    const c = layoutOf(cublaslt, outDtype, [m, n], ldc, batch, strideC);
    const [result, count] = [provider.struct(CUBLASLT_MATMUL_HEURISTIC_RESULT), provider.out("i32")];
    const preference = this.#preference;
    for (const [i, alignment] of alignments.entries()) {
      const which = CUBLASLT_CONSTANTS.CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES + i; // of A, B, C and D
      symbols.cublasLtMatmulPreferenceSetAttribute(preference, which, Uint32Array.of(alignment), 4);
    }
    symbols.cublasLtMatmulAlgoGetHeuristic(this.#handle, desc.value, b, a, c, c, preference, 1, result, count);
    if (count.value === 0) throw new UnsupportedError(`cuBLASLt has no algorithm for a product of ${m} x ${k} x ${n}`);
    return { traits, desc: desc.value, a, b, c, algorithm: result.get("algo").slice() };
  }
}

/** Largest number of matrices in a batch: cuBLASLt takes an int32. */
const MOST_BATCH = 2 ** 31 - 1;

/** Writes the traits of a product: dtypes, sizes and the alignment of its matrices. */
function writeTraits(to: Float64Array, args: GemmArgs): void {
  to[0] = args.dtype.code;
  to[1] = args.outDtype.code;
  to[2] = Number(args.transA);
  to[3] = Number(args.transB);
  to[4] = args.m;
  to[5] = args.n;
  to[6] = args.k;
  to[7] = args.lda;
  to[8] = args.ldb;
  to[9] = args.ldc;
  to[10] = args.batch;
  to[11] = args.strideA;
  to[12] = args.strideB;
  to[13] = args.strideC;
  to[14] = alignmentOf(args.a);
  to[15] = alignmentOf(args.b);
  to[16] = alignmentOf(args.c);
}

function isSame(a: Float64Array, b: Float64Array): boolean {
  for (let i = 0; i < TRAITS; i++) if (a[i] !== b[i]) return false;
  return true;
}

/** A row-major matrix as cuBLASLt sees it: the transposed one, column-major. */
function layoutOf(
  { symbols, provider }: Cublaslt,
  dtype: DType,
  [rows, columns]: readonly [rows: number, columns: number],
  leading: number,
  batch: number,
  stride: number,
): MatrixLayout {
  const layout = provider.out("cublasLtMatrixLayout_t");
  symbols.cublasLtMatrixLayoutCreate(layout, typeOf(dtype), columns, rows, leading);
  const { CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET } = CUBLASLT_CONSTANTS;
  symbols.cublasLtMatrixLayoutSetAttribute(layout.value, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, Int32Array.of(batch), 4);
  const offset = BigInt64Array.of(BigInt(stride));
  symbols.cublasLtMatrixLayoutSetAttribute(layout.value, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, offset, 8);
  return layout.value;
}

/** The largest power of two up to 256 that divides an address. */
function alignmentOf(address: number): number {
  const rest = address % 256;
  return rest === 0 ? 256 : rest & -rest;
}

function typeOf(dtype: DType): number {
  const { CUDA_R_16BF, CUDA_R_16F, CUDA_R_32F } = CUBLASLT_CONSTANTS;
  return dtype === bfloat16 ? CUDA_R_16BF : dtype === float16 ? CUDA_R_16F : CUDA_R_32F;
}

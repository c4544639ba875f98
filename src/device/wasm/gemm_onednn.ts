/**
 * Matrix products by oneDNN on the memory of a rank, in place: a native address is an address in WASM memory plus the memory's
 * base, which never moves as the memory never grows. Callers choose the provider of products and check shapes and dtypes.
 *
 * Invariant: the same arguments give the same bits, wherever the operands lie. So a product is cut by its shape only, and the
 * number of threads is fixed before the library is loaded.
 *
 * Permissions on Deno: `--allow-ffi`, and `--allow-read` of the directories searched for the library.
 *
 * @module
 */
import { bfloat16, type DType, float32 } from "../../dtype.ts";
import { NativeError, UnsupportedError } from "../../errors.ts";
import { DNNL_VERSION_T, N, ONEDNN, type ONEDNN_BINDINGS, T } from "../../ffi/bindings/onednn.ts";
import { openLibrary, type OpenLibraryOptions } from "../../ffi/mod.ts";
import { openPosix } from "../../ffi/posix.ts";
import type { BoundFunction, Library, NativeAddress } from "../../ffi/types.ts";
import { threadsOfRank } from "../../runtime/processes.ts";
import { type DevicePtr, devicePtr } from "../device.ts";
import { dtypeArgument, numberArgument } from "../kernels/arguments.ts";
import type { Arguments } from "../kernels/signature.ts";
import type { ArgsOf, Kernels } from "../kernels/table.ts";

/** Memory, kernels and threads of {@link openOnednn}. */
export interface OnednnOptions extends OpenLibraryOptions {
  /** The rank's memory; it must never grow. */
  readonly memory: WebAssembly.Memory;
  /** Kernels for scaling, and for rounding to bfloat16. */
  readonly kernels: Pick<Kernels, "cast" | "fill" | "scale">;
  /** Allocates float32 sums before they are rounded to bfloat16. */
  readonly scratch: { allocate(bytes: number, owner: string): DevicePtr; free(ptr: DevicePtr): void };
  /** Ranks on this host, which share its cores among their threads. */
  readonly ranksOnHost: number;
  /** Threads of a product; OMP_NUM_THREADS overrides it. @default the host's cores divided by its ranks */
  readonly threads?: number | undefined;
}

/** Largest number of float32 sums that are kept until they are rounded, so that a product of logits needs no second copy. */
const SCRATCH_ELEMENTS = 1 << 22;

type GemmArgs = ArgsOf<"gemm">;
/** Rows of sums that are kept at once. */
function rowsAtOnce(m: number, n: number): number {
  return Math.min(m, Math.max(1, Math.floor(SCRATCH_ELEMENTS / n)));
}

type Product = BoundFunction<typeof ONEDNN_BINDINGS["dnnl_sgemm"]>;

/** Rows of a matrix in memory. */
interface Rows {
  readonly dtype: DType;
  readonly at: number;
  readonly stride: number;
}

/** Matrix products by oneDNN. */
export class OnednnGemm {
  /** `3.2.0`. */
  readonly version: string;
  /** The file that was loaded. */
  readonly path: string;
  /** True if this processor and library multiply bfloat16; if not, the WASM kernel does. */
  readonly hasBfloat16: boolean;
  readonly #library: Library<typeof ONEDNN_BINDINGS>;
  readonly #base: NativeAddress;
  readonly #kernels: OnednnOptions["kernels"];
  readonly #scratch: OnednnOptions["scratch"];

  /** Use {@link openOnednn}. */
  constructor(library: Library<typeof ONEDNN_BINDINGS>, options: OnednnOptions) {
    this.#library = library;
    this.#base = library.provider.addressOf(options.memory.buffer);
    this.#kernels = options.kernels;
    this.#scratch = options.scratch;
    this.version = onednnVersion(library);
    this.path = library.path;
    this.hasBfloat16 = this.#probeBfloat16();
  }

  /**
   * Computes one product for each matrix of the batch; see the table of kernels.
   *
   * @throws {UnsupportedError} for bfloat16 where {@link hasBfloat16} is false
   * @throws {NativeError} if oneDNN refuses the arguments
   */
  gemm(args: GemmArgs): void {
    const { m, n, k, alpha, batch } = args;
    if (m === 0 || n === 0 || batch === 0) return;
    const product = args.dtype === float32 ? this.#library.symbols.dnnl_sgemm : this.#bfloat16ProductOrThrow();
    const bytes = args.dtype.byteLength;
    for (let i = 0; i < batch; i++) {
      const a = args.a + i * args.strideA * bytes;
      const b = args.b + i * args.strideB * bytes;
      const c = args.c + i * args.strideC * args.outDtype.byteLength;
      if (k === 0 || alpha === 0) this.#scaleOnly(args, c);
      else if (args.outDtype === float32) this.#multiply(product, args, m, a, b, args.beta, c, args.ldc);
      else this.#multiplyAndRound(product, args, a, b, c);
    }
  }

  /** True if oneDNN multiplies a dtype on this processor. */
  multiplies(dtype: DType): boolean {
    return dtype === float32 || (dtype === bfloat16 && this.hasBfloat16);
  }

  /** Bytes of scratch memory that {@link gemm} allocates. */
  scratchBytes(args: Arguments): number {
    const [m, n, factors] = [numberArgument(args, "m"), numberArgument(args, "n"), ["k", "batch", "alpha"]];
    const isProduct = m * n > 0 && factors.every((name) => numberArgument(args, name) !== 0);
    const rounds = this.hasBfloat16 && dtypeArgument(args, "outDtype") === bfloat16 && isProduct;
    return rounds ? rowsAtOnce(m, n) * n * float32.byteLength : 0;
  }

  /** Closes the library. */
  dispose(): void {
    this.#library.close();
  }

  #multiply(
    product: Product,
    args: GemmArgs,
    rows: number,
    a: number,
    b: number,
    beta: number,
    c: number,
    ldc: number,
  ): void {
    const at = (address: number): NativeAddress => this.#library.provider.offset(this.#base, address);
    const { transA, transB, n, k, alpha, lda, ldb } = args;
    product(transA ? T : N, transB ? T : N, rows, n, k, alpha, at(a), lda, at(b), ldb, beta, at(c), ldc);
  }

  /** Computes a bfloat16 result: float32 sums in scratch memory, some rows at a time, rounded once into `c`. */
  #multiplyAndRound(product: Product, args: GemmArgs, a: number, b: number, c: number): void {
    const { m, n, beta, ldc } = args;
    const step = rowsAtOnce(m, n);
    const sums = this.#scratch.allocate(step * n * float32.byteLength, "matrix product (float32 sums)");
    try {
      for (let row = 0; row < m; row += step) {
        const rows = Math.min(step, m - row);
        const first = a + row * (args.transA ? 1 : args.lda) * args.dtype.byteLength;
        const into = c + row * ldc * bfloat16.byteLength;
        const stored: Rows = { dtype: bfloat16, at: into, stride: ldc };
        const summed: Rows = { dtype: float32, at: sums, stride: n };
        if (beta !== 0) this.#castRows(summed, stored, rows, n);
        this.#multiply(product, args, rows, first, b, beta, sums, n);
        this.#castRows(stored, summed, rows, n);
      }
    } finally {
      this.#scratch.free(sums);
    }
  }

  #castRows(to: Rows, from: Rows, rows: number, cols: number): void {
    const isDense = to.stride === cols && from.stride === cols;
    for (let row = 0; row < (isDense ? 1 : rows); row++) {
      this.#kernels.cast({
        dstDtype: to.dtype,
        srcDtype: from.dtype,
        n: isDense ? rows * cols : cols,
        dst: devicePtr(to.at + row * to.stride * to.dtype.byteLength),
        src: devicePtr(from.at + row * from.stride * from.dtype.byteLength),
      });
    }
  }

  /** `c = beta * c` without a product; with `beta` 0, `c` is not read. */
  #scaleOnly(args: GemmArgs, c: number): void {
    const { m, n, ldc, beta, outDtype } = args;
    for (let row = 0; row < m; row++) {
      const dst = devicePtr(c + row * ldc * outDtype.byteLength);
      if (beta === 0) this.#kernels.fill({ dtype: outDtype, n, value: 0, dst });
      else if (beta !== 1) this.#kernels.scale({ dtype: outDtype, n, factor: beta, dst, src: dst });
    }
  }

  #bfloat16ProductOrThrow(): Product {
    const product = this.#library.symbols.dnnl_gemm_bf16bf16f32;
    if (product !== undefined && this.hasBfloat16) return product;
    throw new UnsupportedError(`Cannot multiply bfloat16 by oneDNN ${this.version} on this processor: use 'wasm' math`);
  }

  /** Multiplies 1 by 1: oneDNN refuses (`dnnl_unimplemented`) where the processor lacks AVX-512. */
  #probeBfloat16(): boolean {
    const { provider, symbols: { dnnl_gemm_bf16bf16f32: product } } = this.#library;
    if (product === undefined) return false;
    const operands = new Uint16Array(64).fill(0x3f80); // 1.0
    const sum = new Float32Array(32);
    const one = provider.addressOf(operands);
    try {
      product(N, N, 1, 1, 1, 1, one, 1, one, 1, 0, provider.addressOf(sum), 1);
    } catch (error) {
      if (error instanceof NativeError) return false;
      throw error;
    }
    return sum[0] === 1 && operands[0] === 0x3f80;
  }
}

/**
 * Opens oneDNN over a rank's memory.
 *
 * Note [Threads of oneDNN]: GNU OpenMP reads OMP_NUM_THREADS once, when it is loaded, from C's environment, which does not see a
 * script's changes to its own copy. So the number is set through the C library before oneDNN is opened, unless the user has set
 * it. All Workers of a process share the number of the first.
 *
 * @throws {LibraryNotFoundError} listing each path tried, if it is not installed
 */
export async function openOnednn(options: OnednnOptions): Promise<OnednnGemm> {
  const posix = await openPosix({ provider: options.provider });
  if (posix.variable("OMP_NUM_THREADS") === undefined) {
    posix.setVariable("OMP_NUM_THREADS", String(options.threads ?? threadsOfRank(options.ranksOnHost)));
  }
  return new OnednnGemm(await openLibrary(ONEDNN, { ...options, provider: posix.provider }), options);
}

/** Version of an opened oneDNN, e.g. `3.2.0`. */
export function onednnVersion({ symbols, provider }: Library<typeof ONEDNN_BINDINGS>): string {
  const version = new DataView(provider.viewOf(symbols.dnnl_version(), DNNL_VERSION_T.byteLength));
  const { major, minor, patch } = DNNL_VERSION_T;
  return [major, minor, patch].map((at) => version.getInt32(at, true)).join(".");
}

/**
 * Matrix products by oneDNN against plain float64 loops, on a rank's memory.
 *
 * @module
 */
import assert from "node:assert/strict";
import { after, before, describe, it } from "node:test";
import { openProvider } from "../../ffi/mod.ts";
import { bfloat16, float32 } from "../../src/dtype.ts";
import type { DType } from "../../src/dtype.ts";
import { LibraryNotFoundError, NativeError } from "../../src/errors.ts";
import { Allocator } from "../../src/device/allocator.ts";
import { devicePtr } from "../../src/device/device.ts";
import type { DevicePtr } from "../../src/device/device.ts";
import type { GemmArgs, KernelTable } from "../../src/device/kernels.ts";
import type { OnednnGemm } from "../../src/device/wasm/gemm_onednn.ts";
import { openOnednn } from "../../src/device/wasm/gemm_onednn.ts";

const memory = new WebAssembly.Memory({ initial: 1024, maximum: 1024 });
const allocator = new Allocator("test", 65536, memory.buffer.byteLength);

/** Elements of device memory read and written one by one, whatever the dtype. */
function get(dtype: DType, ptr: number, index: number): number {
  if (dtype === float32) return new Float32Array(memory.buffer, ptr + 4 * index, 1)[0] ?? NaN;
  const bits = new Uint16Array(memory.buffer, ptr + 2 * index, 1)[0] ?? 0;
  return new Float32Array(new Uint32Array([bits << 16]).buffer)[0] ?? NaN;
}

function set(dtype: DType, ptr: number, index: number, value: number): void {
  if (dtype === float32) {
    new Float32Array(memory.buffer, ptr + 4 * index, 1)[0] = value;
    return;
  }
  const bits = new Uint32Array(new Float32Array([value]).buffer)[0] ?? 0;
  // Round to nearest, ties to even; the values here are finite.
  new Uint16Array(memory.buffer, ptr + 2 * index, 1)[0] = (bits + 0x7fff + ((bits >>> 16) & 1)) >>> 16;
}

const kernels: Pick<KernelTable, "cast" | "fill" | "scale"> = {
  cast(dstDtype, srcDtype, dst, src, n): void {
    for (let i = 0; i < n; i++) set(dstDtype, dst, i, get(srcDtype, src, i));
  },
  fill(dtype, dst, n, value): void {
    for (let i = 0; i < n; i++) set(dtype, dst, i, value);
  },
  scale(dtype, dst, src, n, factor): void {
    for (let i = 0; i < n; i++) set(dtype, dst, i, Math.fround(get(dtype, src, i) * factor));
  },
};

let onednn: OnednnGemm | undefined;
let missing: string | undefined;
before(async () => {
  try {
    onednn = await openOnednn({ memory, kernels, scratch: allocator, threads: 1 });
  } catch (error) {
    if (!(error instanceof LibraryNotFoundError)) throw error;
    missing = "oneDNN is not installed";
  }
});
after(() => onednn?.dispose());

/** A cheap deterministic sequence in [-1, 1). */
function sequence(seed: number): () => number {
  let state = seed >>> 0;
  return () => {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    return state / 2 ** 31 - 1;
  };
}

interface Case {
  readonly name: string;
  readonly m: number;
  readonly n: number;
  readonly k: number;
  readonly transA?: boolean;
  readonly transB?: boolean;
  readonly alpha?: number;
  readonly beta?: number;
  readonly batch?: number;
  /** Extra elements at the end of each stored row. */
  readonly pad?: number;
  /** `b` is the same for the whole batch. */
  readonly sharedB?: boolean;
  readonly dtype?: DType;
  readonly outDtype?: DType;
}

const CASES: readonly Case[] = [
  { name: "float32, no transpose", m: 17, n: 33, k: 65 },
  { name: "float32, a transposed", m: 17, n: 33, k: 65, transA: true },
  { name: "float32, b transposed", m: 17, n: 33, k: 65, transB: true },
  { name: "float32, both transposed", m: 17, n: 33, k: 65, transA: true, transB: true },
  { name: "float32, alpha and beta", m: 8, n: 5, k: 31, alpha: -0.5, beta: 2, transB: true },
  { name: "float32, padded rows", m: 7, n: 9, k: 11, pad: 3, beta: 1 },
  { name: "float32, strided batch", m: 6, n: 10, k: 16, batch: 3, transB: true },
  { name: "float32, one b for the batch", m: 6, n: 10, k: 16, batch: 3, sharedB: true },
  { name: "float32, a vector", m: 1, n: 64, k: 128, transB: true },
  { name: "float32, one column", m: 64, n: 1, k: 128 },
  { name: "float32, k = 0 clears", m: 4, n: 6, k: 0, pad: 1 },
  { name: "float32, k = 0 with beta", m: 4, n: 6, k: 0, beta: 0.5 },
  { name: "float32, alpha = 0", m: 4, n: 6, k: 8, alpha: 0, beta: 0.25 },
  { name: "float32, m = 0", m: 0, n: 6, k: 8 },
  { name: "bfloat16 to float32", m: 17, n: 33, k: 65, dtype: bfloat16, transB: true },
  { name: "bfloat16 to float32, a transposed, beta", m: 9, n: 16, k: 40, dtype: bfloat16, transA: true, beta: 1 },
  { name: "bfloat16 to bfloat16", m: 17, n: 33, k: 65, dtype: bfloat16, outDtype: bfloat16 },
  {
    name: "bfloat16 to bfloat16, padded, beta",
    m: 9,
    n: 16,
    k: 40,
    dtype: bfloat16,
    outDtype: bfloat16,
    pad: 2,
    beta: 1,
  },
  { name: "bfloat16 to bfloat16, k = 0", m: 3, n: 4, k: 0, dtype: bfloat16, outDtype: bfloat16 },
];

interface Prepared {
  readonly args: GemmArgs;
  readonly expected: readonly number[];
  free(): void;
}

/** Fills operands, computes the product in float64, and leaves NaN in `c` where it must not be read. */
function prepare(test: Case): Prepared {
  const { m, n, k, transA = false, transB = false, alpha = 1, beta = 0, batch = 1, pad = 0, sharedB = false } = test;
  const { dtype = float32, outDtype = float32 } = test;
  const lda = (transA ? m : k) + pad || 1;
  const ldb = (transB ? k : n) + pad || 1;
  const ldc = n + pad;
  const strideA = (transA ? k : m) * lda;
  const strideB = sharedB ? 0 : (transB ? n : k) * ldb;
  const strideC = m * ldc;
  const blocks: DevicePtr[] = [];
  const make = (type: DType, count: number, seed: number): DevicePtr => {
    const block = allocator.allocate(count * type.byteLength, "test");
    blocks.push(block);
    const next = sequence(seed);
    for (let i = 0; i < count; i++) set(type, block, i, next());
    return block;
  };
  const a = make(dtype, batch * strideA, 1);
  const b = make(dtype, Math.max(batch * strideB, (transB ? n : k) * ldb), 2);
  const c = make(outDtype, batch * strideC, 3);
  const expected: number[] = [];
  for (let i = 0; i < batch; i++) {
    for (let row = 0; row < m; row++) {
      for (let col = 0; col < n; col++) {
        let sum = 0;
        for (let p = 0; p < k; p++) {
          const left = get(dtype, a, i * strideA + (transA ? p * lda + row : row * lda + p));
          const right = get(dtype, b, i * strideB + (transB ? col * ldb + p : p * ldb + col));
          sum += left * right;
        }
        const at = i * strideC + row * ldc + col;
        expected.push(alpha * sum + (beta === 0 ? 0 : beta * get(outDtype, c, at)));
        if (beta === 0) set(float32 === outDtype ? float32 : bfloat16, c, at, outDtype === float32 ? NaN : 7);
      }
    }
  }
  const args: GemmArgs = {
    dtype,
    outDtype,
    transA,
    transB,
    m,
    n,
    k,
    alpha,
    beta,
    batch,
    a,
    lda,
    strideA,
    b,
    ldb,
    strideB,
    c,
    ldc,
    strideC,
  };
  return { args, expected, free: () => blocks.forEach((block) => allocator.free(block)) };
}

/** The bits of a product whose operands lie `offset` elements behind a 256-byte boundary. */
function productAt(gemm: OnednnGemm, dtype: DType, m: number, n: number, k: number, offset: number): Uint32Array {
  const block = (type: DType, count: number): DevicePtr =>
    allocator.allocate((count + offset) * type.byteLength, "test");
  const blocks = [block(dtype, m * k), block(dtype, n * k), block(float32, m * n)] as const;
  const [a, b] = [devicePtr(blocks[0] + offset * dtype.byteLength), devicePtr(blocks[1] + offset * dtype.byteLength)];
  const c = devicePtr(blocks[2] + offset * 4);
  for (const [ptr, count] of [[a, m * k], [b, n * k]] as const) {
    const next = sequence(count);
    const values = Float32Array.from({ length: count }, next);
    if (dtype === float32) new Float32Array(memory.buffer, ptr, count).set(values);
    else new Uint16Array(memory.buffer, ptr, count).set(new Uint32Array(values.buffer).map((bits) => bits >>> 16));
  }
  const sizes = { m, n, k, lda: k, ldb: k, ldc: n, strideA: 0, strideB: 0, strideC: 0, batch: 1 };
  gemm.gemm({ dtype, outDtype: float32, transA: false, transB: true, alpha: 1, beta: 0, a, b, c, ...sizes });
  const bits = new Uint32Array(memory.buffer, c, m * n).slice();
  for (const ptr of blocks) allocator.free(ptr);
  return bits;
}

function results({ m, n, batch, outDtype, c, ldc, strideC }: GemmArgs): number[] {
  const values: number[] = [];
  for (let i = 0; i < batch; i++) {
    for (let row = 0; row < m; row++) {
      for (let col = 0; col < n; col++) values.push(get(outDtype, c, i * strideC + row * ldc + col));
    }
  }
  return values;
}

const absent = onednn === undefined ? missing ?? "oneDNN did not open" : false;
const noBfloat16 = absent || (onednn?.hasBfloat16 === false && "this processor has no bfloat16 products");

describe("OnednnGemm", () => {
  for (const test of CASES) {
    it(
      `gemm() agrees with float64 loops: ${test.name}`,
      { skip: test.dtype === bfloat16 ? noBfloat16 : absent },
      () => {
        if (onednn === undefined) return;
        const before = allocator.stats.inUse;
        const prepared = prepare(test);
        onednn.gemm(prepared.args);
        const got = results(prepared.args);
        // Sums of k float32 products of numbers below 1; a bfloat16 result has 8 bits.
        const relative = test.outDtype === bfloat16 ? 2 ** -8 : 0;
        const absolute = 1e-6 * (test.k + 4);
        assert.equal(got.length, prepared.expected.length);
        got.forEach((value, i) => {
          const want = prepared.expected[i] ?? NaN;
          const off = Math.abs(value - want);
          assert.ok(off <= absolute + relative * Math.abs(want), `element ${i}: got ${value}, expected ${want}`);
        });
        prepared.free();
        assert.equal(allocator.stats.inUse, before);
      },
    );
  }

  it("gemm() leaves the padding of c alone", { skip: absent }, () => {
    if (onednn === undefined) return;
    const prepared = prepare({ name: "", m: 3, n: 4, k: 5, pad: 2 });
    const { c, ldc } = prepared.args;
    for (let row = 0; row < 3; row++) set(float32, c, row * ldc + 4, 1234);
    onednn.gemm(prepared.args);
    for (let row = 0; row < 3; row++) assert.equal(get(float32, c, row * ldc + 4), 1234);
    prepared.free();
  });

  for (const dtype of [float32, bfloat16]) {
    it(`gemm() gives the same bits again and at other addresses, ${dtype.name}`, {
      skip: dtype === bfloat16 ? noBfloat16 : absent,
    }, () => {
      if (onednn === undefined) return;
      for (const [m, n, k] of [[96, 200, 310], [256, 64, 1000], [5, 7, 513]] as const) {
        const first = productAt(onednn, dtype, m, n, k, 0);
        for (const offset of [0, 1, 3, 16]) assert.deepEqual(productAt(onednn, dtype, m, n, k, offset), first);
      }
    });
  }

  it("gemm() reports a refusal of oneDNN by its name", { skip: absent }, () => {
    if (onednn === undefined) return;
    const { args, free } = prepare({ name: "", m: 3, n: 4, k: 5 });
    const gemm = onednn;
    assert.throws(() => gemm.gemm({ ...args, lda: 1 }), (error) => {
      assert.ok(error instanceof NativeError);
      assert.equal(error.code, "dnnl_invalid_arguments");
      assert.match(error.message, /dnnl_sgemm\(78, 78, 3, 4, 5, 1, 0x/);
      return true;
    });
    free();
  });

  it("version is read", { skip: absent }, () => {
    if (onednn === undefined) return;
    assert.match(onednn.version, /^[23]\.\d+\.\d+$/);
  });
});

describe("openOnednn()", () => {
  it("throws LibraryNotFoundError naming the one path it was told to load", async () => {
    const options = { memory, kernels, scratch: allocator, threads: 1, path: "/nonexistent/libdnnl.so.3" };
    await assert.rejects(openOnednn({ ...options, provider: await openProvider() }), (error) => {
      assert.ok(error instanceof LibraryNotFoundError);
      assert.deepEqual(error.tried, [{ path: "/nonexistent/libdnnl.so.3", reason: "no such file" }]);
      assert.match(error.message, /onednn-cpu-gomp/);
      return true;
    });
  });
});

/**
 * Functions of `dev.cuh` that have one form for cards and one for tests on the host, computed on both from the same numbers: a kernel for
 * each, compiled by the NVRTC that is found and by its double, which is g++. What differs by more than is allowed is told.
 *
 * @module
 */
import { compileKernel } from "../../src/device/cuda/compiler.ts";
import { attributeOf } from "../../src/device/cuda/libraries.ts";
import { readKernelTexts } from "../../src/device/cuda/texts.ts";
import { CUDA_LAUNCH_CONFIG, CUDART, CUDART_CONSTANTS } from "../../src/ffi/bindings/cudart.ts";
import { NVRTC } from "../../src/ffi/bindings/nvrtc.ts";
import { openLibrary } from "../../src/ffi/mod.ts";
import type { Environment } from "../../src/runtime/env.ts";

/** Words that an operation reads, and that it writes. */
const N = 4096;

/** One operation: what a kernel does with `a.in`, `a.out` and `a.n`, and by how much its floats may differ, as a share. */
interface Operation {
  readonly body: string;
  readonly within?: number;
}

const each = (result: string): Operation => ({ body: `EACH(i, a.n) { const u32 x = a.in[i]; a.out[i] = ${result}; }` });
const block = (result: string): Operation => ({
  body: `EACH_ROW(r, a.n / 256) { const i64 i = r * 256 + threadIdx.x; const float x = (float)(a.in[i] & 0xffff); ` +
    `a.out[i] = bitsOf(${result}); }`,
});
const shared = (barrier: string, place: string): Operation => ({
  body:
    `EACH_ROW(r, a.n / 256) { SHARED(u32, s, 256); __syncthreads(); s[threadIdx.x] = a.in[r * 256 + threadIdx.x]; ` +
    `${barrier}; a.out[r * 256 + threadIdx.x] = s[${place}]; }`,
});
/** A product of fragments of small whole numbers, which is exact in any order. */
const product = (type: string): Operation => ({
  body: `EACH_ROW(r, a.n / 256) { const i64 i = r * 256 + threadIdx.x; const u32 x = a.in[i]; u32 f[6]; ` +
    `for (int j = 0; j < 6; j++) f[j] = pairOf((float)(x >> 4 * j & 7) - 3.0f, (float)(x >> (4 * j + 3) & 7) - 3.0f, ${type}()); ` +
    `float c[4] = {1.0f, 2.0f, 3.0f, 4.0f}; const u32 own[4] = {f[0], f[1], f[2], f[3]}; ` +
    `multiplyFragments(c, own, f[4], f[5], ${type}()); ` +
    `a.out[i] = bitsOf(c[0] + 37.0f * c[1] + 101.0f * c[2] + 211.0f * c[3]); }`,
});
/** Four words of each thread in shared memory, and what threads make of them. */
const rows = (fill: string, take: string): Operation => ({
  body:
    `EACH_ROW(r, a.n / 256) { SHARED(u32, s, 1024); u32 t[4] = {0, 0, 0, 0}; __syncthreads(); ${fill} __syncthreads(); ` +
    `${take} a.out[r * 256 + threadIdx.x] = t[0] + 3 * t[1] + 5 * t[2] + 7 * t[3]; }`,
});
const FILL = "for (int j = 0; j < 4; j++) s[4 * threadIdx.x + j] = a.in[(r * 1024 + 4 * threadIdx.x + j) % a.n];";
const COPY = "copyLater16(s + 4 * threadIdx.x, a.in + (r * 1024 + 4 * threadIdx.x) % a.n, threadIdx.x % 3 != 0); " +
  "closeCopies(); awaitCopies<0>();";
const COPY4 =
  "for (int j = 0; j < 4; j++) copyLater4(s + 4 * threadIdx.x + j, a.in + (r * 256 + threadIdx.x + j) % a.n, j != 2); " +
  "closeCopies(); awaitCopies<0>();";
const TAKE = "for (int j = 0; j < 4; j++) t[j] = s[4 * (threadIdx.x ^ 77) + j];";
const SHAPE = "Shape s; s.ndim = 3; s.size[0] = 16; s.size[1] = 8; s.size[2] = 32;";

/** The operations, by name. */
export const OPERATIONS: Readonly<Record<string, Operation>> = {
  bitsOfFloat: each("bitsOf(floatOf(x))"),
  bitsOfDouble: {
    body: "EACH(i, a.n) { const u64 b = bitsOf(doubleOf((u64)a.in[a.n - 1 - i] << 32 | a.in[i])); " +
      "a.out[i] = (u32)(b >> 32) ^ (u32)b; }",
  },
  widenedFloat16: each("told(widened(float16{(u16)x}))"),
  narrowedFloat16: each("told(rounded<float16>(floatOf(x)))"),
  widenedBfloat16: each("told(widened(bfloat16{(u16)x}))"),
  narrowedBfloat16: each("told(rounded<bfloat16>(floatOf(x)))"),
  getAndPut: {
    body: "EACH(i, a.n) { bfloat16* p = (bfloat16*)a.out; put(p, 2 * i, (float)(a.in[i] & 0xfff)); " +
      "put(p, 2 * i + 1, get((const bfloat16*)p, 2 * i) + 1.0f); }",
  },
  isFinite: each("(u32)isFinite((double)floatOf(x))"),
  sumOverBlock: block("overBlock(x, Sum())"),
  maxOverBlock: block("overBlock(x, Max())"),
  minOverBlock: block("overBlock(x, Min())"),
  shuffle: block("__shfl_sync(~0u, x, (int)(threadIdx.x * 7 + 3) & 31)"),
  shuffleXor: block("__shfl_xor_sync(~0u, x, 5)"),
  anyOfWarp: block("(float)__any_sync(~0u, x > 64000.0f)"),
  pairOfBfloat16: each("told(widened(bfloat16{(u16)pairOf(floatOf(x), 2.5f, bfloat16())}))"),
  pairOfFloat16: each("told(widened(float16{(u16)(pairOf(2.5f, floatOf(x), float16()) >> 16)}))"),
  powerOf2: {
    body: "EACH(i, a.n) a.out[i] = bitsOf(powerOf2((float)(int)(a.in[i] & 0x3fff) / 256.0f - 60.0f));",
    within: 1e-6,
  },
  multiplyBfloat16: product("bfloat16"),
  multiplyFloat16: product("float16"),
  loadMatrices: rows(FILL, "loadMatrices(t, s + 4 * (threadIdx.x ^ 5));"),
  loadTransposed: rows(FILL, "loadTransposed(t, s + 4 * (threadIdx.x ^ 5));"),
  copyLater16: rows(COPY, TAKE),
  copyLater4: rows(COPY4, TAKE),
  sharedMemory: shared("__syncthreads()", "255 - threadIdx.x"),
  warpOrder: shared("__syncwarp()", "threadIdx.x ^ 9"),
  atomicAdd: { body: "EACH(i, a.n) atomicAdd(&a.out[a.in[i] & 255], 1u);" },
  note: { body: "EACH(i, a.n) if (i == 77) { note((Status*)a.out, FAULT_LABEL, i, 2.5, 9); }" },
  elementsOf: { body: `EACH(i, a.n) { ${SHAPE} a.out[i] = (u32)elementsOf(s); }` },
  placeOf: {
    body:
      `EACH(i, a.n) { ${SHAPE} Strides t; t.of[0] = 1; t.of[1] = 0; t.of[2] = 100; a.out[i] = (u32)placeOf(s, t, i); }`,
  },
  sigmoid: {
    body: "EACH(i, a.n) a.out[i] = bitsOf(sigmoid((float)(int)(a.in[i] & 0x3fff) / 512.0f - 16.0f));",
    within: 1e-6,
  },
  philox: each("philox(x, (u32)i, 3, 4, 0x123456789abcdefull).word[i % 4]"),
  wordOf: each("wordOf(12345.0, (double)x, 3, 1, i / 64, i % 64)"),
  dropoutFactor: {
    body:
      "EACH(i, a.n) { const Dropped d = {12345.0, (double)a.in[i], 0.25}; a.out[i] = bitsOf(dropoutFactor(d, 1, 0, i / 64, i % 64)); }",
  },
};

const TEXT = `
struct Args { const u32* in; u32* out; i64 n; };
struct Dropped { double key, sample, p; };
/** The bits of a float; those of all that are not a number are one. */
DEVICE u32 told(float x) { return x != x ? 0x7fc00000u : bitsOf(x); }
`;

function kernelText(dev: string): string {
  const points = Object.entries(OPERATIONS).map(([name, { body }]) =>
    `DEVICE void ${name}Operation(const Args& a) { ${body} }\n` +
    `ENTRY(256) run_${name}(const Args args) { ${name}Operation(args); }\n`
  );
  return [dev, TEXT, ...points].join("");
}

/** Bits of all kinds: random ones, and those of numbers on the edges of formats. */
function inputs(): Uint32Array<ArrayBuffer> {
  const words = new Uint32Array(N);
  let state = 1;
  for (let i = 0; i < N; i++) {
    state = (Math.imul(state, 1664525) + 1013904223) >>> 0;
    words[i] = state ^ state >>> 13;
  }
  const edges = [0, -0, 1, -1, NaN, Infinity, -Infinity, 65504, 65520, 65536, 6e-8, 3e-8, 6.1e-5, 1e-40, 3.4e38, 1 / 3];
  words.set(new Uint32Array(Float32Array.from(edges).buffer), 0);
  return words;
}

/** Computes all operations on card 0 of the libraries that an environment names. */
export async function computeOperations(environment: Environment): Promise<ReadonlyMap<string, Uint32Array>> {
  const cudart = await openLibrary(CUDART, { environment });
  const { symbols, provider } = cudart;
  symbols.cudaSetDevice(0);
  const nvrtc = await openLibrary(NVRTC, { environment });
  const capability = attributeOf(cudart, 0, "cudaDevAttrComputeCapabilityMajor") * 10 +
    attributeOf(cudart, 0, "cudaDevAttrComputeCapabilityMinor");
  const dev = (await readKernelTexts()).get("dev");
  if (dev === undefined) throw new Error("no text of 'dev'");
  const { code } = compileKernel(nvrtc, "operations", kernelText(dev), `sm_${capability}`);
  const [library, stream] = [provider.out("cudaLibrary_t"), provider.out("cudaStream_t")];
  cudart.need("cudaLibraryLoadData")(library, code, null, null, 0, null, null, 0);
  symbols.cudaStreamCreateWithPriority(stream, CUDART_CONSTANTS.cudaStreamNonBlocking, 0);
  const [from, to, host] = [provider.out("address"), provider.out("address"), provider.out("address")];
  symbols.cudaMallocAsync(from, N * 4, stream.value);
  symbols.cudaHostAlloc(host, N * 4, 0);
  const words = new Uint32Array(provider.viewOf(host.value, N * 4));
  words.set(inputs());
  const { cudaMemcpyHostToDevice, cudaMemcpyDeviceToHost } = CUDART_CONSTANTS;
  symbols.cudaMemcpyAsync(from.value, host.value, N * 4, cudaMemcpyHostToDevice, stream.value);
  symbols.cudaStreamSynchronize(stream.value);
  const config = provider.struct(CUDA_LAUNCH_CONFIG);
  config.set("gridDim.x", N / 256);
  config.set("blockDim.x", 256);
  config.set("stream", stream.value);
  const results = new Map<string, Uint32Array>();
  for (const name of Object.keys(OPERATIONS)) {
    const kernel = provider.out("cudaKernel_t");
    cudart.need("cudaLibraryGetKernel")(kernel, library.value, `run_${name}`);
    symbols.cudaMallocAsync(to, N * 4, stream.value);
    symbols.cudaMemsetAsync(to.value, 0, N * 4, stream.value);
    const args = BigUint64Array.from(
      [from.value, to.value].map((place) => BigInt(provider.numberOf(place))).concat(BigInt(N)),
    );
    const list = BigUint64Array.of(BigInt(provider.numberOf(provider.addressOf(args))));
    symbols.cudaLaunchKernelExC(config, kernel.value, list);
    symbols.cudaMemcpyAsync(host.value, to.value, N * 4, cudaMemcpyDeviceToHost, stream.value);
    symbols.cudaFreeAsync(to.value, stream.value);
    symbols.cudaStreamSynchronize(stream.value);
    results.set(name, words.slice());
  }
  symbols.cudaFreeAsync(from.value, stream.value);
  symbols.cudaStreamSynchronize(stream.value);
  symbols.cudaFreeHost(host.value);
  return results;
}

/** The difference of an operation between a card and the host; undefined where there is none. */
export function differenceOf(name: string, card: Uint32Array, host: Uint32Array): string | undefined {
  const within = OPERATIONS[name]?.within;
  for (const [i, word] of card.entries()) {
    const want = host[i];
    if (want === undefined) return `${card.length} words on the card, ${host.length} on the host`;
    if (word === want) continue;
    const [found, expected] = new Float32Array(Uint32Array.of(word, want).buffer);
    if (found === undefined || expected === undefined) continue;
    if (within !== undefined && Math.abs(found - expected) <= within * Math.abs(expected)) continue;
    return `element ${i}: 0x${word.toString(16)} on the card, 0x${want.toString(16)} on the host`;
  }
  return undefined;
}

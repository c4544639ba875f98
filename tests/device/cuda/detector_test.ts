/**
 * The double of the CUDA runtime finds mistakes: each one here is one that a device or a kernel might have, beside the same without it.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { CUDA_LAUNCH_CONFIG, CUDART } from "../../../ffi/bindings/cudart.ts";
import { NVRTC } from "../../../ffi/bindings/nvrtc.ts";
import { openLibrary } from "../../../ffi/mod.ts";
import type { Handle, NativeAddress } from "../../../ffi/types.ts";
import { compileKernel } from "../../../src/device/cuda/compiler.ts";
import { readKernelTexts } from "../../../src/device/cuda/texts.ts";
import { buildCudaTwin, type CudaTwin, lackingForTwin, twinReports } from "../../native/cuda/build.ts";

type StreamHandle = Handle<"cudaStream_t">;

/** A few kernels with and without mistakes; each gets the address of some floats and how many there are. */
const TEXT = `
struct Args { float* x; i64 n; };
DEVICE void write(const Args& a) { EACH(i, a.n) a.x[i] = (float)i; }
DEVICE void read(const Args& a) { EACH(i, a.n) if (a.x[i] < 0.0f) a.x[i] = 0.0f; }
DEVICE void beyond(const Args& a) { EACH(i, a.n + 100) a.x[i] = 0.0f; }
DEVICE void reverse(const Args& a) {
  SHARED(float, s, 256);
  s[threadIdx.x] = a.x[threadIdx.x];
  __syncthreads();
  a.x[threadIdx.x] = s[255 - threadIdx.x];
}
DEVICE void reverseAtOnce(const Args& a) {
  SHARED(float, s, 256);
  s[threadIdx.x] = a.x[threadIdx.x];
  a.x[threadIdx.x] = s[255 - threadIdx.x];
}
DEVICE void rotate(const Args& a) {
  const float next = a.x[(threadIdx.x + 1) % 256];
  __syncthreads();
  a.x[threadIdx.x] = next;
}
DEVICE void rotateAtOnce(const Args& a) { a.x[threadIdx.x] = a.x[(threadIdx.x + 1) % 256]; }
DEVICE void all(const Args& a) { a.x[threadIdx.x] = 1.0f; }
DEVICE void warp(const Args& a) {
  SHARED(float, s, 256);
  s[threadIdx.x] = a.x[threadIdx.x];
  __syncwarp();
  a.x[threadIdx.x] = s[threadIdx.x ^ 1];
}
DEVICE void warpAtOnce(const Args& a) {
  SHARED(float, s, 256);
  s[threadIdx.x] = a.x[threadIdx.x];
  a.x[threadIdx.x] = s[threadIdx.x ^ 1];
}
DEVICE void load(float* s, const Args& a) {
  if (threadIdx.x < 64) copyLater16(s + 4 * threadIdx.x, a.x + 4 * threadIdx.x, true);
  closeCopies();
}
DEVICE void copy(const Args& a) {
  SHARED(float, s, 256);
  load(s, a);
  awaitCopies<0>();
  __syncthreads();
  a.x[threadIdx.x] = s[255 - threadIdx.x];
}
DEVICE void copyAtOnce(const Args& a) {
  SHARED(float, s, 256);
  load(s, a);
  __syncthreads();
  const float own = s[255 - threadIdx.x];
  awaitCopies<0>();
  __syncthreads();
  a.x[threadIdx.x] = own;
}
DEVICE void copyTooFew(const Args& a) {
  SHARED(float, s, 256);
  load(s, a);
  awaitCopies<1>();
  __syncthreads();
  const float own = s[255 - threadIdx.x];
  awaitCopies<0>();
  __syncthreads();
  a.x[threadIdx.x] = own;
}
DEVICE void copyApart(const Args& a) {
  SHARED(float, s, 256);
  load(s, a);
  awaitCopies<0>();
  const float own = s[255 - threadIdx.x];
  __syncthreads();
  a.x[threadIdx.x] = own;
}
DEVICE void copyOver(const Args& a) {
  SHARED(float, s, 256);
  load(s, a);
  awaitCopies<0>();
  __syncthreads();
  const float own = s[255 - threadIdx.x];
  load(s, a);
  awaitCopies<0>();
  __syncthreads();
  a.x[threadIdx.x] = own;
}
DEVICE void copyForNobody(const Args& a) {
  SHARED(float, s, 256);
  load(s, a);
}
DEVICE void matrices(const Args& a) {
  SHARED(float, s, 256);
  u32 own[4];
  s[threadIdx.x] = a.x[threadIdx.x];
  __syncthreads();
  loadMatrices(own, s + 4 * (threadIdx.x % 64));
  a.x[threadIdx.x] = (float)(own[0] & 1);
}
DEVICE void matricesAtOnce(const Args& a) {
  SHARED(float, s, 256);
  u32 own[4];
  s[threadIdx.x] = a.x[threadIdx.x];
  loadMatrices(own, s + 4 * (threadIdx.x % 64));
  a.x[threadIdx.x] = (float)(own[0] & 1);
}
DEVICE void matricesAside(const Args& a) {
  SHARED(float, s, 256);
  u32 own[4];
  s[threadIdx.x] = a.x[threadIdx.x];
  __syncthreads();
  loadMatrices(own, s + 4 * (threadIdx.x % 63) + 1);
  a.x[threadIdx.x] = (float)(own[0] & 1);
}
DEVICE void shuffled(const Args& a) {
  SHARED(float, s, 256);
  s[threadIdx.x] = __shfl_xor_sync(~0u, a.x[threadIdx.x], 1);
  const float other = __shfl_xor_sync(~0u, 1.0f, 1);
  a.x[threadIdx.x] = s[threadIdx.x ^ 1] + other;
}
DEVICE void uneven(const Args& a) {
  SHARED(float, s, 256);
  u32 own[4] = {0, 0, 0, 0};
  s[threadIdx.x] = a.x[threadIdx.x];
  __syncthreads();
  if (threadIdx.x % 32 == 5) __any_sync(~0u, true);
  else
    loadMatrices(own, s + 4 * (threadIdx.x % 64));
  a.x[threadIdx.x] = (float)(own[0] & 1);
}
DEVICE void beyondShared(const Args& a) {
  DYNAMIC_SHARED(s);
  s[threadIdx.x] = 1;
}
DEVICE void apart(const Args& a) {
  if (threadIdx.x < 32) __syncthreads();
  else
    __syncthreads();
}
`;
const NAMES = [...TEXT.matchAll(/DEVICE void (\w+)\(const Args& a\)/g)].map(([, name = ""]) => name);

/** What a mistake is made with. */
interface Stage {
  readonly first: StreamHandle;
  readonly second: StreamHandle;
  /** 256 floats, allocated on the first stream. */
  readonly memory: NativeAddress;
  launch(name: string, stream: StreamHandle, blocks?: number): void;
  /** Makes the second stream wait for all of the first so far. */
  order(): void;
  free(stream: StreamHandle): void;
  waitForNothing(): void;
}

async function openStage(twin: CudaTwin): Promise<(play: (stage: Stage) => void) => string> {
  const { environment } = twin;
  const { symbols, provider } = await openLibrary(CUDART, { environment });
  const nvrtc = await openLibrary(NVRTC, { environment });
  const dev = (await readKernelTexts()).get("dev");
  const points = NAMES.map((name) => `ENTRY(256) run_${name}(const Args args) { ${name}(args); }\n`).join("");
  const { code } = compileKernel(nvrtc, "mistakes", `${dev}${TEXT}${points}`, "sm_90");
  const library = provider.out("cudaLibrary_t");
  symbols.cudaLibraryLoadData?.(library, code, null, null, 0, null, null, 0);
  const stream = (): StreamHandle => {
    const place = provider.out("cudaStream_t");
    symbols.cudaStreamCreateWithPriority(place, 1, 0);
    return place.value;
  };
  const event = (): Handle<"cudaEvent_t"> => {
    const place = provider.out("cudaEvent_t");
    symbols.cudaEventCreateWithFlags(place, 2);
    return place.value;
  };
  const [first, second] = [stream(), stream()];
  return (play) => {
    const memory = provider.out("address");
    symbols.cudaMallocAsync(memory, 1024, first);
    let isFreed = false;
    const free = (stream: StreamHandle): void => {
      symbols.cudaFreeAsync(memory.value, stream);
      isFreed = true;
    };
    const launch = (name: string, stream: StreamHandle, blocks = 1): void => {
      const kernel = provider.out("cudaKernel_t");
      symbols.cudaLibraryGetKernel?.(kernel, library.value, `run_${name}`);
      const config = provider.struct(CUDA_LAUNCH_CONFIG);
      config.set("gridDim.x", blocks);
      config.set("blockDim.x", 256);
      config.set("stream", stream);
      const args = BigUint64Array.of(BigInt(provider.numberOf(memory.value)), 256n);
      symbols.cudaLaunchKernelExC(
        config,
        kernel.value,
        BigUint64Array.of(BigInt(provider.numberOf(provider.addressOf(args)))),
      );
    };
    const order = (): void => {
      const point = event();
      symbols.cudaEventRecord(point, first);
      symbols.cudaStreamWaitEvent(second, point, 0);
    };
    const waitForNothing = (): void => symbols.cudaStreamWaitEvent(second, event(), 0);
    play({ first, second, memory: memory.value, launch, order, free, waitForNothing });
    const found = twinReports(twin);
    symbols.cudaDeviceSynchronize();
    if (!isFreed) symbols.cudaFreeAsync(memory.value, first);
    symbols.cudaDeviceSynchronize();
    assert.equal(twinReports(twin), "", "afterwards");
    return found;
  };
}

/** A mistake, what is said of it, and the same without it. */
type Mistake = readonly [what: string, wrong: (stage: Stage) => void, said: RegExp, right: (stage: Stage) => void];

const MISTAKES: readonly Mistake[] = [
  [
    "two streams without an event between them",
    ({ launch, first, second, order }) => {
      order();
      launch("write", first);
      launch("read", second);
    },
    /'run_read' on stream \d (reads|writes) byte 0 of a block of 1024, which 'run_write' on stream \d writes, with no event/,
    ({ launch, first, second, order }) => {
      launch("write", first);
      order();
      launch("read", second);
    },
  ],
  [
    "memory used on another stream before it was given out",
    ({ launch, second }) => launch("write", second),
    /'run_write' on stream \d uses a block of 1024 bytes before it was given out there/,
    ({ launch, second, order }) => {
      order();
      launch("write", second);
    },
  ],
  [
    "memory used after it was freed",
    ({ launch, first, free }) => {
      free(first);
      launch("write", first);
    },
    /uses a block after it was freed: 1024 bytes|outside of any block/,
    ({ launch, first, free }) => {
      launch("write", first);
      free(first);
    },
  ],
  [
    "memory freed while another stream uses it",
    ({ launch, first, second, order, free }) => {
      order();
      launch("write", second);
      free(first);
    },
    /may use a block while it is freed: 1024 bytes|before it was given out there|outside of any block/,
    ({ launch, first, second, order, free }) => {
      launch("write", first);
      order();
      free(second);
    },
  ],
  [
    "an event waited for before it is recorded",
    ({ waitForNothing }) => waitForNothing(),
    /^stream \d waits for an event that was never recorded\n$/,
    ({ order }) => order(),
  ],
  [
    "memory outside of a block",
    ({ launch, first }) => launch("beyond", first, 2),
    /'run_beyond' on stream \d writes 4 bytes outside of any block/,
    ({ launch, first }) => launch("write", first, 2),
  ],
  [
    "a missing barrier between writes and reads of shared memory",
    ({ launch, first }) => (launch("write", first), launch("reverseAtOnce", first)),
    /'run_reverseAtOnce': threads \d+ and \d+ touch the same shared memory, with no barrier/,
    ({ launch, first }) => (launch("write", first), launch("reverse", first)),
  ],
  [
    "a missing barrier between reads and writes of device memory",
    ({ launch, first }) => (launch("write", first), launch("rotateAtOnce", first)),
    /'run_rotateAtOnce' on stream \d: a thread (reads|writes) byte \d+ of a block of 1024, which another one (reads|writes), with no barrier/,
    ({ launch, first }) => (launch("write", first), launch("rotate", first)),
  ],
  [
    "a missing barrier of a warp",
    ({ launch, first }) => (launch("write", first), launch("warpAtOnce", first)),
    /'run_warpAtOnce': threads \d+ and \d+ touch the same shared memory/,
    ({ launch, first }) => (launch("write", first), launch("warp", first)),
  ],
  [
    "the same element written by two blocks",
    ({ launch, first }) => launch("all", first, 2),
    /'run_all' on stream \d: a thread writes byte 0 of a block of 1024, which another one writes/,
    ({ launch, first }) => launch("all", first),
  ],
  [
    "a copy to shared memory that is not waited for",
    ({ launch, first }) => (launch("write", first), launch("copyAtOnce", first)),
    /'run_copyAtOnce': thread \d+ touches shared memory to which a copy is under way/,
    ({ launch, first }) => (launch("write", first), launch("copy", first)),
  ],
  [
    "a wait for all copies but those that are read",
    ({ launch, first }) => (launch("write", first), launch("copyTooFew", first)),
    /'run_copyTooFew': thread \d+ touches shared memory to which a copy is under way/,
    ({ launch, first }) => (launch("write", first), launch("copy", first)),
  ],
  [
    "a missing barrier between copies to shared memory and reads",
    ({ launch, first }) => (launch("write", first), launch("copyApart", first)),
    /'run_copyApart': threads \d+ and \d+ touch the same shared memory, with no barrier/,
    ({ launch, first }) => (launch("write", first), launch("copy", first)),
  ],
  [
    "a copy to shared memory that others may still read",
    ({ launch, first }) => (launch("write", first), launch("copyOver", first)),
    /'run_copyOver': threads \d+ and \d+ touch the same shared memory, with no barrier/,
    ({ launch, first }) => (launch("write", first), launch("copy", first)),
  ],
  [
    "a copy to shared memory that nobody waits for",
    ({ launch, first }) => (launch("write", first), launch("copyForNobody", first)),
    /'run_copyForNobody': a thread ends with copies to shared memory under way/,
    ({ launch, first }) => (launch("write", first), launch("copy", first)),
  ],
  [
    "a missing barrier between writes and matrices of shared memory",
    ({ launch, first }) => (launch("write", first), launch("matricesAtOnce", first)),
    /'run_matricesAtOnce': threads \d+ and \d+ touch the same shared memory, with no barrier/,
    ({ launch, first }) => (launch("write", first), launch("matrices", first)),
  ],
  [
    "a row of a matrix that does not begin on a multiple of 16 bytes",
    ({ launch, first }) => (launch("write", first), launch("matricesAside", first)),
    /'run_matricesAside': 16 bytes of shared memory are not on a multiple of that/,
    ({ launch, first }) => (launch("write", first), launch("matrices", first)),
  ],
  [
    "a shuffle taken for a barrier of a warp",
    ({ launch, first }) => (launch("write", first), launch("shuffled", first)),
    /'run_shuffled': threads \d+ and \d+ touch the same shared memory/,
    ({ launch, first }) => (launch("write", first), launch("warp", first)),
  ],
  [
    "lanes of a warp at different operations",
    ({ launch, first }) => (launch("write", first), launch("uneven", first)),
    /'run_uneven': lanes of a warp are at different operations/,
    ({ launch, first }) => (launch("write", first), launch("matrices", first)),
  ],
  [
    "shared memory that the launch did not ask for",
    ({ launch, first }) => launch("beyondShared", first),
    /'run_beyondShared': thread \d+ touches shared memory that the block does not have/,
    ({ launch, first }) => launch("write", first),
  ],
  [
    "threads of a block at different barriers",
    ({ launch, first }) => launch("apart", first),
    /'run_apart': threads of a block are at barriers of lines \d+ and \d+/,
    ({ launch, first }) => launch("reverse", first),
  ],
];

const lacking = lackingForTwin();
const run = lacking === undefined ? await openStage(await buildCudaTwin()) : undefined;

for (const [what, wrong, said, right] of MISTAKES) {
  test(`the twin of CUDA finds ${what}`, { skip: lacking }, () => {
    assert.ok(run !== undefined);
    assert.match(run(wrong), said);
    assert.equal(run(right), "");
  });
}

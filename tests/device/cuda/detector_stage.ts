/**
 * The stage of seeded mistakes on the double of the CUDA runtime: two streams, some memory, a few kernels with and without
 * mistakes, and captures.
 *
 * @module
 */
import assert from "node:assert/strict";
import { test } from "node:test";
import { compileKernel } from "../../../src/device/cuda/compiler.ts";
import { readKernelTexts } from "../../../src/device/cuda/texts.ts";
import { NativeError } from "../../../src/errors.ts";
import { CUDA_LAUNCH_CONFIG, CUDART } from "../../../src/ffi/bindings/cudart.ts";
import { NVRTC } from "../../../src/ffi/bindings/nvrtc.ts";
import { openLibrary } from "../../../src/ffi/mod.ts";
import type { Handle, NativeAddress } from "../../../src/ffi/types.ts";
import { buildCudaTwin, type CudaTwin, lackingForTwin, twinReports } from "../../native/cuda/build.ts";
import { MISTAKE_NAMES, MISTAKE_TEXT } from "./detector_kernels.ts";

type StreamHandle = Handle<"cudaStream_t">;

/** The objects from which a mistake is made. */
export interface Stage {
  readonly first: StreamHandle;
  readonly second: StreamHandle;
  /** 256 floats, allocated on the first stream. */
  readonly memory: NativeAddress;
  launch(name: string, stream: StreamHandle, blocks?: number): void;
  /** Makes the second stream wait for all of the first so far. */
  order(): void;
  free(stream: StreamHandle): void;
  waitForNothing(): void;
  /** Makes the first stream wait for all of the second so far. */
  join(): void;
  /**
   * Captures what `body` enqueues, from the first stream on; gives what launches it there, and destroys it all at the end of the
   * play. A call that is refused ends the capture, of which nothing is launched then.
   */
  capture(body: () => void): () => void;
  /** Records an event of the first stream; gives what lets the second one wait for it, and the host. */
  mark(): { readonly wait: () => void; readonly ask: () => void };
  /** Calls of the host that wait, ask or take memory. */
  readonly host: {
    readonly synchronize: () => void;
    readonly malloc: () => void;
    readonly mallocAsync: () => void;
    readonly freeNow: () => void;
  };
}

async function openStage(twin: CudaTwin): Promise<(play: (stage: Stage) => void) => string> {
  const { environment } = twin;
  const { symbols, provider } = await openLibrary(CUDART, { environment });
  const nvrtc = await openLibrary(NVRTC, { environment });
  const dev = (await readKernelTexts()).get("dev");
  const points = MISTAKE_NAMES.map((name) => `ENTRY(256) run_${name}(const Args args) { ${name}(args); }\n`).join("");
  const { code } = compileKernel(nvrtc, "mistakes", `${dev}${MISTAKE_TEXT}${points}`, "sm_90");
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
    const mark = (stream = first): { wait: (other?: StreamHandle) => void; ask: () => void } => {
      const point = event();
      symbols.cudaEventRecord(point, stream);
      return {
        wait: (other = second) => symbols.cudaStreamWaitEvent(other, point, 0),
        ask: () => void symbols.cudaEventQuery(point),
      };
    };
    const order = (): void => mark().wait();
    const join = (): void => mark(second).wait(first);
    const graphs: (() => void)[] = [];
    const refused = (error: unknown): void => assert.ok(error instanceof NativeError, String(error));
    const capture = (body: () => void): () => void => {
      const [graph, exec] = [provider.out("cudaGraph_t"), provider.out("cudaGraphExec_t")];
      symbols.cudaStreamBeginCapture(first, 1);
      try {
        body();
      } catch (error) {
        refused(error);
      }
      try {
        symbols.cudaStreamEndCapture(first, graph);
        symbols.cudaGraphInstantiate(exec, graph.value, 0);
      } catch (error) {
        refused(error);
        return () => {};
      }
      graphs.push(() => symbols.cudaGraphDestroy(graph.value), () => symbols.cudaGraphExecDestroy(exec.value));
      return () => symbols.cudaGraphLaunch(exec.value, first);
    };
    const host = {
      synchronize: () => symbols.cudaStreamSynchronize(first),
      malloc: () => symbols.cudaMalloc(provider.out("address"), 1024),
      mallocAsync: () => symbols.cudaMallocAsync(provider.out("address"), 1024, first),
      freeNow: () => symbols.cudaFreeAsync(memory.value, first),
    };
    const waitForNothing = (): void => symbols.cudaStreamWaitEvent(second, event(), 0);
    try {
      play({ first, second, memory: memory.value, launch, order, free, waitForNothing, join, capture, mark, host });
    } catch (error) {
      refused(error);
    }
    const found = twinReports(twin);
    for (const destroy of graphs) destroy();
    assert.equal(twin.runtime.symbols.twinGraphs(), 0);
    symbols.cudaDeviceSynchronize();
    if (!isFreed) symbols.cudaFreeAsync(memory.value, first);
    symbols.cudaDeviceSynchronize();
    assert.equal(twinReports(twin), "", "afterwards");
    return found;
  };
}

/** A mistake, what is said of it, and the same without it. */
export type Mistake = readonly [
  what: string,
  wrong: (stage: Stage) => void,
  said: RegExp,
  right: (stage: Stage) => void,
];

/** Plays each mistake, of which the double must say so, and then the same without it, of which it must say nothing. */
export async function playMistakes(mistakes: readonly Mistake[]): Promise<void> {
  const lacking = lackingForTwin();
  const run = lacking === undefined ? await openStage(await buildCudaTwin()) : undefined;
  for (const [what, wrong, said, right] of mistakes) {
    test(`the twin of CUDA finds ${what}`, { skip: lacking }, () => {
      assert.ok(run !== undefined);
      assert.match(run(wrong), said);
      assert.equal(run(right), "");
    });
  }
}

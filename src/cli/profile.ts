/**
 * Reports for `fullyshard run --profile` on a training that was traced: the time of each kernel of a step, its rate, and the
 * rates this machine reaches where nothing else has to be done.
 *
 * @module
 */
import type { Device, DevicePtr } from "../device/device.ts";
import { openDevice } from "../device/registry.ts";
import { float32 } from "../dtype.ts";
import { openTraces } from "../report/trace_files.ts";
import { summarize } from "./trace_summary.ts";
import { kernelLines, milliseconds } from "./trace_tables.ts";

/** Sides of the square product: it fits into a core's caches. */
const SIDE = 512;
/** Elements of the arrays that are added, which do not. */
const ELEMENTS = 2 ** 24;
/** The time for which calls are repeated, in milliseconds; the fastest call counts. */
const MEASURED_MS = 300;

/** Lines about rank 0 in the training that was traced into a folder. @throws {FileError} if it holds no complete trace */
export async function profileLines(folder: string): Promise<readonly string[]> {
  const [first] = openTraces(folder).map(summarize);
  if (first?.steps === undefined) return ["No step has ended, so there is nothing to profile"];
  const { steps: { first: from, last }, step, compute, exposed } = first;
  return [
    `Rank 0, mean of steps ${from} to ${last}: ${milliseconds(step)} a step, of which kernels ` +
    `${milliseconds(compute)}, exposed communication ${milliseconds(exposed)}`,
    ...kernelLines(first),
    await peakLine(),
  ];
}

/** The rates that one thread reaches, with the kernels that `auto` chooses. */
async function peakLine(): Promise<string> {
  const device = await openDevice("cpu", { cpuMath: "auto", threads: 1 });
  try {
    const [flops, bytes] = [productRate(device), sumRate(device)].map((rate) => (rate / 1e9).toPrecision(4));
    return `  One thread reaches ${flops} GFLOP/s in a product of ${SIDE} x ${SIDE} x ${SIDE}, and ${bytes} GB/s in a sum ` +
      `of arrays of ${ELEMENTS * 4 / 2 ** 20} MiB, with ${device.mathName} math and what else runs now`;
  } finally {
    device.dispose();
  }
}

function productRate(device: Device): number {
  const [a, b, c] = [onesOf(device, SIDE * SIDE), onesOf(device, SIDE * SIDE), onesOf(device, SIDE * SIDE)];
  const sizes = { m: SIDE, n: SIDE, k: SIDE, lda: SIDE, ldb: SIDE, ldc: SIDE };
  const single = { batch: 1, strideA: 0, strideB: 0, strideC: 0, transA: false, transB: false, alpha: 1, beta: 0 };
  const dtypes = { dtype: float32, outDtype: float32 };
  return 2 * SIDE ** 3 / secondsOf(() => device.kernels.gemm({ ...dtypes, ...sizes, ...single, a, b, c }));
}

function sumRate(device: Device): number {
  const [src, dst] = [onesOf(device, ELEMENTS), onesOf(device, ELEMENTS)];
  const dtypes = { dstDtype: float32, srcDtype: float32 };
  const seconds = secondsOf(() => device.kernels.accumulate({ ...dtypes, n: ELEMENTS, dst, src }));
  return 3 * ELEMENTS * 4 / seconds;
}

/** Memory that the disposed device takes back. */
function onesOf(device: Device, n: number): DevicePtr {
  const dst = device.allocator.allocate(n * float32.byteLength, "profile");
  device.kernels.fill({ dtype: float32, n, value: 1, dst });
  return dst;
}

/** Seconds of the fastest call. */
function secondsOf(call: () => void): number {
  let least = Infinity;
  for (const until = performance.now() + MEASURED_MS; performance.now() < until;) {
    const started = performance.now();
    call();
    least = Math.min(least, performance.now() - started);
  }
  return least / 1000;
}

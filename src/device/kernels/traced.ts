/**
 * Kernels that tell a trace when they ran, and what they calculated and moved.
 *
 * @module
 */
import type { Trace } from "../../runtime/trace.ts";
import type { Streams } from "../stream.ts";
import { type Kernels, wrapKernels } from "./table.ts";
import { countingKernels, type KernelWork } from "./work.ts";

/** The kernels as they are where there is no trace, so that nothing is slower without one. */
export function tracedKernels(kernels: Kernels, trace: Trace | undefined, streams: Streams): Kernels {
  if (trace === undefined) return kernels;
  let work: KernelWork = { flops: 0, bytes: 0 };
  return wrapKernels(kernels, countingKernels((of) => work = of), (name, call, count) => {
    const begin = trace.now();
    call();
    const end = trace.now();
    count();
    // What copies from and to other memory belongs to nothing that is computed.
    const { name: stream } = streams.current;
    trace.kernel(stream === "copy" ? "host" : stream, name, { begin, end }, work);
  });
}

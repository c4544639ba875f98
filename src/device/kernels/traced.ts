/**
 * Kernels that tell a trace when they ran.
 *
 * @module
 */
import type { Trace } from "../../runtime/trace.ts";
import type { Streams } from "../stream.ts";
import { type Kernels, wrapKernels } from "./table.ts";

/** The kernels as they are where there is no trace, so that nothing is slower without one. */
export function tracedKernels(kernels: Kernels, trace: Trace | undefined, streams: Streams): Kernels {
  if (trace === undefined) return kernels;
  return wrapKernels(kernels, (name, call) => {
    const begin = trace.now();
    call();
    // What copies from and to other memory belongs to nothing that is computed.
    const { name: stream } = streams.current;
    trace.kernel(stream === "copy" ? "host" : stream, name, begin);
  });
}

/**
 * Kernels that record in a trace the time of each call, its operations and its bytes.
 *
 * @module
 */
import type { Trace } from "../../runtime/trace.ts";
import type { Streams } from "../stream.ts";
import { type Kernels, wrapKernels } from "./table.ts";
import { workOfCalls } from "./work.ts";

/** Wraps kernels with a trace; without a trace, or with one that records no kernels, returns them as they are. */
export function tracedKernels(kernels: Kernels, trace: Trace | undefined, streams: Streams): Kernels {
  if (trace?.hasKernels !== true) return kernels;
  return wrapKernels(kernels, workOfCalls(), (name, args, call, workOf) => {
    const begin = trace.now();
    call(args);
    const end = trace.now();
    // Copies from and to other memory belong to no computation, so they are recorded as the host's.
    const { name: stream } = streams.current;
    trace.kernel(stream === "copy" ? "host" : stream, name, { begin, end }, workOf(args));
  });
}

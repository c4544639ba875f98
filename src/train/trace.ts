/**
 * Tracing of a run besides kernels and units: its file, steps, and calls of groups.
 *
 * @module
 */
import { byteLengthOf, type Call, type CallKind } from "../comm/call.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { processEnvironment } from "../runtime/env.ts";
import { listDirectory, pathKind, removePath } from "../runtime/files.ts";
import { type Span, type Trace, traceFileOf, traceTailOf, type Track, UNFINISHED } from "../runtime/trace.ts";
import { openTraceFile } from "../runtime/trace_file.ts";

/** The track of each kind of call that moves tensors; all other calls are on the host's track. */
const TRACK_OF: Readonly<Partial<Record<CallKind, Track>>> = {
  gather: "gather",
  "all-gather": "gather",
  broadcast: "gather",
  "reduce-scatter": "reduce",
  "all-reduce": "reduce",
};

/** Opens a rank's file and traces the calls of its groups. Collective. @throws {FileError} if a rank cannot write its file */
export function openTrace(folder: string, trace: Trace, group: ProcessGroup): void {
  const { rank, size: worldSize } = group;
  group.agree("open the trace", () => {
    if (rank === 0) removeOthers(folder, worldSize);
    const run = processEnvironment().text("FULLYSHARD_RUN_ID") ?? "";
    trace.open(openTraceFile(folder, rank, (text) => group.report(text)), { rank, worldSize, run });
  });
  traceCalls(trace, group);
}

/** Removes the files of an earlier run of more ranks. */
function removeOthers(folder: string, worldSize: number): void {
  if (pathKind(folder) !== "directory") return;
  const names = new Set(listDirectory(folder));
  for (const name of names) {
    const rank = Number(/^rank(\d+)\.json/.exec(name)?.[1]);
    if (!(rank >= worldSize)) continue;
    const file = traceFileOf(folder, rank);
    for (const path of [file, `${file}${UNFINISHED}`, traceTailOf(file)]) removePath(path);
  }
}

/** Traces calls and steps; a step lasts from its first call to the first call of the next step. */
export function traceCalls(trace: Trace, group: ProcessGroup): void {
  const spans = new Map<Call, Span>();
  let step: { readonly number: number; readonly span: Span } | undefined;
  group.observe((call, { name }) => {
    const { kind, unit, phase, sequence } = call;
    if (call.step > 0 && step?.number !== call.step) {
      step?.span.end();
      step = { number: call.step, span: trace.begin("host", "step", `step ${call.step}`, { step: call.step }) };
    }
    const track = TRACK_OF[kind];
    const when = phase === undefined ? {} : { phase };
    const facts = { kind, unit, ...when, step: call.step, bytes: byteLengthOf(call), sequence, group: name };
    spans.set(call, trace.begin(track ?? "host", "collective", `${kind} ${unit}`, facts));
    trace.within = track;
    // If a rank is killed in the call, its trace ends with this call.
    trace.flush();
  }, (call) => {
    trace.within = undefined;
    spans.get(call)?.end();
    spans.delete(call);
  });
}

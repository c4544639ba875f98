/**
 * Summarizes a trace of a step: its time, the parts of it that are computed and communicated, and the part of each unit.
 *
 * Note [Exposed]: communication is the time in calls that move tensors, and in waits for what they have begun. It is exposed while no
 * kernel of the compute track runs.
 *
 * @module
 */
import { at, placeAfter } from "../at.ts";
import { type TraceFacts, TRACKS } from "../runtime/trace.ts";
import { type RankTrace, spansOf, type TraceSpan } from "../report/trace_files.ts";

/** Seconds of a unit in a step, on one rank. */
export interface UnitSummary {
  readonly unit: string;
  /** Time of the unit's forward and backward, without units inside it. */
  readonly forward: number;
  readonly backward: number;
  /** The part of both times in which the unit waited for its parameters. */
  readonly wait: number;
  /** Calls about it that move tensors, and their bytes. */
  readonly communication: number;
  readonly bytes: number;
}

/** Calls of a kernel in a step, on one rank. */
export interface KernelSummary {
  readonly kernel: string;
  readonly calls: number;
  readonly seconds: number;
  /** Floating-point operations, and bytes read and written, each element once a call; undefined where the trace does not tell. */
  readonly flops: number | undefined;
  readonly bytes: number | undefined;
}

/** Seconds of a step, on one rank. */
export interface RankSummary {
  readonly rank: number;
  readonly isCutOff: boolean;
  /** The steps that these are means of; none if the trace has none. */
  readonly steps: { readonly first: number; readonly last: number } | undefined;
  readonly step: number;
  readonly compute: number;
  readonly communication: number;
  /** See Note [Exposed]. */
  readonly exposed: number;
  /** Other calls of groups, which are waiting mostly. */
  readonly host: number;
  readonly units: readonly UnitSummary[];
  /** The longest first. */
  readonly kernels: readonly KernelSummary[];
}

type Interval = Pick<TraceSpan, "begin" | "end">;
type MutableKernel = { -readonly [K in keyof KernelSummary]: KernelSummary[K] };
type MutableUnit = { -readonly [K in keyof UnitSummary]: UnitSummary[K] };

const HOST = TRACKS.indexOf("host");
const COMPUTE = TRACKS.indexOf("compute");

/** Sums up one rank. */
export function summarize(trace: RankTrace): RankSummary {
  const steps = countedSteps(trace);
  const [first, last] = [steps[0], steps.at(-1)];
  const from = first?.begin ?? Infinity;
  const until = last?.end ?? -Infinity;
  const seconds = (microseconds: number): number => microseconds / 1e6 / Math.max(1, steps.length);
  const kernels: Interval[] = [];
  const calls: Interval[] = [];
  const byKernel = new Map<string, MutableKernel>();
  let host = 0;
  const units = new Map<string, MutableUnit>();
  const unitOf = (name: string): MutableUnit => {
    const found = units.get(name) ??
      { unit: name, forward: 0, backward: 0, wait: 0, communication: 0, bytes: 0 };
    units.set(name, found);
    return found;
  };
  for (const { event: { cat, tid, args = {}, name = "" }, begin, end, around } of spansOf(trace)) {
    if (begin < from || end > until) continue;
    const time = seconds(end - begin);
    if (cat === "kernel" && tid === COMPUTE) kernels.push({ begin, end });
    const { unit, bytes } = args;
    if (cat === "kernel") addCall(byKernel, name, time, 1 / steps.length, args);
    if (cat === "collective" && tid === HOST && around.every((one) => one.cat === "step")) host += end - begin;
    if (cat === "wait" || (cat === "collective" && tid !== HOST)) calls.push({ begin, end });
    if (typeof unit !== "string") continue;
    if (cat === "wait") unitOf(unit).wait += time;
    else if (cat === "unit") {
      const pass = name.startsWith("forward") ? "forward" : "backward";
      unitOf(unit)[pass] += time;
      const outer = around.findLast((one) => one.cat === "unit")?.args?.["unit"];
      if (typeof outer === "string") unitOf(outer)[pass] -= time;
    } else if (cat === "collective" && tid !== HOST && typeof bytes === "number") {
      unitOf(unit).communication += time;
      unitOf(unit).bytes += bytes;
    }
  }
  const lengthOf = (list: readonly Interval[]): number => list.reduce((sum, { begin, end }) => sum + end - begin, 0);
  const moving = united(calls);
  return {
    rank: trace.rank,
    isCutOff: trace.isCutOff,
    steps: first === undefined || last === undefined ? undefined : { first: first.step, last: last.step },
    step: seconds(first === undefined ? 0 : until - from),
    compute: seconds(lengthOf(kernels)),
    communication: seconds(lengthOf(moving)),
    exposed: seconds(lengthOf(moving) - overlap(moving, kernels)),
    host: seconds(host),
    units: [...units.values()].map((unit) => ({ ...unit, bytes: unit.bytes / Math.max(1, steps.length) })),
    kernels: [...byKernel.values()].sort((a, b) => b.seconds - a.seconds),
  };
}

/** Adds the part of a kernel's call that counts for a step. */
function addCall(
  kernels: Map<string, MutableKernel>,
  kernel: string,
  seconds: number,
  part: number,
  { flops, bytes }: TraceFacts,
): void {
  const found = kernels.get(kernel) ?? { kernel, calls: 0, seconds: 0, flops: 0, bytes: 0 };
  const add = (sum: number | undefined, more: TraceFacts[string] | undefined): number | undefined =>
    sum === undefined || typeof more !== "number" ? undefined : sum + more * part;
  found.calls += part;
  found.seconds += seconds;
  found.flops = add(found.flops, flops);
  found.bytes = add(found.bytes, bytes);
  kernels.set(kernel, found);
}

/** The steps that a mean is taken of: not the first, which allocates, nor the last, which the end of the run belongs to, if there are others. */
function countedSteps(trace: RankTrace): (Interval & { readonly step: number })[] {
  const steps: (Interval & { readonly step: number })[] = [];
  for (const { event: { cat, args }, begin, end } of spansOf(trace)) {
    const step = args?.["step"];
    if (cat === "step" && typeof step === "number") steps.push({ step, begin, end });
  }
  return steps.slice(steps.length > 2 ? 1 : 0, steps.length > 1 ? -1 : undefined);
}

/** Intervals that cover the same time, and do not overlap. */
function united(list: readonly Interval[]): readonly Interval[] {
  const joined: Interval[] = [];
  for (const { begin, end } of list.toSorted((a, b) => a.begin - b.begin)) {
    const last = joined.at(-1);
    if (last === undefined || begin > last.end) joined.push({ begin, end });
    else joined[joined.length - 1] = { begin: last.begin, end: Math.max(last.end, end) };
  }
  return joined;
}

/** The part of `calls` that lies in `kernels`, which do not overlap among themselves. */
function overlap(calls: readonly Interval[], kernels: Interval[]): number {
  kernels.sort((a, b) => a.begin - b.begin);
  let total = 0;
  for (const { begin, end } of calls) {
    for (let i = placeAfter(kernels, (kernel) => kernel.end <= begin); i < kernels.length; i++) {
      const kernel = at(kernels, i, "kernel");
      if (kernel.begin >= end) break;
      total += Math.min(end, kernel.end) - Math.max(begin, kernel.begin);
    }
  }
  return total;
}

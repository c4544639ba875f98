/** Sums of a trace's spans, on events whose times are known. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { summarize } from "../../src/cli/trace_summary.ts";
import { openTraces } from "../../src/report/trace_files.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const [HOST, COMPUTE, GATHER, REDUCE] = [0, 1, 2, 3];

/** One step of 1,000 µs. A gather ends in a wait behind a kernel, and a reduce-scatter in a wait of its own. */
const EVENTS: readonly object[] = [
  { ph: "M", pid: 0, name: "fullyshard", args: { rank: 0, worldSize: 1, run: "one", origin: 0 } },
  { ph: "B", pid: 0, tid: HOST, ts: 0, cat: "step", name: "step 1", args: { step: 1 } },
  { ph: "B", pid: 0, tid: GATHER, ts: 100, cat: "collective", name: "gather a", args: { unit: "a", bytes: 8 } },
  { ph: "E", pid: 0, tid: GATHER, ts: 150 },
  { ph: "X", pid: 0, tid: COMPUTE, ts: 150, dur: 100, cat: "kernel", name: "gemm", args: {} },
  { ph: "B", pid: 0, tid: COMPUTE, ts: 250, cat: "wait", name: "gather wait a", args: { unit: "a" } },
  // A kernel of the wait itself, e.g. of a gather in another dtype.
  { ph: "X", pid: 0, tid: COMPUTE, ts: 260, dur: 10, cat: "kernel", name: "cast", args: {} },
  // A gather that ends in the wait for it counts once.
  { ph: "B", pid: 0, tid: GATHER, ts: 280, cat: "collective", name: "gather b", args: { unit: "b", bytes: 8 } },
  { ph: "E", pid: 0, tid: GATHER, ts: 290 },
  { ph: "E", pid: 0, tid: COMPUTE, ts: 300 },
  { ph: "B", pid: 0, tid: REDUCE, ts: 400, cat: "collective", name: "reduce-scatter a", args: { unit: "a", bytes: 8 } },
  { ph: "E", pid: 0, tid: REDUCE, ts: 405 },
  { ph: "B", pid: 0, tid: COMPUTE, ts: 500, cat: "wait", name: "reduction wait a", args: {} },
  { ph: "E", pid: 0, tid: COMPUTE, ts: 600 },
  { ph: "E", pid: 0, tid: HOST, ts: 1000 },
];

test("summarize() counts waits for what calls have begun as communication, each moment once", () => {
  using folder = temporaryDirectory();
  folder.write("trace/rank0.json", `[\n${EVENTS.map((event) => JSON.stringify(event)).join(",\n")}\n]\n`);
  const [trace = assert.fail("no trace")] = openTraces(folder.file("trace"));
  const { step, compute, communication, exposed } = summarize(trace);
  const microseconds = [step, compute, communication, exposed].map((seconds) => Math.round(seconds * 1e6));
  assert.deepEqual(microseconds, [1000, 110, 50 + 50 + 5 + 100, 50 + 40 + 5 + 100]);
});

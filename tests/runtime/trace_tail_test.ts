/** A trace's tail: its lines compared with JSON, and its file as a killed rank leaves it. @module */
import assert from "node:assert/strict";
import { copyFileSync, existsSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { eventsOf, openTraces, type TraceEvent } from "../../src/report/trace_files.ts";
import { Trace, type TraceRecord } from "../../src/runtime/trace.ts";
import { openTraceFile } from "../../src/runtime/trace_file.ts";
import { linesOfTail, placeOfTail, TraceTail } from "../../src/runtime/trace_tail.ts";
import { temporaryDirectory } from "../support/temporary.ts";

/** Values that JSON writes in many ways. */
const NUMBERS = [0, 0.001, 0.01, 0.1, 0.999, 1, 9, 10, 99.5, 100.25, 999_999, 1_000_000, 1_000_000.001, 123_456_789.012]
  .concat([1e9, 98_765_432_109.876, 2 ** 53 / 1000, 2 ** 52, 2 ** 53 - 1, 1e21, 86_400_000_000.007]);

/** The lines of a tail, which the bytes of its file give too. */
function linesIn(tail: TraceTail): readonly string[] {
  const unsaved = tail.unsaved();
  assert.ok(unsaved !== undefined && unsaved.place === 0);
  const lines = tail.lines(3);
  assert.deepEqual(linesOfTail(unsaved.bytes, 3), lines);
  // Bytes of an earlier, longer tail.
  assert.deepEqual(linesOfTail(new Uint8Array([...unsaved.bytes, ...new Uint8Array(80).fill(1)]), 3), lines);
  return lines;
}

test("TraceTail writes the numbers of kernels as JSON does", () => {
  const tail = new TraceTail();
  const times = NUMBERS.flatMap((ts) => NUMBERS.map((dur) => ({ tid: 1, ts, dur })));
  const names = ["gemm", "add", "layers_norm"];
  const nameOf = (i: number): string => names[i % names.length] ?? "";
  for (const [i, one] of times.entries()) tail.kernel(nameOf(i), one, { flops: one.dur, bytes: one.ts });
  const lines = times.map(({ tid, ts, dur }, i) =>
    JSON.stringify({
      ...{ name: nameOf(i), cat: "kernel", ph: "X", pid: 3, tid, ts, dur },
      args: { flops: dur, bytes: ts },
    })
  );
  assert.deepEqual(linesIn(tail), lines);
  tail.clear(77);
  assert.deepEqual(tail.lines(3), []);
  tail.kernel("add", { tid: 0, ts: 1, dur: 2 }, { flops: 3, bytes: 4 });
  assert.equal(placeOfTail(tail.unsaved()?.bytes ?? new Uint8Array()), 77);
  assert.match(tail.lines(3).join(), /^{"name":"add",/);
});

test("TraceTail writes all other events as JSON does, of any letters and length", () => {
  const texts = ["model.layers.0", "", '"', "\\", "\n\u0001\u007f", "Größe", "層 🙂", "\ud800", "long ".repeat(40_000)];
  const events: TraceRecord[] = texts.flatMap((name, i) => [
    { name, ph: "M", pid: 3, args: { name, origin: 1_764_372_597_123.4567 } },
    {
      name,
      cat: "unit",
      ph: "B",
      pid: 3,
      ts: 1234.5 + i,
      tid: 1,
      args: { [name]: name, step: i, yes: true, less: -1.5 },
    },
    { ph: "E", pid: 3, ts: 99_999.001 * i, tid: i % 3 },
  ]);
  const tail = new TraceTail();
  for (const event of events) tail.event(event);
  assert.ok(tail.isFull);
  const lines = linesIn(tail);
  assert.deepEqual(lines.map((line) => JSON.parse(line)), events.map((event) => JSON.parse(JSON.stringify(event))));
  assert.ok(lines.every((line) => !line.includes("\n")));
});

/** The events of a rank that were recorded between steps, by kind and name. */
function eventsIn(folder: string): readonly string[] {
  const [trace] = openTraces(folder);
  assert.ok(trace !== undefined);
  const words = ({ ph, name = "" }: TraceEvent): string => `${ph}${name}`;
  return [...eventsOf(trace)].filter(({ ph }) => ph !== "M").map(words);
}

test("The files of a trace hold at any time all events up to the last flush", () => {
  using folder = temporaryDirectory();
  const trace = new Trace();
  trace.open(openTraceFile(folder.path, 0, (text) => assert.fail(text)), { rank: 0, worldSize: 1, run: "a run" });
  const [partial, tail] = [folder.file("rank0.json.partial"), folder.file("rank0.json.tail")];
  const expected: string[] = [];
  let step = trace.begin("host", "step", "step 0", {});
  expected.push("Bstep 0");
  for (let i = 1; i <= 5; i++) {
    for (const name of ["gemm", "softmax", "gemm"].slice(0, 1 + i % 3)) {
      trace.kernel("compute", name, { begin: i, end: i + 1 }, { flops: i, bytes: i });
      expected.push(`X${name}`);
    }
    using _unit = trace.begin("compute", "unit", `unit ${i}`, { unit: `unit ${i}` });
    expected.push(`Bunit ${i}`);
    trace.flush();
    assert.deepEqual(eventsIn(folder.path), expected, `before step ${i}`);
    // A rank that is killed between the two writes leaves a tail whose events are lines already.
    const before = folder.file("before");
    copyFileSync(tail, before);
    step.end();
    step = trace.begin("host", "step", `step ${i}`, {});
    expected.push("E");
    assert.deepEqual(eventsIn(folder.path), expected, `as step ${i} begins`);
    assert.deepEqual(readFileSync(tail), readFileSync(before));
    assert.ok(readFileSync(partial, "utf8").endsWith("}"));
    expected.push(`Bstep ${i}`);
    trace.flush();
    expected.push("E");
  }
  trace.close();
  assert.ok(!existsSync(partial) && !existsSync(tail));
  assert.deepEqual(eventsIn(folder.path), [...expected, "E"]);
});

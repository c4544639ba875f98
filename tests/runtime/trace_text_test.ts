/** Lines of a trace, compared with JSON. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import type { TraceRecord } from "../../src/runtime/trace.ts";
import { TraceText } from "../../src/runtime/trace_text.ts";

/** Values that JSON writes in many ways. */
const NUMBERS = [0, 0.001, 0.01, 0.1, 0.999, 1, 9, 10, 99.5, 100.25, 999_999, 1_000_000, 1_000_000.001, 123_456_789.012]
  .concat([1e9, 98_765_432_109.876, 2 ** 53 / 1000, 2 ** 52, 2 ** 53 - 1, 1e21, 86_400_000_000.007]);

test("TraceText writes the numbers of kernels as JSON does", () => {
  const text = new TraceText(3);
  let written = "";
  const decoder = new TextDecoder();
  const times = NUMBERS.flatMap((ts) => NUMBERS.map((dur) => ({ tid: 1, ts, dur })));
  for (const one of times) {
    text.kernel("gemm", one, { flops: one.dur, bytes: one.ts });
    if (text.isFull) written += decoder.decode(text.take());
  }
  written += decoder.decode(text.take()) + decoder.decode(text.end());
  const lines = times.map(({ tid, ts, dur }) =>
    JSON.stringify({ name: "gemm", cat: "kernel", ph: "X", pid: 3, tid, ts, dur, args: { flops: dur, bytes: ts } })
  );
  assert.equal(written, `[\n${lines.join(",\n")}\n]\n`);
});

test("TraceText writes all other events as JSON does, of any letters and length", () => {
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
  const text = new TraceText(3);
  for (const event of events) text.event(event);
  const written = new TextDecoder().decode(text.take()) + new TextDecoder().decode(text.end());
  assert.deepEqual(JSON.parse(written), events.map((event) => JSON.parse(JSON.stringify(event))));
  assert.equal(written.split("\n").length, events.length + 3);
});

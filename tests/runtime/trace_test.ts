/** A trace's file and its clock, without a run. @module */
import assert from "node:assert/strict";
import { existsSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { originOfElapsed } from "../../src/runtime/clock.ts";
import { Trace } from "../../src/runtime/trace.ts";
import { openTraceFile } from "../../src/runtime/trace_file.ts";
import { temporaryDirectory } from "../support/temporary.ts";

test("originOfElapsed() finds when a process' clock began, to the time that readings take", () => {
  let now = 1_700_000_000_000.4;
  const read = (): number => now += 0.007; // every reading takes 7 µs, and the wall clock shows whole milliseconds
  const origin = originOfElapsed(() => Math.floor(read()), () => read() - 1_699_999_999_000.4);
  assert.ok(Math.abs(origin - 1_699_999_999_000.4) < 0.03, String(origin));
});

test("Trace ends what began later on a track with what ends, and records nothing before it is opened", () => {
  using folder = temporaryDirectory();
  const trace = new Trace();
  trace.begin("host", "step", "too early", {});
  trace.open(openTraceFile(folder.path, 3, (text) => assert.fail(text)), { rank: 3, worldSize: 4, run: "a run" });
  const outer = trace.begin("compute", "unit", "outer", {});
  const inner = trace.begin("compute", "unit", "inner", {});
  const other = trace.begin("gather", "collective", "other", { bytes: 8 });
  outer.end();
  inner.end();
  trace.begin("host", "step", "step 1", {}).end();
  const partial = folder.file("rank3.json.partial");
  assert.ok(existsSync(partial) && !existsSync(folder.file("rank3.json")));
  // A reader that does without the last bracket can read it as it is.
  assert.equal(JSON.parse(`${readFileSync(partial, "utf8")}]`).at(-1).ph, "E");
  trace.close();
  other.end();
  assert.ok(!existsSync(partial));
  const events: { ph: string; tid: number; pid: number; name?: string }[] = JSON.parse(
    readFileSync(folder.file("rank3.json"), "utf8"),
  );
  assert.deepEqual(
    events.filter(({ ph }) => ph !== "M").map(({ ph, tid, name = "" }) => `${ph}${tid}${name}`),
    ["B1outer", "B1inner", "B2other", "E1", "E1", "B0step 1", "E0", "E2"],
  );
  assert.ok(events.every(({ pid }) => pid === 3));
});

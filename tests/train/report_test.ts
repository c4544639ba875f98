/** What a training leaves for its report, and that a report which cannot be written stops nothing. @module */
import assert from "node:assert/strict";
import { mkdirSync, readFileSync, writeFileSync } from "node:fs";
import { readRun } from "../../src/report/read_run.ts";
import { eventsOfType } from "../../src/report/run_event.ts";
import { sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { flagsIn, run, startRun } from "./runs.ts";

const TIMEOUT = { timeout: 60_000 };

test("a run writes its record, events and report, and a resumed one adds to them", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const out = folder.file("out");
  const more = ["--save-every", "2", "--trace", `${out}/traces`, "--report"];
  const first = await run(flagsIn(folder, "--steps", "6", "--stop-after", "4", ...more));
  assert.equal(first.code, 0, first.stderr);
  const { record, events, timeline, missing, series } = readRun(out);
  assert.deepEqual(missing, []);
  assert.deepEqual(record?.set?.["steps"], "--steps");
  assert.equal(record?.set?.["seed"], undefined);
  assert.equal(record?.config["seed"], 0);
  assert.deepEqual([record?.world.size, record?.sharding?.length], [2, 3]);
  assert.deepEqual(events.map(({ type }) => type), [
    "start",
    ...["saved", "memory", "saved", "memory"],
    "memory",
    "end",
  ]);
  const measured = eventsOfType(events, "memory").at(-1);
  assert.equal(measured?.peakBytes, series.values["peak_bytes"]?.at(-1));
  assert.equal(Object.values(measured?.terms ?? {}).reduce((sum, bytes) => sum + bytes, 0), measured?.peakBytes);
  assert.deepEqual(measured?.terms, record?.predicted.terms, "the dry run counts what the run allocates");
  assert.deepEqual([timeline?.step, timeline?.ranks.length], [3, 2]);
  const kinds = new Set(timeline?.ranks[0]?.spans.map(({ kind }) => kind));
  assert.deepEqual([...kinds].toSorted(), ["backward", "call", "forward", "free", "gather", "reduce", "wait"]);
  assert.match(readFileSync(`${out}/report.html`, "utf8"), /4 of 6/);

  const second = await run(flagsIn(folder, "--steps", "6", "--resume", "auto", ...more));
  assert.equal(second.code, 0, second.stderr);
  const later = readRun(out);
  assert.deepEqual([later.record?.firstStep, later.events.slice(0, events.length)], [4, events]);
  assert.deepEqual(later.events.slice(events.length).map(({ type }) => type), [
    ...["start", "saved", "memory", "memory", "sample", "end"],
  ]);
  assert.match(readFileSync(`${out}/report.html`, "utf8"), /6 of 6/);
});

test("a report that cannot be written is a warning, and a failed run's report names the error", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  mkdirSync(folder.file("out/report.html"), { recursive: true });
  writeFileSync(folder.file("out/report.html/mine"), "");
  const taken = await run(flagsIn(folder, "--steps", "2", "--save-every", "1", "--report"), { ranks: 1 });
  assert.equal(taken.code, 0, taken.stderr);
  assert.equal(taken.stderr.match(/Training goes on without 'report\.html': /g)?.length, 1, taken.stderr);

  const failing = startRun([
    ...flagsIn(folder, "--steps", "400", "--report", "--overwrite", "--out", folder.file("bad"), "--live"),
    "fault=1:60:config",
  ]);
  await failing.until(/Live page/);
  const [address = ""] = /http:\S+/.exec(failing.output()) ?? [];
  const seen = await (await fetch(`${address}events`)).text(); // until the run ends it
  assert.match(
    seen,
    /event: end\ndata: \{"failure":"CollectiveError: Rank 0 in .*rank 1 stopped all ranks: ConfigError/,
  );
  const failed = await failing.ended;
  assert.notEqual(failed.code, 0);
  const { events } = readRun(folder.file("bad"));
  assert.deepEqual(eventsOfType(events, "log").map(({ rank, level }) => [rank, level]), [[1, "error"]]);
  assert.equal(eventsOfType(events, "end")[0]?.outcome, "failed");
  assert.match(readFileSync(folder.file("bad/report.html"), "utf8"), /found only here|only here/);
});

test(
  "a live page saves and stops the run between steps, and shows the rank that others wait for",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const flags = flagsIn(folder, "--steps", "100000", "--live", "--report-seconds", "0.2", "fault=1:3:sleep=1");
    const started = startRun(flags);
    await started.until(/Live page/);
    const [address = ""] = /http:\S+/.exec(started.output()) ?? [];
    const { origin } = new URL(address);
    const ask = (name: string): Promise<Response> => fetch(address + name, { method: "POST", headers: { origin } });
    await started.until(/step 5\//);
    assert.equal((await ask("save")).status, 204);
    await started.until(/Saved '.*checkpoint-\d+'/);
    assert.equal((await ask("stop")).status, 204);
    const { code, stderr } = await started.ended;
    assert.equal(code, 0, stderr);
    assert.match(stderr, /Stopped after step \d+ of 100000, as its live page asked for/);
    const { events } = readRun(folder.file("out"));
    assert.equal(eventsOfType(events, "saved").length, 2);
    // On a busy machine ranks may wait for each other before, too.
    const waits = eventsOfType(events, "ranks").map(({ ranks }) =>
      ranks.map(({ rank, state, step }) => `${rank} ${state} in step ${step}`).join(", ")
    );
    assert.ok(waits.includes("0 waiting in step 3, 1 running in step 3"), waits.join("\n"));
    assert.ok(!readFileSync(folder.file("out/events.jsonl"), "utf8").includes(address), "the secret is in no file");
  },
);

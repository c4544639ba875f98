/** Reports of stored runs: what is read, escaped, laid over each other, and what is named as missing. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { appendFileSync, existsSync, mkdirSync, readFileSync, rmSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { ArgumentError, FileError } from "../../doors/errors.ts";
import { report } from "../../src/cli/report.ts";
import { differencesOf } from "../../src/report/compare.ts";
import { embeddedJson, escaped, safe } from "../../src/report/html.ts";
import { pageAssets } from "../../src/report/page/assets.ts";
import { GrowingSeries } from "../../src/report/live/growing_series.ts";
import { readRun } from "../../src/report/read_run.ts";
import { type RunSeries, SeriesLines } from "../../src/report/series.ts";
import { writeReport } from "../../src/report/write_report.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { metricsLine, recordLike, STARTED, traceLike, writeStoredRun } from "../support/stored_run.ts";

const HOSTILE = `</script><script>alert(1)</script><img src=x onerror="alert(1)">"'\u0060&\u001b[31m\u202e\ud800`;

async function pageOf(folders: readonly string[], file: string): Promise<string> {
  await writeReport(folders, file);
  return readFileSync(file, "utf8");
}

test("safe`` escapes every value but markup", () => {
  assert.equal(escaped(`<a b="c" d='e'>&\u0060\u001b`), "&#60;a b=&#34;c&#34; d=&#39;e&#39;&#62;&#38;&#96;\\u001b");
  assert.equal(safe`<p>${"<b>"}${safe`<i>${["&", 1, undefined]}</i>`}</p>`.text, "<p>&#60;b&#62;<i>&#38;1</i></p>");
  const { text } = embeddedJson({ name: "</script><!--\u2028" });
  assert.doesNotMatch(text, /[<>&\u2028]/);
  assert.deepEqual(JSON.parse(text), { name: "</script><!--\u2028" });
});

test("writeReport() writes one page with every part of a run", async () => {
  using folder = temporaryDirectory();
  const page = await pageOf([writeStoredRun(folder, "tiny")], folder.file("tiny.html"));
  for (
    const text of [
      "<title>tiny – fullyshard</title>",
      ...["40 of 40", "LlamaForCausalLm", "bfloat16", "run.yaml:3:7", "2 defaults", "native kernels", "once upon"],
      ...["a disk is slow", "runs/tiny/checkpoint-20", "Measured, to step 20", "2026-01-02 03:04:06 UTC", "finished"],
    ]
  ) assert.ok(page.includes(text), text);
  assert.match(page, /<th scope="row">activations<\/th><td>[^]*? 1\.0 MiB<\/td><td>not known<\/td>/);
  assert.match(page, /gather model\.layers\.0: 0\.09 ms \+ 0\.10 ms/, "rank 1 begins 40 µs later");
  assert.match(page, /free model\.layers\.0/);
  assert.ok(page.includes("The MIT License"), "uPlot's licence");
  assert.doesNotMatch(page, /\b(?:src|href)\s*=\s*"(?!#)/, "nothing is loaded");
  assert.match(page, /default-src &#39;none&#39;|default-src 'none'/);
});

test("pageAssets end no element", () => {
  for (const text of [pageAssets.charts, pageAssets.script, pageAssets.style]) {
    assert.doesNotMatch(text, /<\/(?:script|style)/i);
  }
});

test("a report shows hostile names and texts as text", async () => {
  using folder = temporaryDirectory();
  const run = writeStoredRun(folder, "run", {
    record: { name: HOSTILE, config: { [HOSTILE]: HOSTILE }, set: { [HOSTILE]: HOSTILE }, resumed: HOSTILE },
    ...{ warning: HOSTILE, sample: HOSTILE, unit: HOSTILE },
  });
  for (const folders of [[run], [run, writeStoredRun(folder, "other")]]) {
    const page = await pageOf(folders, folder.file("page.html"));
    assert.equal(page.split("<script").length - 1, 3, "the page's own scripts");
    assert.ok(page.split("&#60;/script&#62;&#60;script&#62;alert(1)").length > 5);
    for (const text of ["<img", "\u001b", "\u202e"]) assert.ok(!page.includes(text), text);
    assert.ok(page.isWellFormed());
  }
});

test("a report lays runs over each other, with their differences first", async () => {
  using folder = temporaryDirectory();
  const [one, two, old] = ["one", "two", "old"].map((name) => writeStoredRun(folder, name)) as [string, string, string];
  folder.write(
    "two/run.json",
    JSON.stringify(recordLike({ name: "two", config: { ...recordLike().config, seed: 7 } })),
  );
  rmSync(`${old}/run.json`);
  const runs = [one, two, old].map((folder) => readRun(folder));
  assert.deepEqual(differencesOf(runs), [{ key: "seed", values: [0, 7, undefined] }]);
  const page = await pageOf([one, two, old], folder.file("page.html"));
  assert.ok(page.indexOf("Differences of configuration") < page.indexOf("Numbers by step"));
  assert.match(page, /<th scope="row">seed<\/th><td><code>0<\/code><\/td><td><code>7<\/code><\/td><td><code>–<\/code>/);
  assert.match(page, /The configuration of old is not known/);
  const nine = Array.from({ length: 9 }, () => one);
  await assert.rejects(writeReport(nine, folder.file("page.html")), ArgumentError);
});

test("a report of an older run says what is missing", async () => {
  using folder = temporaryDirectory();
  folder.write("old/metrics.jsonl", `${metricsLine(1)}\n${metricsLine(2)}\n{"step":3,"lo`);
  const { missing, record, timeline, events, series } = readRun(folder.file("old"));
  assert.deepEqual([record, timeline, events, series.steps], [undefined, undefined, [], [1, 2]]);
  const page = await pageOf([folder.file("old")], folder.file("page.html"));
  assert.equal(missing.length, 4);
  for (const sentence of missing) assert.ok(page.includes(escaped(sentence)), sentence);
  for (const part of ["run.json", "events.jsonl", "unreadable line", "No trace"]) {
    assert.ok(missing.some((sentence) => sentence.includes(part)), part);
  }
});

test("readRun() refuses folders without a run, and names a record that is damaged", () => {
  using folder = temporaryDirectory();
  mkdirSync(folder.file("empty"));
  for (const name of ["none", "empty"]) {
    assert.throws(
      () => readRun(folder.file(name)),
      (error) => error instanceof FileError && /--out/.test(error.message),
    );
  }
  folder.write("a file", "");
  assert.throws(() => readRun(folder.file("a file")), /it is no folder: give the folder of a training's '--out'/);
  folder.write("bad/run.json", JSON.stringify({ ...recordLike(), world: { size: "two" } }));
  assert.match(readRun(folder.file("bad")).missing.join(), /run\.json cannot be read: world\.size: /);
});

test("readRun() takes the newest step that all ranks have finished, though a trace is cut off", () => {
  using folder = temporaryDirectory();
  const run = writeStoredRun(folder, "run");
  assert.equal(readRun(run).timeline?.step, 2, "not the last step, which the end of a run belongs to");
  rmSync(`${run}/traces/rank1.json`);
  const cut = traceLike(1, "model.layers.0", 40);
  folder.write("run/traces/rank1.json.partial", cut.slice(0, cut.indexOf('"step 3"') + 10));
  const timeline = readRun(run).timeline;
  assert.deepEqual([timeline?.step, timeline?.ranks.map(({ rank }) => rank)], [2, [0, 1]]);
  const [first, second] = timeline?.ranks ?? [];
  assert.deepEqual(first?.spans.map(({ kind }) => kind), [
    ...["call", "forward", "gather", "wait", "free", "backward", "reduce"],
  ]);
  assert.deepEqual(second?.spans.map(({ begin }) => Math.round(begin)), first?.spans.map(({ begin }) => begin + 40));
});

test("readRun() reads as much of a trace's end as holds some steps, of a trace of any length", () => {
  using folder = temporaryDirectory();
  const run = writeStoredRun(folder, "run");
  const kernels = Array.from(
    { length: 4000 },
    (_, i) =>
      `{"name":"gemm","cat":"kernel","ph":"X","ts":${i},"dur":1,"tid":1,"args":{"flops":1,"bytes":1},"pid":0},\n`,
  ).join("");
  for (const rank of [0, 1]) {
    const trace = traceLike(rank, "model.layers.0", 40 * rank);
    // Behind the first step of each rank come more events than are read at first.
    const place = trace.lastIndexOf("\n", trace.indexOf('"step 2"')) + 1;
    assert.ok(place > 1 && kernels.length > 2 ** 18);
    folder.write(`run/traces/rank${rank}.json`, trace.slice(0, place) + kernels + trace.slice(place));
  }
  assert.equal(readRun(run).timeline?.step, 2);
});

/** The numbers of a file's text. */
function readSeries(text: string, most?: number): RunSeries {
  const lines = new SeriesLines(most);
  for (const line of text.split("\n")) lines.add(line);
  return lines.series();
}

test("GrowingSeries reads lines that come, and another file anew", () => {
  using folder = temporaryDirectory();
  const file = folder.file("metrics.jsonl");
  const growing = new GrowingSeries(file);
  assert.equal(growing.read(), undefined);
  folder.write("metrics.jsonl", '{"step":1,"loss":4}\n{"step":2,"lo');
  assert.deepEqual(growing.read(), readSeries('{"step":1,"loss":4}'));
  appendFileSync(file, 'ss":3}\nno step\n{"step":3,"loss":2}\n');
  const { steps, values, badLines } = growing.read() ?? readSeries("");
  assert.deepEqual([steps, values, badLines], [[1, 2, 3], { loss: [4, 3, 2] }, 1]);
  assert.deepEqual(growing.read(), readSeries(readFileSync(file, "utf8")));
  // A run that resumes cuts the file off, and may be as long again before the next look.
  folder.write("metrics.jsonl", Array.from({ length: 9 }, (_, i) => `{"step":${i + 1},"loss":7}\n`).join(""));
  assert.deepEqual(growing.read(), readSeries(readFileSync(file, "utf8")));
  rmSync(file);
  assert.equal(growing.read(), undefined);
});

test("SeriesLines merges adjacent steps into points, each with their mean and at the last of them", () => {
  const lines = Array.from({ length: 5 }, (_, i) => `{"step":${i + 1},"loss":${i},"x":null}`);
  const series = readSeries(lines.join("\n"), 2);
  assert.deepEqual([series.stepsAPoint, series.steps, series.values], [4, [4, 5], { loss: [1.5, 4] }]);
  assert.deepEqual(series.last, { loss: { step: 5, value: 4 } });
  const whole = readSeries(lines.join("\n"), Infinity);
  assert.deepEqual([whole.stepsAPoint, whole.values["loss"]], [1, [0, 1, 2, 3, 4]]);
});

test("SeriesLines takes numbers that only some steps have, and steps that come again", () => {
  // A mean goes over the steps that have the number, however often points were merged.
  const rows = Array.from(
    { length: 5000 },
    (_, i) => ({ step: i + 1, loss: i, ...i % 10 === 9 ? { eval_loss: i } : {} }),
  );
  const { steps, values, stepsAPoint, last } = readSeries(rows.map((row) => JSON.stringify(row)).join("\n"), 300);
  assert.equal(stepsAPoint, 32);
  assert.deepEqual(steps.slice(0, 2), [32, 64]);
  assert.equal(steps.at(-1), 5000);
  const meanOf = (list: readonly number[]): number => list.reduce((sum, value) => sum + value, 0) / list.length;
  for (const [place, end] of steps.entries()) {
    const part = rows.slice(32 * place, end);
    assert.equal(values["loss"]?.[place], meanOf(part.map(({ loss }) => loss)));
    assert.equal(values["eval_loss"]?.[place], meanOf(part.flatMap((row) => row.eval_loss ?? [])));
  }
  assert.deepEqual(last["eval_loss"], { step: 5000, value: 4999 });

  const again = '{"step":2,"loss":5}\n{"step":1,"loss":4}\n{"step":2,"loss":6}\n';
  assert.deepEqual(readSeries(again).values, { loss: [4, 6] });
  assert.deepEqual(readSeries(again).last, { loss: { step: 2, value: 6 } });
});

test("fullyshard report writes beside the run, or where it is told", async () => {
  using folder = temporaryDirectory();
  const run = writeStoredRun(folder, "run", { record: { started: STARTED } });
  assert.equal(await report([`${run}/`]), 0);
  assert.match(readFileSync(`${run}/report.html`, "utf8"), /<h1>run<\/h1>/);
  assert.equal(await report([run, run, "--out", folder.file("both.html")]), 0);
  assert.match(readFileSync(folder.file("both.html"), "utf8"), /<h1>2 runs<\/h1>/);
  await assert.rejects(report([]), /1 to 8 folders of runs/);
  mkdirSync(folder.file("taken"));
  await assert.rejects(report([run, "--out", folder.file("taken")]), FileError);
});

test(`fullyshard report may write what it makes, under ${RUNTIME}`, () => {
  using folder = temporaryDirectory();
  const run = writeStoredRun(folder, "run");
  const bin = fileURLToPath(new URL("../../bin/fullyshard.mjs", import.meta.url));
  const { status, stderr } = spawnSync("node", [bin, "--runtime", RUNTIME, "report", run], { encoding: "utf8" });
  assert.equal(status, 0, stderr);
  assert.ok(existsSync(`${run}/report.html`));
});

test("readRun() takes no trace of another start of the run", () => {
  using folder = temporaryDirectory();
  const run = writeStoredRun(folder, "run", { record: { origin: STARTED + 60_000 } });
  const { timeline, missing } = readRun(run);
  assert.equal(timeline, undefined);
  assert.match(missing.join(), /traces' is of another start of the run/);
});

/** `metrics.jsonl`, and what a person sees of a step. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { FileError } from "../../src/errors.ts";
import { MetricsFile, type StepMetrics } from "../../src/train/metrics.ts";
import { formatBytes, Progress } from "../../src/train/progress.ts";
import { temporaryDirectory } from "../support/temporary.ts";

function metrics(step: number): StepMetrics {
  const speed = { tokens_per_second: 1234.5, wall_time: 1763803100.25 };
  return { step, loss: 1 / 3, learning_rate: 0.1, grad_norm: 2, ...speed, peak_bytes: 3 * 2 ** 20 };
}

test("MetricsFile begins anew at step 0", async () => {
  using folder = temporaryDirectory();
  const path = folder.write("metrics.jsonl", `${JSON.stringify(metrics(9))}\n`);
  using file = await MetricsFile.open(path, 0);
  file.write(metrics(1));
  // Written as training goes, not at its end.
  assert.equal(readFileSync(path, "utf8"), `${JSON.stringify(metrics(1))}\n`);
});

test("MetricsFile keeps earlier lines as they are and drops later ones and half a line", async () => {
  using folder = temporaryDirectory();
  const odd = '{ "step": 2, "loss": 0.10 }';
  const lines = [JSON.stringify(metrics(1)), odd, JSON.stringify(metrics(3)), JSON.stringify(metrics(4)).slice(0, 17)];
  const path = folder.write("metrics.jsonl", lines.join("\n"));
  {
    using file = await MetricsFile.open(path, 2);
    file.write(metrics(3));
  }
  assert.equal(readFileSync(path, "utf8"), `${lines[0]}\n${odd}\n${JSON.stringify(metrics(3))}\n`);
});

test("MetricsFile drops a half line that looks like a step, and lines that are none", async () => {
  using folder = temporaryDirectory();
  const path = folder.write("metrics.jsonl", `null\n7\n{"loss":1}\n${JSON.stringify(metrics(1))}\n{"step":2,"loss":3.`);
  (await MetricsFile.open(path, 5))[Symbol.dispose]();
  assert.equal(readFileSync(path, "utf8"), `${JSON.stringify(metrics(1))}\n`);
});

test("MetricsFile resumes where there is no file yet", async () => {
  using folder = temporaryDirectory();
  (await MetricsFile.open(folder.file("metrics.jsonl"), 5))[Symbol.dispose]();
  assert.equal(readFileSync(folder.file("metrics.jsonl"), "utf8"), "");
});

test("MetricsFile names the file that cannot be written", async () => {
  using folder = temporaryDirectory();
  const path = `${folder.write("file", "")}/metrics.jsonl`;
  await assert.rejects(MetricsFile.open(path, 0), (error) => error instanceof FileError && error.path === path);
});

test("Progress prints the first, the last and every n-th step", () => {
  const lines: string[] = [];
  using progress = new Progress({ line: (text) => void lines.push(text), status: undefined }, 7, 3);
  for (let step = 1; step <= 7; step++) progress.step(metrics(step), 10);
  assert.deepEqual(lines.map((line) => line.split("  ")[0]), ["step 1/7", "step 3/7", "step 6/7", "step 7/7"]);
  assert.equal(
    lines[1],
    "step 3/7  loss 0.3333  lr 1.00e-1  grad norm 2.000  1235 tokens/s  3.0 MiB  40.0 s left",
  );
  assert.doesNotMatch(lines[3] ?? "", /left/);
});

test("Progress tells the time left from recent steps", () => {
  const lines: string[] = [];
  using progress = new Progress({ line: (text) => void lines.push(text), status: undefined }, 100, 1);
  progress.step(metrics(1), 1000);
  for (let step = 2; step <= 40; step++) progress.step(metrics(step), 1);
  assert.match(lines.at(-1) ?? "", /1 min 00 s left$/);
});

test("Progress shows every step as status and takes it away at the end", () => {
  const shown: string[] = [];
  {
    using progress = new Progress({ line: () => {}, status: (text) => void shown.push(text) }, 3, 100);
    for (let step = 1; step <= 3; step++) progress.step(metrics(step), 1);
  }
  assert.deepEqual(shown.map((text) => text.slice(0, 8)), ["step 1/3", "step 2/3", "step 3/3", ""]);
});

test("formatBytes() chooses the unit", () => {
  assert.deepEqual([512, 2 ** 20, 1.5 * 2 ** 30].map(formatBytes), ["0.5 KiB", "1.0 MiB", "1.50 GiB"]);
});

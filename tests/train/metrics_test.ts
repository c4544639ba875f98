/** `metrics.jsonl`, and what a person sees of a step. @module */
import assert from "node:assert/strict";
import { existsSync, mkdirSync, readFileSync } from "node:fs";
import { test } from "node:test";
import { FileError } from "../../src/errors.ts";
import { MetricsFile, type StepMetrics } from "../../src/train/metrics.ts";
import { Progress } from "../../src/train/progress.ts";
import { formatBytes } from "../../src/words.ts";
import { temporaryDirectory } from "../support/temporary.ts";

function metrics(step: number): StepMetrics {
  const speed = { tokens_per_second: 1234.5, wall_time: 1763803100.25 };
  return { step, loss: 1 / 3, learning_rate: 0.1, grad_norm: 2, ...speed, peak_bytes: 3 * 2 ** 20 };
}

test("MetricsFile begins anew at step 0, with the first line", () => {
  using folder = temporaryDirectory();
  const path = folder.write("metrics.jsonl", `${JSON.stringify(metrics(9))}\n`);
  using file = new MetricsFile(folder.path, 0);
  assert.match(readFileSync(path, "utf8"), /"step":9/, "a run that fails before its first step replaces nothing");
  file.write(metrics(1));
  // Written as training goes, not at its end.
  assert.equal(readFileSync(path, "utf8"), `${JSON.stringify(metrics(1))}\n`);
});

test("MetricsFile keeps earlier lines as they are and drops later ones and half a line", () => {
  using folder = temporaryDirectory();
  const odd = '{ "step": 2, "loss": 0.10 }';
  const lines = [JSON.stringify(metrics(1)), odd, JSON.stringify(metrics(3)), JSON.stringify(metrics(4)).slice(0, 17)];
  const path = folder.write("metrics.jsonl", lines.join("\n"));
  {
    using file = new MetricsFile(folder.path, 2);
    file.write(metrics(3));
  }
  assert.equal(readFileSync(path, "utf8"), `${lines[0]}\n${odd}\n${JSON.stringify(metrics(3))}\n`);
});

test("MetricsFile drops a half line that looks like a step, and lines that are none", () => {
  using folder = temporaryDirectory();
  const path = folder.write("metrics.jsonl", `null\n7\n{"loss":1}\n${JSON.stringify(metrics(1))}\n{"step":2,"loss":3.`);
  using file = new MetricsFile(folder.path, 5);
  file.write(metrics(6));
  assert.equal(readFileSync(path, "utf8"), `${JSON.stringify(metrics(1))}\n${JSON.stringify(metrics(6))}\n`);
});

test("MetricsFile resumes where there is no file, nor folder, yet", () => {
  using folder = temporaryDirectory();
  const out = folder.file("runs/mine");
  using file = new MetricsFile(out, 5);
  assert.ok(!existsSync(folder.file("runs")));
  file.write(metrics(6));
  assert.equal(readFileSync(`${out}/metrics.jsonl`, "utf8"), `${JSON.stringify(metrics(6))}\n`);
});

test("MetricsFile names the file that cannot be written", () => {
  using folder = temporaryDirectory();
  const path = folder.file("metrics.jsonl");
  mkdirSync(path);
  using file = new MetricsFile(folder.path, 0);
  assert.throws(() => file.write(metrics(1)), (error) => error instanceof FileError && error.path === path);
});

test("Progress prints the first, the last and every n-th step", () => {
  const lines: string[] = [];
  using progress = new Progress({ line: (text) => void lines.push(text), status: undefined }, 7, 3);
  for (let step = 1; step <= 7; step++) progress.step(metrics(step), 10);
  assert.deepEqual(lines.map((line) => line.split("  ")[0]), ["step 1/7", "step 3/7", "step 6/7", "step 7/7"]);
  assert.equal(
    lines[1],
    "step 3/7  loss 0.3333  lr 1.00e-1  norm 2.000  1235 tokens/s  3.0 MiB  40.0 s left",
  );
  assert.doesNotMatch(lines[3] ?? "", /left/);
});

test("Progress prints every step that was evaluated, with the loss of the held-out text", () => {
  const lines: string[] = [];
  using progress = new Progress({ line: (text) => void lines.push(text), status: undefined }, 7, 7);
  for (let step = 1; step <= 7; step++) {
    progress.step({ ...metrics(step), ...step === 4 ? { eval_loss: 0.5 } : {} }, 10);
  }
  assert.deepEqual(lines.map((line) => line.split("  ")[2]), ["lr 1.00e-1", "eval loss 0.5000", "lr 1.00e-1"]);
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

test("Progress shows the time left first, and lines that fit 80 columns behind a rank's name", () => {
  const [shown, lines]: [string[], string[]] = [[], []];
  using progress = new Progress(
    { line: (text) => void lines.push(text), status: (text) => void shown.push(text) },
    9999,
    1,
  );
  progress.step({ ...metrics(1000), loss: 10.5, grad_norm: 12.5, tokens_per_second: 123_456 }, 1);
  assert.deepEqual(shown, [
    "step 1000/9999  2 h 30 min left  loss 10.5000  lr 1.00e-1  norm 12.500  123456 tokens/s  3.0 MiB",
  ]);
  assert.deepEqual(lines, ["step 1000/9999  loss 10.5000  lr 1.00e-1  norm 12.500  123456 tokens/s"]);
  assert.ok(`[rank0] ${lines[0]}`.length <= 80);
});

test("formatBytes() chooses the unit", () => {
  assert.deepEqual([0, 1, 512, 2 ** 10, 2 ** 20, 1.5 * 2 ** 30].map(formatBytes), [
    ...["0 bytes", "1 byte", "512 bytes", "1.0 KiB"],
    ...["1.0 MiB", "1.50 GiB"],
  ]);
});

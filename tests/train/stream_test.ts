/**
 * Training on data that is streamed: the losses of one rank on two, a resume on another number of ranks, and a file that is larger than
 * the memory of a rank.
 *
 * @module
 */
import assert from "node:assert/strict";
import { closeSync, openSync, statfsSync, writeSync } from "node:fs";
import process from "node:process";
import { test } from "node:test";
import { gzipSync } from "node:zlib";
import { longTest } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { essence, flagsIn, metricLines, run, startRun } from "./runs.ts";

const TIMEOUT = { timeout: 120_000 };
const GIB = 2 ** 30;

/** Lines of JSON of about as many bytes, each another. */
function textLines(byteLength: number): string {
  const lines: string[] = [];
  for (let bytes = 0; bytes < byteLength; bytes += 220) {
    lines.push(`${JSON.stringify({ text: `${lines.length} ${"some words of text ".repeat(10)}${bytes}` })}\n`);
  }
  return lines.join("");
}

async function train(folder: TemporaryDirectory, ranks: number, out: string, ...flags: string[]): Promise<string[]> {
  const args = [...flagsIn(folder).slice(2), "--out", folder.file(out), "--streaming", ...flags];
  const { code, stderr } = await run(args, { ranks });
  assert.equal(code, 0, stderr);
  assert.match(stderr, /A stream of 1 file, .*, tokenized as they are trained on/);
  return metricLines(folder, out).map(essence);
}

test(
  "a streamed training has one rank's losses on two, and goes on from a checkpoint on the other number",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    const data = ["--data", folder.write("stream.jsonl", textLines(2 ** 21)), "--steps", "4"];
    const one = await train(folder, 1, "one", ...data, "--micro-batches", "2");
    const two = await train(folder, 2, "two", ...data, "--stop-after", "2", "--save-every", "2");
    assert.deepEqual(two, one.slice(0, 2));
    const resumed = await train(folder, 1, "two", ...data, "--micro-batches", "2", "--resume", "auto");
    assert.deepEqual(resumed, one);
  },
);

longTest("a streamed evaluation has the same figures on any number of ranks", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const data = folder.write("stream.jsonl.gz", gzipSync(textLines(2 ** 20)));
  const evalData = folder.write("held.jsonl", textLines(3 * 2 ** 18));
  const flags = ["--data", data, "--eval-data", evalData, "--steps", "1", "--eval-every", "1"];
  const sizes = ["--sequence-length", "64", "--cpu-math", "auto"];
  const figures = async (ranks: number): Promise<string | undefined> => {
    // So that the step before sums the same gradients in the same order.
    await train(folder, ranks, `out-${ranks}`, ...flags, ...sizes, "--micro-batches", String(2 / ranks));
    return /"eval_loss":[\d.]+/.exec(metricLines(folder, `out-${ranks}`).join())?.[0];
  };
  const one = await figures(1);
  assert.ok(one !== undefined);
  assert.equal(await figures(2), one);
});

longTest(
  "a file of 8 GB is trained on by ranks of 1 GB, whose first step comes within 5 s",
  { timeout: 600_000 },
  async (context) => {
    if (process.platform !== "linux") return context.skip("needs /proc/self/status");
    using folder = temporaryDirectory();
    const { bavail, bsize } = statfsSync(folder.path);
    if (bavail * bsize < 10 * GIB) return context.skip(`needs 10 GB in ${folder.path}`);
    const file = folder.file("large.jsonl");
    const block = new TextEncoder().encode(textLines(2 ** 24));
    const descriptor = openSync(file, "w");
    let written = 0;
    while (written < 8 * GIB) written += writeSync(descriptor, block);
    closeSync(descriptor);
    for (const ranks of [1, 2]) {
      const flags = ["--data", file, "--steps", "30", "--out", folder.file(`out-${ranks}`), "--log-every", "1"];
      const began = performance.now();
      const running = startRun([...flagsIn(folder).slice(2), ...flags, "peak=30"], { ranks, allowAll: true });
      await running.until(/step +1\/30/);
      const seconds = (performance.now() - began) / 1000;
      const { code, stderr } = await running.ended;
      assert.equal(code, 0, stderr);
      assert.match(stderr, /A stream of 1 file, 8\.\d+ GiB/);
      const peaks = [...stderr.matchAll(/peak (\d+) kB/g)].map(([, peak]) => Number(peak));
      context.diagnostic(`${ranks} ranks: first step after ${seconds.toFixed(1)} s, peaks of ${peaks.join(", ")} kB`);
      assert.equal(peaks.length, ranks);
      assert.ok(peaks.every((peak) => peak * 1024 < 1e9), `${peaks.join(", ")} kB`);
      assert.ok(seconds < 5, `first step after ${seconds} s`);
    }
  },
);

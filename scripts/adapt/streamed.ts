/**
 * A file of some hundred megabytes under `streaming`: the first step comes before the file could be tokenized, and a rank's memory does not
 * grow with the file. `npm test -- --all train/stream_test` does it with 8 GB.
 *
 * @module
 */
import { closeSync, openSync, statSync, writeSync } from "node:fs";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import type { Bed } from "./bed.ts";
import { runProgram } from "./commands.ts";
import { type AdaptItem, type Outcome, verdict } from "./item.ts";

const script = fileURLToPath(new URL("../../tests/train/scripts/tiny.ts", import.meta.url));
const launcher = fileURLToPath(new URL("../../bin/fullyshard.mjs", import.meta.url));
const FILE_BYTES = 2 ** 29;
const MOST_BYTES = 1e9;
const MOST_SECONDS = 5;

function makeText(file: string): void {
  const lines = Array.from({ length: 2 ** 14 }, (_, i) => {
    return `${JSON.stringify({ text: `${i} ${"some words of text ".repeat(10)}` })}\n`;
  });
  const block = new TextEncoder().encode(lines.join(""));
  const descriptor = openSync(file, "w");
  for (let written = 0; written < FILE_BYTES;) written += writeSync(descriptor, block);
  closeSync(descriptor);
}

async function stream({ folder }: Bed, ranks: number): Promise<Outcome> {
  const file = `${folder}/streamed.jsonl`;
  makeText(file);
  const out = `${folder}/streamed-${ranks}`;
  const began = Date.now();
  const { code, stderr } = await runProgram("node", [
    ...[launcher, "--runtime", "bun", "run", "--nproc-per-node", String(ranks), script, `data=${file}`, "peak=20"],
    ...["--streaming", "--steps", "20", "--sequence-length", "64", "--global-batch", "8", "--out", out, "--no-report"],
    ...["--cache", `${out}-cache`, "--sample-tokens", "0"],
  ], {});
  const peaks = [...stderr.matchAll(/peak (\d+) kB/g)].map(([, peak]) => Number(peak) * 1024);
  const [first = "{}"] = code === 0 ? readFileSync(`${out}/metrics.jsonl`, "utf8").split("\n") : [];
  const ended: { wall_time?: number } = JSON.parse(first);
  const seconds = (ended.wall_time ?? NaN) - began / 1000;
  const wrong = [
    ...code === 0 ? [] : [`expected a run, got code ${code}: ${stderr.trim().split("\n").at(-1)}`],
    ...peaks.length === ranks && peaks.every((peak) => peak < MOST_BYTES)
      ? []
      : [`expected ranks below ${MOST_BYTES} bytes, got ${peaks.join(", ")}`],
    ...seconds < MOST_SECONDS ? [] : [`expected the first step within ${MOST_SECONDS} s, got ${seconds} s`],
  ];
  return verdict(wrong, { ranks, bytes: statSync(file).size, first_step_seconds: seconds, peak_bytes: peaks });
}

/** An item for one and two ranks. */
export const STREAMED: readonly AdaptItem[] = [1, 2].map((ranks) => ({
  name: `a file of half a GB is streamed, ${ranks} rank${ranks === 1 ? "" : "s"}`,
  run: (bed) => stream(bed, ranks),
}));

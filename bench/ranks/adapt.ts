/**
 * A rank that fine-tunes on chats by the trainer, as `fullyshard train` does: `adapt.ts <case> <JSON of bench/adapt.ts>`. It prints
 * tokens a second, by the median of the timed steps from one step's end to the next one's, and its most resident memory in bytes.
 *
 * @module
 */
import { readFileSync, rmSync } from "node:fs";
import process from "node:process";
import { runTrainingScript } from "fullyshard/config";
import { threadsOfCase } from "./timing.ts";

/** What `bench/adapt.ts` tells both sides. */
interface Told {
  readonly batch: number;
  readonly seq: number;
  readonly warmUp: number;
  readonly timed: number;
  readonly lora: boolean;
  readonly precision: string;
  readonly model: string;
  readonly rows: string;
  /** An empty folder, which is removed in the end. */
  readonly out: string;
}

const [name = "", text = "{}"] = process.argv.slice(2);
const told: Told = JSON.parse(text);
const { batch, seq, warmUp, timed } = told;

/** A line of this process's status, in bytes. */
function statusOf(key: "VmHWM" | "VmRSS"): number {
  const found = new RegExp(`^${key}:\\s+(\\d+) kB$`, "m").exec(readFileSync("/proc/self/status", "utf8"));
  return Number(found?.[1] ?? NaN) * 1024;
}

const { out } = told;
const before = statusOf("VmRSS");
const ends: number[] = [];
const say = (key: string, value: number): void => void process.stdout.write(`${key} ${value.toFixed(2)}\n`);
try {
  process.exitCode = await runTrainingScript({
    argv: [
      ...[
        "--model",
        told.model,
        "--data",
        told.rows,
        "--steps",
        String(warmUp + timed),
        "--global-batch",
        String(batch),
      ],
      ...["--sequence-length", String(seq), "--precision", told.precision, "--threads", String(threadsOfCase())],
      ...["--sample-tokens", "0", "--out", `${out}/run`, "--cache", `${out}/cache`, "--schedule", "constant"],
      ...["--warmup-steps", "0", "--learning-rate", "1e-4", "--weight-decay", "0.01", "--decay-on", "weights"],
      ...told.lora ? ["--lora-r", "16", "--lora-alpha", "32"] : [],
    ],
    onStep: () => {
      ends.push(performance.now());
      if (ends.length < warmUp + timed) return undefined;
      const times = ends.slice(1).map((end, i) => end - (ends[i] ?? NaN)).slice(-timed).toSorted((a, b) => a - b);
      say(name, batch * seq / (times[timed >> 1] ?? NaN) * 1000);
      say(`${name}-rss`, statusOf("VmHWM"));
      say(`${name}-grown`, statusOf("VmHWM") - before);
      return undefined;
    },
  });
} finally {
  if ((process.env["RANK"] ?? "0") === "0") rmSync(out, { recursive: true, force: true });
}

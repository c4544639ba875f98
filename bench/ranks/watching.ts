/**
 * A rank that trains a Llama of 7.9 M parameters with everything that can watch it, or with nothing, and tells on rank 0 the median
 * milliseconds from step to step, the milliseconds of processors that all threads of its process take for a step, and the microseconds
 * of a line of metrics.
 *
 * Usage: watching.ts <watched|plain> <folder>
 *
 * @module
 */
import process from "node:process";
import { resolveConfig } from "fullyshard/config";
import { typescriptLib } from "../../examples/typescript_lib.ts";
import { Logger } from "../../src/runtime/log.ts";
import { TRAIN_SECTIONS } from "../../src/train/config.ts";
import { MetricsFile, type StepMetrics } from "../../src/train/metrics.ts";
import { runTraining } from "../../src/train/trainer.ts";
import { median } from "../figures.ts";
import { LLAMA_8M } from "./models.ts";

/** Steps before those that are timed: compilers of JavaScript work beside the first ones. */
const WARM_UP = 8;
const TIMED = 16;
const LINES = 500;

const [mode = "plain", folder = "."] = process.argv.slice(2);
const watched = ["--live", "--trace", `${folder}/trace`];
const config = await resolveConfig(TRAIN_SECTIONS, {
  argv: [
    ...["--data", typescriptLib(), "--out", `${folder}/run`, "--cache", `${folder}/cache`, "--set-aside"],
    ...["--cpu-math", "native", "--steps", String(WARM_UP + TIMED), "--sample-tokens", "0"],
    ...["--global-batch", "4", "--sequence-length", String(LLAMA_8M.seq)],
    ...mode === "watched" ? watched : ["--no-report"],
  ],
});
const reader = mode === "watched" && process.env["RANK"] === "0"
  ? new Worker(new URL("./watching_reader.ts", import.meta.url), { type: "module" })
  : undefined;
const log = new Logger({
  sink: ({ message }) => {
    const address = /http:\S+/.exec(message)?.[0];
    if (address !== undefined) reader?.postMessage(address);
  },
});
const times: number[] = [];
const processor: number[] = [];
let last: StepMetrics | undefined;
await runTraining(config, {
  log,
  hfConfig: LLAMA_8M.config,
  output: { line: () => {}, status: undefined },
  onStep: (line) => {
    times.push(performance.now());
    const { user, system } = process.cpuUsage();
    processor.push((user + system) / 1000);
    last = line;
  },
});
reader?.terminate();
if (process.env["RANK"] === "0" && last !== undefined) {
  const steps = times.slice(WARM_UP).map((time, i) => time - (times[WARM_UP + i - 1] ?? NaN));
  using metrics = new MetricsFile(`${folder}/metrics`, 0);
  metrics.write(last);
  const begun = performance.now();
  for (let i = 0; i < LINES; i++) metrics.write(last);
  process.stdout.write(`line-us ${1000 * (performance.now() - begun) / LINES}\n`);
  process.stdout.write(`step-ms ${median(steps)}\n`);
  process.stdout.write(`processor-ms ${((processor.at(-1) ?? NaN) - (processor[WARM_UP - 1] ?? NaN)) / TIMED}\n`);
}

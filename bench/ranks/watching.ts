/**
 * A rank that trains a Llama with everything that can watch it, or with nothing, a turn of some steps at a time. Between turns it
 * waits, so that `bench/watching.ts` can let a watched and an unwatched run compute by turns.
 *
 * Usage: watching.ts <watched|plain> <model> <turns> <folder>
 *
 * @module
 */
import { existsSync, renameSync, writeFileSync } from "node:fs";
import process from "node:process";
import { resolveConfig } from "fullyshard/config";
import { typescriptLib } from "../../examples/typescript_lib.ts";
import { sleep } from "../../src/runtime/clock.ts";
import { Logger } from "../../src/runtime/log.ts";
import { TRAIN_SECTIONS } from "../../src/train/config.ts";
import { runTraining } from "../../src/train/trainer.ts";
import { turnFile, type TurnTimes, WATCHED, WATCHED_MODELS } from "../watched.ts";

const [mode = "plain", name = "", turns = "1", folder = "."] = process.argv.slice(2);
const model = WATCHED_MODELS[name];
if (model === undefined) {
  throw new Error(`expected a model of ${Object.keys(WATCHED_MODELS).join(", ")}, got '${name}'`);
}
const { config: hfConfig, batch, seq, warmUp, turn } = model;
const out = `${folder}/run`;
const config = await resolveConfig(TRAIN_SECTIONS, {
  argv: [
    ...["--data", typescriptLib(), "--out", out, "--cache", `${folder}/cache`, "--set-aside", "--save-every", "0"],
    ...["--cpu-math", "native", "--steps", String(warmUp + turn * Number(turns)), "--sample-tokens", "0"],
    ...["--global-batch", String(batch), "--sequence-length", String(seq)],
    ...mode === WATCHED ? ["--live", "--trace", `${out}/traces`] : ["--no-report"],
  ],
});
const isMain = process.env["RANK"] === "0";
const reader = mode === WATCHED && isMain
  ? new Worker(new URL("./watching_reader.ts", import.meta.url), { type: "module" })
  : undefined;
const log = new Logger({
  sink: ({ message }) => {
    const address = /http:\S+/.exec(message)?.[0];
    if (address !== undefined) reader?.postMessage(address);
  },
});

/** Milliseconds of the clock, and those of processors that all threads of this process have taken. */
function now(): { readonly wall: number; readonly processor: number } {
  const { user, system } = process.cpuUsage();
  return { wall: performance.now(), processor: (user + system) / 1000 };
}

let begun = now();
await runTraining(config, {
  log,
  hfConfig,
  output: { line: () => {}, status: undefined },
  onStep: async ({ step }) => {
    if (step < warmUp || (step - warmUp) % turn !== 0) return;
    const done = (step - warmUp) / turn;
    if (isMain) {
      const { wall, processor } = now();
      const times: TurnTimes = { step: (wall - begun.wall) / turn, processor: (processor - begun.processor) / turn };
      const file = turnFile(folder, "done", done);
      writeFileSync(`${file}.partial`, JSON.stringify(times));
      renameSync(`${file}.partial`, file);
    }
    if (done === Number(turns)) return;
    while (!existsSync(turnFile(folder, "begin", done + 1))) {
      if (!existsSync(folder)) throw new Error(`the benchmark has removed '${folder}', as the other run has failed`);
      await sleep(5);
    }
    begun = now();
  },
});
reader?.terminate();

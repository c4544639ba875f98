/** A training of many small steps with evaluations, saves and a reader of its live page holds no more in the end than early on. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import process from "node:process";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { longTest } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { startRun } from "./runs.ts";
import { type Held, heldBy, lowestOf, slopeOf } from "./soak.ts";

const STEPS = 20_000;
/** Steps in which garbage is freed at least once, even where another process takes the cores. */
const STRETCH = 1_000;
const HOUR = 3_600_000;
const script = fileURLToPath(new URL("scripts/soak.ts", import.meta.url));

/** Most seconds from one state of a live page to the next, as its Worker rests for 5 at most. */
const SECONDS_A_STATE = 6;

/**
 * Most bytes a step by which memory may grow. Objects are exact once garbage is freed; a process also holds pages that its
 * allocators have not given back, 10 to 20 MB more or less, which 15,000 steps make 1,300 bytes a step.
 */
const MOST_GROWTH = { heap: 512, outside: 2048 } as const;

test("slopeOf() tells a leak from noise", () => {
  const held = (step: number, outside: number): Held => ({
    step,
    outside,
    heap: 7,
    allocated: 5,
    handles: 3,
    threads: 2,
  });
  const leaking = Array.from({ length: 50 }, (_, i) => held(100 * i, 1000 + 70 * i + (i % 2 === 0 ? 9 : -9)));
  assert.ok(Math.abs(slopeOf(leaking, "outside") - 0.7) < 0.01);
  assert.equal(slopeOf(leaking, "allocated"), 0);
});

test("lowestOf() takes a leak from under the garbage that is freed at odd times", () => {
  const saw = (leak: number): readonly Held[] =>
    Array.from({ length: 15_000 }, (_, step) => {
      // Garbage of 500 bytes a step, freed each 700th step early on and each 950th later.
      const garbage = 500 * (step % (step < 7_000 ? 700 : 950));
      return { step, outside: 1_000_000 + leak * step + garbage, heap: 7, allocated: 5, handles: 3, threads: 2 };
    });
  assert.ok(slopeOf(saw(0), "outside") > 2, "the garbage alone seems to grow");
  assert.equal(slopeOf(lowestOf(saw(0), "outside", STRETCH), "outside"), 0);
  const growth = slopeOf(lowestOf(saw(300), "outside", STRETCH), "outside");
  assert.ok(Math.abs(growth - 300) < 15, `${growth}`);
});

longTest("20,000 steps leave allocator, memory and handles as they were", {
  timeout: HOUR,
  skip: process.platform === "linux" ? undefined : "counts handles in /proc",
}, async () => {
  using folder = temporaryDirectory();
  folder.write("text.txt", "All ranks hold parts of all parameters, and none holds all of them. ".repeat(200));
  folder.write("held-out.txt", "No rank holds all of them. ".repeat(8));
  const out = folder.file("run");
  const begun = performance.now();
  const run = startRun([
    ...["--data", folder.file("text.txt"), "--out", out, "--cache", folder.file("cache"), "--steps", String(STEPS)],
    ...["--sequence-length", "16", "--global-batch", "2", "--sample-tokens", "0", "--live"],
    ...["--eval-data", folder.file("held-out.txt"), "--eval-every", "500", "--save-every", "500", "--keep-last", "2"],
  ], { script, allowAll: true });
  const reading = read(run.until(/http:\S+\//).then(() => /http:\S+\//.exec(run.output())?.[0] ?? ""));
  const { code, stderr } = await run.ended;
  assert.equal(code, 0, stderr);
  const states = await reading;
  const seconds = (performance.now() - begun) / 1000;
  assert.ok(states > seconds / SECONDS_A_STATE, `${states} states were read in ${seconds} s`);
  assert.equal(readFileSync(`${out}/metrics.jsonl`, "utf8").trim().split("\n").length, STEPS);

  for (const rank of [0, 1] as const) {
    // Compilers of JavaScript and caches grow in the first quarter.
    const held = heldBy(out, rank).filter(({ step }) => step > STEPS / 4);
    assert.ok(held.length > 100, `${held.length} lines`);
    const said = `rank ${rank}: ${JSON.stringify([held[0], held.at(-1)])}`;
    process.stdout.write(`${said}\n`);
    assert.equal(new Set(held.map(({ allocated }) => allocated)).size, 1, said);
    for (const key of ["handles", "threads"] as const) {
      const more = slopeOf(held, key) * STEPS;
      assert.ok(more < 1, `${key} grow by ${more} in ${STEPS} steps; ${said}`);
    }
    for (const key of ["heap", "outside"] as const) {
      const lowest = lowestOf(held, key, STRETCH);
      const growth = slopeOf(lowest, key);
      const megabytes = lowest.map((one) => (one[key] / 1e6).toFixed(1)).join(" ");
      process.stdout.write(`rank ${rank}: ${key} ${growth.toFixed(1)} bytes a step; MB at least: ${megabytes}\n`);
      assert.ok(growth < MOST_GROWTH[key], `${key} grows by ${growth} bytes a step; ${said}`);
    }
  }
});

/** Reads a live page until its run ends; gives the number of states. */
async function read(address: Promise<string>): Promise<number> {
  const { body } = await fetch(`${await address}events`);
  assert.ok(body !== null);
  let states = 0;
  const text = new TextDecoder();
  for await (const bytes of body) states += text.decode(bytes, { stream: true }).split("event: run\n").length - 1;
  return states;
}

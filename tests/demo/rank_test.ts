/** The demo's ranks: they train as the command line does, tell their trace, and wait where the page holds them. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { test } from "node:test";
import { Worker } from "node:worker_threads";
import type { DemoEvent, DemoMessage } from "../../src/demo/events.ts";
import { EventTeller } from "../../src/demo/event_teller.ts";
import { Pace } from "../../src/demo/pace.ts";
import { Player } from "../../src/demo/player.ts";
import { RankScene } from "../../src/demo/scene.ts";
import { DEMO_MODEL, demoCommand, type DemoSettings, FIRST_SETTINGS } from "../../src/demo/settings.ts";
import { NO_TERMS } from "../../src/device/allocator.ts";
import { sleep } from "../../src/runtime/clock.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { onlyInAll, sharedTest } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { lossesOf, TEXT, trainDemo } from "./ranks.ts";

const bin = fileURLToPath(new URL("../../bin/fullyshard.mjs", import.meta.url));

/** Losses and gradient norms of the command that the page shows. */
function lossesOfCommand(settings: DemoSettings): readonly (readonly [number, number])[] {
  using folder = temporaryDirectory();
  const files = {
    model: folder.write("model.json", JSON.stringify(DEMO_MODEL)),
    data: folder.write("text.txt", TEXT),
  };
  const [, ...args] = demoCommand(settings, files);
  const own = ["--out", folder.file("run"), "--cache", folder.file("cache"), "--sample-tokens", "0"];
  const { status, stderr } = spawnSync("node", [bin, "--runtime", RUNTIME, ...args, ...own], { encoding: "utf8" });
  assert.equal(status, 0, stderr);
  return readFileSync(folder.file("run/metrics.jsonl"), "utf8").trim().split("\n").map((line) => {
    const { loss, grad_norm }: { loss: number; grad_norm: number } = JSON.parse(line);
    return [loss, grad_norm] as const;
  });
}

const short: DemoSettings = { ...FIRST_SETTINGS, steps: 3 };
let usual: Promise<readonly DemoMessage[]> | undefined;

/** Two ranks of FSDP, which several tests look at. */
function trainUsual(): Promise<readonly DemoMessage[]> {
  return usual ??= trainDemo(short);
}

const further: readonly Partial<DemoSettings>[] = [
  { strategy: "ddp" },
  { ranks: 3, prefetch: true, seed: 7 },
  { ranks: 4, reshardAfterForward: false, checkpointing: true },
];

for (const change of [{}, ...onlyInAll(further)]) {
  const settings: DemoSettings = { ...short, ...change };
  sharedTest(`a demo's losses are the command line's to the bit: ${JSON.stringify(change)}`, async () => {
    const messages = await (Object.keys(change).length === 0 ? trainUsual() : trainDemo(settings));
    const expected = lossesOfCommand(settings);
    assert.equal(expected.length, 3);
    for (let rank = 0; rank < settings.ranks; rank++) assert.deepEqual(lossesOf(messages, rank), expected);
  });
}

function eventsOf(messages: readonly DemoMessage[]): readonly DemoEvent[] {
  return messages.flatMap((message) => message.type === "events" && message.rank === 0 ? message.events : []);
}

sharedTest("RankScene holds one whole unit at a time, and its own part between steps", async () => {
  const messages = await trainUsual();
  const ready = messages.find((message) => message.type === "ready");
  assert.ok(ready?.type === "ready");
  const names = ready.units.map(({ name }) => name);
  assert.deepEqual([names.at(0), names.at(-1), names.length], ["model.embed_tokens", "model.norm, lm_head", 6]);
  assert.ok(ready.other.peak.parameters > 2 * 4 * 100_000 && ready.other.peak.gathered === 0, "DDP gathers nothing");
  const scene = new RankScene(names, "fsdp");
  const seen: string[] = [];
  for (const event of eventsOf(messages)) {
    scene.apply(event);
    const whole = [...scene.units].filter(([, { parameters }]) => parameters === "all").map(([name]) => name);
    assert.ok(whole.length <= 1, `${whole} at ${event.name}`);
    const { moment, step } = scene;
    // The picture of a moment is what its sentence says.
    const state = scene.units.get(moment?.unit ?? "");
    if (moment?.activity === "gather") assert.equal(state?.parameters, "all", event.name);
    if (moment?.activity === "free") assert.equal(state?.parameters, "own", event.name);
    if (moment?.isDone === true) assert.equal(state?.gradients, "all", event.name);
    if (step === 2 && moment !== undefined && seen.at(-1) !== moment.activity) seen.push(moment.activity);
  }
  for (const state of scene.units.values()) {
    assert.deepEqual([state.parameters, state.gradients, state.optimizer], ["own", "own", "own"]);
  }
  const forward = Array.from({ length: 5 }, () => ["forward", "gather", "forward", "free"]).flat();
  assert.deepEqual(seen.slice(0, 24), [...forward, "forward", "gather", "forward", "backward"]);
  assert.deepEqual(seen.slice(-3), ["backward", "reduce", "update"]);
  assert.ok(scene.spans.every(({ begin, end = begin }) => end >= begin) && scene.lastSpans.length > 40);
  const steps = messages.flatMap((message) => message.type === "step" ? message.step : []);
  for (const { rest, peak } of steps) {
    assert.ok(rest.gathered === 0 && peak.gathered > 0 && rest.parameters < ready.other.rest.parameters * 0.6);
  }
});

sharedTest("RankScene of a replicated model holds everything, and its gradients are reduced at once", async () => {
  const messages = await trainDemo({ ...short, strategy: "ddp", ranks: 1 });
  const ready = messages.find((message) => message.type === "ready");
  assert.ok(ready?.type === "ready");
  const scene = new RankScene(ready.units.map(({ name }) => name), "ddp");
  const works = new Set<string>();
  for (const event of eventsOf(messages)) {
    scene.apply(event);
    assert.ok([...scene.units.values()].every(({ parameters }) => parameters === "all"));
    if (scene.moment !== undefined) works.add(`${scene.moment.activity} ${scene.moment.unit}`);
  }
  for (const { name } of ready.units) {
    assert.ok(works.has(`forward ${name}`) && works.has(`backward ${name}`), `${name} of ${[...works]}`);
  }
  assert.ok([...works].some((work) => work.startsWith("reduce gradient bucket")) && scene.step === 3);
  assert.ok(![...works].some((work) => work.startsWith("gather")));
});

sharedTest("a demo's rank refuses a text that is no sample, and says so", async () => {
  for (
    const [text, pattern] of [["short", /at least 32 bytes of text, got 5/], [
      "\ud800".repeat(99),
      /surrogate/,
    ]] as const
  ) {
    const messages = await trainDemo({ ...short, ranks: 1 }, text);
    const failed = messages.find((message) => message.type === "failed");
    assert.ok(failed?.type === "failed");
    assert.match(`${failed.name}: ${failed.message}`, pattern);
  }
});

test("Pace holds a rank at each moment until the page allows it", () => {
  const pace = Pace.make(2);
  const told: string[] = [];
  // A rank that may go on is not held, and tells nothing.
  pace.free();
  for (const rank of [0, 0, 1]) pace.pass(rank, () => void told.push("waits"));
  // Rank 0 has passed two moments, so all are held at the third; none waits there yet.
  pace.hold();
  assert.equal(pace.advance([0, 1]), false);
  pace.pass(1, () => void told.push("waits")); // rank 1 may still come to the second moment
  assert.equal(Atomics.load(pace.words, 0), 2);
  pace.allowSteps(4);
  pace.passStep(4);
  assert.deepEqual(told, []);
});

test(
  "Pace stops a rank that is killed at its next moment, though nothing else ends it",
  { timeout: 60_000 },
  async () => {
    const pace = Pace.make(2);
    pace.free();
    const worker = new Worker(new URL("./pace_worker.ts", import.meta.url), { workerData: pace.words });
    const passed = (): number => Atomics.load(pace.words, pace.words.length - 1);
    while (passed() < 1000) await sleep(5);
    pace.kill(1);
    await sleep(50);
    const stopped = passed();
    await sleep(100);
    assert.equal(passed(), stopped);
    await worker.terminate();
  },
);

test("EventTeller tells what it knows before a rank is held", async () => {
  const pace = Pace.make(1);
  const events: DemoEvent[] = [];
  const teller = new EventTeller({ rank: 0, settings: short }, pace, (told) => {
    events.push(...told);
    if (told.some(({ phase }) => phase === "end")) pace.free();
  });
  teller.event({ ph: "B", pid: 0, tid: 2, cat: "collective", name: "gather a", ts: 1, args: { unit: "a", bytes: 8 } });
  teller.event({ ph: "E", pid: 0, tid: 2, ts: 2 });
  const told = ["gather a", 8, "gather"];
  assert.deepEqual(events.map(({ name, bytes, track }) => [name, bytes, track]), [told, told]);
  assert.deepEqual(events.map(({ phase }) => phase), ["begin", "end"]);
  teller.kernel();
  teller.close();
  assert.equal(events.length, 2);
});

test("Player plays moment by moment while it is held, and asks for the next step at the end of each", () => {
  const event = (phase: "begin" | "end", name: string): DemoEvent => ({
    ...{ phase, name, track: "gather", category: "collective", unit: "a", time: 0, step: 1, memory: NO_TERMS },
  });
  const events = ["begin", "end"].flatMap((_, i) => [event("begin", `gather ${i}`), event("end", `gather ${i}`)]);
  const numbers = { step: 1, loss: 1, gradNorm: 1, tokens: 1, rest: NO_TERMS, peak: NO_TERMS };
  const played: string[] = [];
  const asked: number[] = [];
  const player = new Player(
    (message) =>
      void played.push(message.type === "events" ? message.events.map(({ phase }) => phase).join() : message.type),
    (step) => void asked.push(step),
  );
  player.hear({ rank: 0, type: "ready", units: [], other: { rest: NO_TERMS, peak: NO_TERMS } });
  player.isHeld = true;
  player.hear({ rank: 0, type: "events", events, waits: false });
  player.hear({ rank: 0, type: "step", step: numbers });
  assert.deepEqual([played, asked], [["ready"], [1]]);
  player.advance();
  player.advance();
  assert.deepEqual(played, ["ready", "begin", "end", "begin", "end"]);
  player.nextStep();
  assert.deepEqual([played.slice(5), asked], [["step"], [1, 2]]);
  player.hear({ rank: 0, type: "end" });
  assert.equal(played.at(-1), "step", "it is held behind the step");
  player.isHeld = false;
  assert.equal(played.at(-1), "end");
});

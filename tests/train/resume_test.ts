/** Runs that stop and go on, seen from outside. @module */
import assert from "node:assert/strict";
import { appendFileSync, existsSync, readdirSync, readFileSync, rmSync } from "node:fs";
import process from "node:process";
import { after } from "node:test";
import { fileURLToPath } from "node:url";
import { longTest, onlyInAll, sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { keepRanks } from "./kept_ranks.ts";
import { type Ended, essence, flagsIn, losses, metricLines, run, startRun } from "./runs.ts";

const kept = keepRanks();
after(() => kept[Symbol.dispose]());

const TIMEOUT = { timeout: 60_000 };
const steps = ["--steps", "10"];

function succeeds(ended: Ended): void {
  assert.equal(ended.code, 0, ended.stdout + ended.stderr);
}

/** The folder of a run of 10 steps in `out`, with a checkpoint of step 5: what runs that stop are compared with. */
const folder = temporaryDirectory();
after(() => folder[Symbol.dispose]());
let uninterrupted: Promise<readonly string[]> | undefined;

async function runUninterrupted(): Promise<readonly string[]> {
  succeeds(await kept.run(flagsIn(folder, ...steps, "--save-every", "5")));
  const lines = metricLines(folder).map(essence);
  assert.equal(lines.length, 10);
  return lines;
}

test("a run that stops at step 5 of 10 and resumes is the uninterrupted one, bit for bit", TIMEOUT, async () => {
  const whole = await (uninterrupted ??= runUninterrupted());
  const second = flagsIn(folder, ...steps, "--out", folder.file("second"));
  const stopped = await kept.run([...second, "--stop-after", "5"]);
  succeeds(stopped);
  assert.match(stopped.stderr, /Saved '.*second\/checkpoint-5'\n.*Stopped after step 5 of 10: 5 steps in /);
  assert.deepEqual(metricLines(folder, "second").map(essence), whole.slice(0, 5));
  assert.ok(!existsSync(folder.file("second/model")), "a run that only stopped writes no model");
  // A run that was killed may have written more, and half a line.
  appendFileSync(folder.file("second/metrics.jsonl"), '{"step":6,"loss":1}\n{"step":7,"lo');

  const resumed = await kept.run([...second, "--resume", "auto"]);
  succeeds(resumed);
  assert.match(resumed.stderr, /Resumed '.*second\/checkpoint-5' at step 5/);
  assert.deepEqual(metricLines(folder, "second").map(essence), whole);
  const [a, b] = ["out", "second"].map((out) => readFileSync(folder.file(`${out}/model/model.safetensors`)));
  assert.ok(a !== undefined && b !== undefined && a.equals(b), "the models differ");
});

/** Trains with dropout, stops and goes on; sharded, replicated and on one rank. */
async function resumeWithDropout(): Promise<void> {
  using folder = temporaryDirectory();
  const few = ["dropout=0.2", "--steps", "6", "--global-batch", "8"];
  const flags = (out: string, ...more: readonly string[]): readonly string[] =>
    flagsIn(folder, ...few, "--out", folder.file(out), ...more);
  succeeds(await kept.run(flags("whole")));
  const whole = metricLines(folder, "whole").map(essence);
  assert.equal(whole.length, 6);
  succeeds(await kept.run(flags("half", "--stop-after", "3")));
  succeeds(await kept.run(flags("half", "--resume", "auto", "--activation-checkpointing", "full")));
  assert.deepEqual(metricLines(folder, "half").map(essence), whole);
  for (const strategy of onlyInAll(["ddp"])) {
    succeeds(await kept.run(flags("replicated", "--strategy", strategy)));
    assert.deepEqual(metricLines(folder, "replicated").map(essence), whole);
  }
  succeeds(await kept.run(flags("alone", "--micro-batches", "2"), { ranks: 1 }));
  assert.deepEqual(metricLines(folder, "alone").map(essence), whole);
  succeeds(await kept.run(flagsIn(folder, ...few, "--out", folder.file("other"), "--seed", "1")));
  assert.notDeepEqual(metricLines(folder, "other").map(essence), whole);
}

/** Trains with a scaled loss, stops and goes on; sharded and replicated. */
async function resumeInFloat16(): Promise<void> {
  using folder = temporaryDirectory();
  const few = ["--steps", "8", "--precision", "float16"];
  const scalerOf = (checkpoint: string): unknown =>
    JSON.parse(readFileSync(folder.file(`${checkpoint}/manifest.json`), "utf8")).state.scaler;
  const settings = { growthFactor: 2, backoffFactor: 0.5, growthInterval: 2000 };
  for (const strategy of ["fsdp", ...onlyInAll(["ddp"])]) {
    const flags = (out: string, ...more: readonly string[]): readonly string[] =>
      flagsIn(folder, ...few, "--strategy", strategy, "--out", folder.file(out), ...more);
    const ended = await kept.run(flags(`${strategy}-whole`, "--save-every", "8"));
    succeeds(ended);
    const units = strategy === "ddp" ? "'LlamaForCausalLm'" : "3 units, 'LlamaForCausalLm' to 'model.layers.1'";
    const ledger =
      `Dtypes of ${units}: storage float16, compute float16, reduce float32, master float32, gradient float32`;
    assert.equal(ended.stderr.split(ledger).length, 2, ended.stderr);
    const whole = metricLines(folder, `${strategy}-whole`).map(essence);
    succeeds(await kept.run(flags(`${strategy}-half`, "--stop-after", "4")));
    assert.deepEqual(scalerOf(`${strategy}-half/checkpoint-4`), { ...settings, scale: 65536, growthTracker: 4 });
    succeeds(await kept.run(flags(`${strategy}-half`, "--resume", "auto", "--save-every", "4")));
    assert.deepEqual(metricLines(folder, `${strategy}-half`).map(essence), whole);
    for (const out of ["whole", "half"]) {
      assert.deepEqual(scalerOf(`${strategy}-${out}/checkpoint-8`), { ...settings, scale: 65536, growthTracker: 8 });
    }
  }
  const linesOf = (strategy: string): readonly string[] => metricLines(folder, `${strategy}-whole`).map(essence);
  for (const strategy of onlyInAll(["ddp"])) assert.deepEqual(linesOf(strategy), linesOf("fsdp"));
}

for (
  const [what, check] of onlyInAll(
    [
      [
        "with dropout goes on with the numbers of the uninterrupted one, sharded, replicated, on one rank",
        resumeWithDropout,
      ],
      ["in float16 goes on with its loss scale, bit for bit, sharded and replicated", resumeInFloat16],
    ] as const,
  )
) test(`a run ${what}`, TIMEOUT, check);

test("a run resumes on 1 and on 4 ranks with the losses of 2", TIMEOUT, async () => {
  await (uninterrupted ??= runUninterrupted());
  const expected = losses(folder);
  for (const ranks of [1, 4]) {
    const from = ["--out", folder.file(`on${ranks}`), "--resume", folder.file("out/checkpoint-5")];
    const resumed = await kept.run(flagsIn(folder, ...steps, ...from), { ranks });
    succeeds(resumed);
    assert.match(resumed.stderr, /Results may differ in the last bits/);
    const found = losses(folder, `on${ranks}`);
    assert.deepEqual([...found.keys()], Array.from({ length: 5 }, (_, i) => 6 + i));
    for (const [step, loss] of found) {
      const wanted = expected.get(step) ?? NaN;
      assert.ok(Math.abs(loss - wanted) <= 1e-5 * wanted, `step ${step} on ${ranks} ranks: ${loss}, not ${wanted}`);
    }
  }
});

test("a run whose ranks were killed goes on from its newest checkpoint", TIMEOUT, async () => {
  const whole = await (uninterrupted ??= runUninterrupted());
  const second = flagsIn(folder, ...steps, "--out", folder.file("killed"), "--save-every", "2");
  const killed = await run([...second, "fault=1:7:kill"], { allowAll: true });
  assert.equal(killed.code, 137, killed.stderr);
  const resumed = await kept.run([...second, "--resume", "auto"]);
  succeeds(resumed);
  assert.match(resumed.stderr, /Resumed '.*checkpoint-6' at step 6/);
  assert.deepEqual(metricLines(folder, "killed").map(essence), whole);
  // Three are kept, and the last step's is one of them.
  const left = readdirSync(folder.file("killed")).filter((name) => name.startsWith("checkpoint-")).sort();
  assert.deepEqual(left, ["checkpoint-10", "checkpoint-6", "checkpoint-8"]);
});

test("Ctrl-C saves a run that saves nothing else, and says how to go on", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const many = ["--steps", "100000", "--schedule", "constant"];
  const started = startRun(flagsIn(folder, ...many));
  await started.until(/step 3\//);
  process.kill(started.child.pid ?? 0, "SIGINT");
  const stopped = await started.ended;
  assert.equal(stopped.code, 130, stopped.stderr);
  const step = Number(/Stopped after step (\d+) of 100000, as SIGINT came/.exec(stopped.stderr)?.[1]);
  assert.ok(step >= 3, stopped.stderr);
  assert.ok(stopped.stderr.includes(`Saved '${folder.file("out")}/checkpoint-${step}'\n`), stopped.stderr);
  assert.match(stopped.stderr, /Resume with the same command and '--resume auto'/);
  // The same command alone does not lose what was saved, with or without the flag that replaces a finished run.
  for (const more of [[], ["--overwrite"]]) {
    const refused = await kept.run(flagsIn(folder, ...many, ...more));
    assert.equal(refused.code, 2, refused.stderr);
    assert.match(
      refused.stderr,
      /Resume from it with '--resume auto', give another folder with '--out', remove that checkpoint/,
    );
  }
  const before = metricLines(folder).map(essence);
  assert.equal(before.length, step);
  const resumed = await kept.run(flagsIn(folder, ...many, "--resume", "auto", "--stop-after", String(step + 2)));
  succeeds(resumed);
  assert.match(resumed.stderr, new RegExp(`Resumed '.*checkpoint-${step}'`));
  assert.deepEqual(metricLines(folder).map(essence).slice(0, step), before);
  assert.equal(metricLines(folder).length, step + 2);
});

longTest("a run does not resume with another seed, sequence length or text", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  succeeds(await run(flagsIn(folder, "--steps", "2", "--save-every", "2")));
  const other = folder.write("other.txt", "a text of its own. ".repeat(200));
  const changed = ["--seed", "3", "--sequence-length", "8", "--data", other];
  const { code, stderr } = await run([...flagsIn(folder, "--steps", "4", "--resume", "auto"), ...changed]);
  assert.equal(code, 2, stderr);
  assert.match(stderr, /^ +seed: expected 0, as in the checkpoint, got 3/m);
  assert.match(stderr, /^ +sequenceLength: expected 16, as in the checkpoint, got 8/m);
  assert.match(
    stderr,
    /^ +data: expected the text and tokenizer of the checkpoint, got another text or tokenizer\. To train the checkpoint's weights on it, do not resume: open the checkpoint's folder as the model \('--model'\), with a folder of its own for the output/m,
  );
  assert.equal(metricLines(folder).length, 2, "the metrics of the run before are as they were");

  // The action that the message advises.
  const tokenizer = fileURLToPath(new URL("../../examples/data/tokenizer.json", import.meta.url));
  const from = ["--model", folder.file("out/checkpoint-2"), "--tokenizer", tokenizer, "--learning-rate", "0"];
  succeeds(await run([...flagsIn(folder, "--steps", "1"), ...from, "--data", other, "--out", folder.file("other")]));
  const [before, after] = ["out", "other"].map((out) => readFileSync(folder.file(`${out}/model/model.safetensors`)));
  assert.ok(
    before !== undefined && after !== undefined && before.equals(after),
    "the weights are not the checkpoint's",
  );
});

test("a run that resumes with other settings says which", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  succeeds(await kept.run(flagsIn(folder, "--steps", "2", "--save-every", "2"), { ranks: 1 }));
  const settings = ["--steps", "4", "--learning-rate", "0.5"];
  const resumed = await kept.run(flagsIn(folder, "--resume", "auto", ...settings), { ranks: 1 });
  succeeds(resumed);
  assert.match(resumed.stderr, /Setting changed since the checkpoint: steps was 2, is 4/);
  assert.match(resumed.stderr, /Setting changed since the checkpoint: learningRate was 0\.01, is 0\.5/);
  assert.equal(metricLines(folder).length, 4);
});

longTest("a run does not begin anew in a folder that has checkpoints", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  succeeds(await run(flagsIn(folder, "--steps", "2", "--save-every", "1")));
  const lines = metricLines(folder);
  const { code, stderr } = await run(flagsIn(folder, "--steps", "2"));
  assert.equal(code, 2, stderr);
  assert.match(
    stderr,
    /out: expected a folder without checkpoints, got '.*out' with '.*checkpoint-2'\. Resume from it/,
  );
  assert.deepEqual(metricLines(folder), lines);
});

longTest(
  "a run does not resume from an older checkpoint beside newer ones, which would outlive its own",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    succeeds(await run(flagsIn(folder, "--steps", "3", "--save-every", "1"), { ranks: 1 }));
    const before = readdirSync(folder.file("out")).sort();
    const lines = metricLines(folder);
    const from = ["--steps", "4", "--resume", `${folder.file("out/../out/checkpoint-1")}/`];
    const refused = await run(flagsIn(folder, ...from));
    assert.equal(refused.code, 2, refused.stderr);
    assert.match(
      refused.stderr,
      /resume: expected the newest checkpoint in '.*out', got '.*checkpoint-1\/', and there are newer ones: '.*checkpoint-3', '.*checkpoint-2'\. Move or remove them, or give another folder with '--out'/,
    );
    assert.match(refused.stderr, /fullyshard: rank 1 ended because of it/);
    assert.deepEqual(readdirSync(folder.file("out")).sort(), before);
    assert.deepEqual(metricLines(folder), lines);
    succeeds(await run([...flagsIn(folder, ...from), "--out", folder.file("branch")], { ranks: 1 }));
    for (const step of [2, 3]) rmSync(folder.file(`out/checkpoint-${step}`), { recursive: true });
    succeeds(await run(flagsIn(folder, ...from), { ranks: 1 }));
    assert.equal(metricLines(folder).length, 4);
  },
);

longTest(
  "a run that resumes with another global batch counts whole steps on, and says what comes of it",
  TIMEOUT,
  async () => {
    using folder = temporaryDirectory();
    succeeds(await run(flagsIn(folder, "--steps", "5", "--stop-after", "3", "--save-every", "1"), { ranks: 1 }));
    const more = ["--global-batch", "6", "--save-every", "1", "--steps", "5", "--resume", "auto"];
    const resumed = await run(flagsIn(folder, ...more), { ranks: 1 });
    succeeds(resumed);
    assert.match(
      resumed.stderr,
      /Setting changed since the checkpoint: globalBatch was 4, is 6: steps from 4 on take 6 samples each\. Steps and the learning rate's schedule are counted on as before; 24 samples will have been taken by step 5\n/,
    );
    assert.deepEqual(metricLines(folder).map((line): number => JSON.parse(line).step), [1, 2, 3, 4, 5]);
    const states = [3, 4, 5].map((step): { cursor: number; step: number } => {
      return JSON.parse(readFileSync(folder.file(`out/checkpoint-${step}/manifest.json`), "utf8")).state.data;
    });
    assert.deepEqual(states.map(({ cursor, step }) => [cursor, step]), [[12, 3], [18, 4], [24, 5]]);
    const rates = metricLines(folder).map((line): number => JSON.parse(line).learning_rate);
    succeeds(await run(flagsIn(folder, "--steps", "5", "--out", folder.file("whole")), { ranks: 1 }));
    assert.deepEqual(rates, metricLines(folder, "whole").map((line): number => JSON.parse(line).learning_rate));
  },
);

test("a run that resumes where there is nothing yet begins", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  const begun = await run(flagsIn(folder, "--steps", "2", "--resume", "auto"));
  succeeds(begun);
  assert.match(begun.stderr, /No checkpoint in '.*out': starting at step 1/);
  assert.equal(metricLines(folder).length, 2);
});

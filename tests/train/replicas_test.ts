/** Copies of weights and optimizer states that are compared while a run trains. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { runCli } from "../launch/launcher.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { longTest } from "../support/share.ts";

/** Trains for six steps; the exit code, what was printed, and the steps of the metrics. */
async function train(
  script: string,
  ranks: number,
  ...flags: readonly string[]
): Promise<{ code: number | null; stderr: string }> {
  using folder = temporaryDirectory();
  const data = folder.write("data.txt", "the quick brown fox jumps over the lazy dog. ".repeat(200));
  const places = ["--data", data, "--out", folder.file("out"), "--cache", folder.file("cache")];
  const sizes = ["--steps", "6", "--sequence-length", "32", "--sample-tokens", "0"];
  const path = fileURLToPath(new URL(`scripts/${script}`, import.meta.url));
  return await runCli(["run", "--nproc-per-node", String(ranks), path, ...places, ...sizes, ...flags]);
}

test("a weight that one rank changed by itself ends the run at the next comparison, with its name and ranks", async () => {
  const replicated = await train(
    "diverging.ts",
    3,
    "--strategy",
    "ddp",
    "--check-replicas",
    "2",
    "--global-batch",
    "6",
  );
  assert.equal(replicated.code, 1, replicated.stderr);
  assert.match(
    replicated.stderr,
    /DivergenceError: Copies of 'model\.embed_tokens\.weight' differ after step 4: expected identical copies, but those on ranks 0, 2 differ from those on rank 1\./,
  );
  const mesh = await train("diverging.ts", 4, "--mesh", "2x2", "--check-replicas", "1");
  assert.match(mesh.stderr, /Copies of '\S+' differ after step 4: .* those on rank 1 differ from those on rank 3\./);
});

longTest("ranks that hold equal copies train on, and a run without copies says so", async () => {
  const equal = await train("tiny.ts", 4, "--fsdp-size", "2", "--tp-size", "2", "--check-replicas", "1");
  assert.equal(equal.code, 0, equal.stderr);
  assert.doesNotMatch(equal.stderr, /compares nothing/);
  const sharded = await train("tiny.ts", 2, "--check-replicas", "3");
  assert.equal(sharded.code, 0, sharded.stderr);
  assert.match(sharded.stderr, /checkReplicas compares nothing: no two ranks of this run hold the same elements/);
});

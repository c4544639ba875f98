/** Expert parallelism in the trainer: the losses of a run without it, and checkpoints between runs that divide experts and runs that do not. @module */
import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { runCli } from "../launch/launcher.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";

const SCRIPT = fileURLToPath(new URL("scripts/mixture.ts", import.meta.url));
const TIMEOUT = { timeout: 120_000 };

/** Trains; the losses of the metrics. */
async function losses(
  folder: TemporaryDirectory,
  ranks: number,
  out: string,
  ...flags: readonly string[]
): Promise<number[]> {
  const places = ["--data", folder.file("data.txt"), "--out", folder.file(out), "--cache", folder.file("cache")];
  const sizes = ["--steps", "6", "--sequence-length", "32", "--sample-tokens", "8"];
  const ended = await runCli(["run", "--nproc-per-node", String(ranks), SCRIPT, ...places, ...sizes, ...flags]);
  assert.equal(ended.code, 0, ended.stderr);
  const lines = readFileSync(`${folder.file(out)}/metrics.jsonl`, "utf8").trim().split("\n");
  return lines.map((line): number => JSON.parse(line).loss);
}

function assertNear(found: readonly number[], expected: readonly number[]): void {
  assert.equal(found.length, expected.length);
  for (const [i, loss] of found.entries()) {
    const wanted = expected[i] ?? NaN;
    assert.ok(Math.abs(loss - wanted) <= 1e-5 * wanted, `step ${i + 1}: ${loss}, ${wanted}`);
  }
}

test("--ep-size trains as without it, and goes on from checkpoints of runs without it, and back", TIMEOUT, async () => {
  using folder = temporaryDirectory();
  folder.write("data.txt", "the quick brown fox jumps over the lazy dog. ".repeat(200));
  // The loss that balances the routers is of a rank's own tokens, so all runs have as many ranks.
  const saves = ["--save-every", "3", "--keep-last", "9"];
  const shared = await losses(folder, 4, "shared", ...saves);
  assertNear(await losses(folder, 4, "divided", "--ep-size", "2", ...saves, "--check-replicas", "2"), shared);
  const from = (run: string): readonly string[] => ["--resume", `${folder.file(run)}/checkpoint-3`];
  assertNear(await losses(folder, 4, "on-shared", "--ep-size", "4", ...from("shared")), shared.slice(3));
  const narrow = ["--precision", "bfloat16", "--stop-after", "1"];
  const [first = NaN] = await losses(folder, 4, "narrow", ...narrow);
  assertNear(await losses(folder, 4, "narrow-divided", "--ep-size", "2", ...narrow), [first]);
  assertNear(await losses(folder, 4, "on-divided", ...from("divided")), shared.slice(3));
});

/** `examples/fsdp_tp.ts`, `fsdp_cp.ts` and `fsdp_pp.ts` by the launcher. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import { RUNTIME } from "../support/rank_process.ts";
import { longTest, sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const root = fileURLToPath(new URL("../../", import.meta.url));
const bin = `${root}bin/fullyshard.mjs`;

/** Lines of steps, and the config that was saved. */
function runExample(name: string, ranks: number): { readonly losses: readonly number[]; readonly modelType: unknown } {
  using folder = temporaryDirectory();
  const { status, stdout, stderr } = spawnSync(
    "node",
    [bin, "--runtime", RUNTIME, "run", "--nproc-per-node", String(ranks), `${root}examples/${name}.ts`],
    { encoding: "utf8", cwd: folder.path, timeout: 120_000 },
  );
  assert.equal(status, 0, stderr);
  const losses = [...stdout.matchAll(/loss (\d+\.\d+)/g)].map(([, loss]) => Number(loss));
  const config: Record<string, unknown> = JSON.parse(readFileSync(folder.file(`runs/${name}/config.json`), "utf8"));
  return { losses, modelType: config["model_type"] };
}

/** Requires a loss that falls, by the last five steps together: each step has another text, and some texts are unlike all others. */
function requireLearning(losses: readonly number[]): void {
  const last = losses.slice(-5);
  const mean = last.reduce((sum, loss) => sum + loss, 0) / last.length;
  assert.ok(mean < (losses[0] ?? NaN) - 1, `it learns: ${losses}`);
}

test("examples/fsdp_tp.ts trains on 4 ranks", () => {
  const { losses, modelType } = runExample("fsdp_tp", 4);
  assert.equal(modelType, "llama");
  assert.equal(losses.length, 20);
  requireLearning(losses);
});

longTest("examples/fsdp_tp.ts trains the same model on 2 and on 4 ranks", () => {
  const [two, four] = [runExample("fsdp_tp", 2), runExample("fsdp_tp", 4)];
  for (const [step, loss] of four.losses.entries()) {
    assert.ok(
      Math.abs(loss - (two.losses[step] ?? NaN)) < 1e-3,
      `step ${step}: ${loss}, on 2 ranks ${two.losses[step]}`,
    );
  }
});

test("examples/fsdp_cp.ts trains on 2 ranks", () => {
  const { losses, modelType } = runExample("fsdp_cp", 2);
  assert.equal(modelType, "llama");
  assert.equal(losses.length, 20);
  requireLearning(losses);
});

test("examples/fsdp_pp.ts trains on 2 ranks", () => {
  const { losses, modelType } = runExample("fsdp_pp", 2);
  assert.equal(modelType, "llama");
  assert.equal(losses.length, 20);
  requireLearning(losses);
});

/**
 * Every family against what transformers computes: scores, losses, every gradient and six clipped AdamW steps, of the
 * directories that `tests/parity/make_reference.py` made, with the options that change what is computed.
 *
 * @module
 */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { cpSync, existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { fileURLToPath } from "node:url";
import { compareDirectory } from "../../scripts/reference/compare.ts";
import { openDevice } from "../../src/device/registry.ts";
import { fixturePath } from "../support/golden.ts";
import { sharedTest as test } from "../support/share.ts";

const device = await openDevice("cpu", { cpuMath: "wasm", memoryBytes: 2 ** 28 });

/** Fixtures that are models. */
const FAMILIES = readdirSync(fixturePath("")).filter((name) => {
  return existsSync(fixturePath(`${name}/config.json`));
}).sort();

for (const name of FAMILIES) {
  test(`buildModel() computes what transformers does: ${name}`, async () => {
    const quantities = await compareDirectory(device, fixturePath(name));
    assert.ok(quantities.length > 10);
    for (const { name, worst, allowed, pass } of quantities) {
      assert.ok(pass, `${name} is off by ${worst}, of ${allowed} allowed`);
    }
  });
}

/** The output of `npm run reference`. */
function reference(
  ...args: readonly string[]
): { readonly status: number | null; readonly out: string; readonly err: string } {
  const root = fileURLToPath(new URL("../..", import.meta.url));
  const command = ["scripts/runtime.mjs", "bun", "scripts/reference/main.ts", ...args];
  const { status, stdout, stderr } = spawnSync("node", command, { cwd: root, encoding: "utf8" });
  return { status, out: stdout, err: stderr };
}

test("npm run reference passes a directory, fails another by its quantity, and names a model that it cannot build", () => {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-reference-`);
  try {
    const [good, bad, unknown] = [fixturePath("llama-odd"), `${folder}/bad`, `${folder}/unknown`];
    for (const copy of [bad, unknown]) cpSync(good, copy, { recursive: true });
    const edit = (file: string, change: (text: string) => string): void => {
      writeFileSync(file, change(readFileSync(file, "utf8")));
    };
    edit(`${bad}/expected.json`, (text) => text.replace(/("loss": \d\.\d\d)\d/, (_, start) => `${start}9`));
    edit(`${unknown}/config.json`, (text) => text.replace('"model_type": "llama"', '"model_type": "lama"'));
    const { status, out } = reference(good, bad, unknown, "--json");
    assert.equal(status, 1);
    const verdicts = out.trim().split("\n").map((line) => JSON.parse(line));
    assert.deepEqual(verdicts.map(({ directory, arch, pass }) => [directory, arch, pass]), [
      [good, "llama", true],
      [bad, "llama", false],
      [unknown, "lama", false],
    ]);
    const names: string[] = verdicts[0].quantities.map((one: { readonly name: string }) => one.name);
    for (const name of ["logits", "masked_logits", "loss", "masked_loss", "grad.lm_head.weight", "final_weights"]) {
      assert.ok(names.includes(name), name);
    }
    const failed = verdicts[1].quantities.filter((one: { readonly pass: boolean }) => !one.pass);
    assert.deepEqual(failed.map((one: { readonly name: string }) => one.name), ["loss"]);
    edit(`${bad}/expected.json`, (text) => text.replace(/("masked_loss": )[\d.]+/, "$1NaN"));
    const [infinite] = reference(bad, "--json").out.trim().split("\n").map((line) => JSON.parse(line));
    const lost = infinite.quantities.find((one: { readonly name: string }) => one.name === "masked_loss");
    assert.deepEqual(lost, { name: "masked_loss", worst: null, allowed: null, pass: false });
    assert.match(verdicts[2].error, /Cannot build a model of model_type 'lama'/);
    const told = reference(good, "--runtime", "deno");
    assert.equal(told.status, 0);
    assert.match(told.out, /ok {3}\S+llama-odd \(llama\)\n {2}ok {3}logits .*\n1 passed, 0 failed\n$/s);
    const wrong = reference("--math", "abacus");
    assert.equal(wrong.status, 2);
    assert.match(
      wrong.err,
      /expected a directory, got nothing\n--math: expected auto, .* got 'abacus'\nUsage: npm run/,
    );
  } finally {
    rmSync(folder, { recursive: true });
  }
});

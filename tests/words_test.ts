/** Words that follow numbers and lists. @module */
import assert from "node:assert/strict";
import { test } from "node:test";
import { openDevice } from "../src/device/registry.ts";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import * as errors from "../src/errors.ts";
import { formatLogRecord } from "../src/runtime/log.ts";
import { countOf, shown, shownName, whichAre } from "../src/words.ts";
import { runCli } from "./launch/launcher.ts";

test("countOf() agrees with its noun", () => {
  assert.deepEqual([0, 1, 2].map((count) => countOf(count, "rank")), ["0 ranks", "1 rank", "2 ranks"]);
  assert.equal(countOf(2, "micro-batch", "micro-batches"), "2 micro-batches");
});

test("whichAre() lists names", async () => {
  assert.equal(whichAre(["llama", "qwen2", "gpt2"], "supported"), "'llama', 'qwen2' and 'gpt2' are supported");
  await assert.rejects(openDevice("tpu"), {
    name: "UnsupportedError",
    message: /^Cannot open device 'tpu': 'cpu'.* and '\w+' are available$/,
  });
});

/** Clears a screen, sets a title, by 7 and 8 bits, and turns the direction of text. */
const EVIL = "\u001b[2J\u001b]0;title\u0007\u009b2J\r\b\u007f\u202egpj";

/** True if neither a terminal nor a reader would take any of it for a control sequence. */
const isSafe = (text: string): boolean => shown(text) === text;

test("shown() makes escapes of what a terminal would obey, and leaves all else", () => {
  assert.equal(shown(EVIL), "\\u001b[2J\\u001b]0;title\\u0007\\u009b2J\\u000d\\u0008\\u007f\\u202egpj");
  const plain = "两 \u00a0é\tπ 🙂\n'layers.0' \\u001b";
  assert.equal(shown(plain), plain);
  assert.equal(shown(shown(EVIL)), shown(EVIL));
  assert.equal(shownName("a\nb\tc\u001b"), "a\\nb\\tc\\u001b");
  assert.equal(shownName("x".repeat(100), 8), "xxxxxxxx…");
});

test("no error and no line of a log lets a text of others control the terminal", () => {
  const facts = { group: EVIL, rank: 0, op: EVIL, sequence: 1 };
  const all = [
    new errors.ShapeError(EVIL, EVIL, [1]),
    new errors.DTypeError(EVIL, EVIL, EVIL),
    new errors.UseAfterDisposeError(EVIL),
    new errors.ArgumentError(EVIL),
    new errors.NativeError(EVIL, EVIL, 1, EVIL),
    new errors.LibraryNotFoundError(EVIL, [{ path: EVIL, reason: EVIL }], EVIL),
    new errors.FileError(EVIL, EVIL, EVIL),
    new errors.CollectiveError(facts, EVIL),
    new errors.RendezvousError(EVIL),
    new errors.ConfigError([{ path: EVIL, expected: EVIL, got: EVIL, where: EVIL }]),
    new errors.CheckpointError(EVIL, EVIL, EVIL),
    new errors.OutOfMemoryError(EVIL, 1, 1, 1, EVIL),
    new errors.NonFiniteError(EVIL),
    new errors.UnsupportedError(EVIL),
    new errors.GraphCaptureError(EVIL, EVIL),
    new errors.DivergenceError(EVIL),
    new errors.HazardError(EVIL),
    new errors.InternalError(EVIL),
  ];
  const classes = Object.values(errors).filter((one) => typeof one === "function" && /^class/.test(String(one)));
  assert.equal(all.length, classes.length);
  for (const { name, message } of all) {
    assert.ok(message.includes("\\u001b[2J"), name);
    assert.ok(isSafe(message), name);
  }
  assert.ok(isSafe(formatLogRecord({ time: 0, level: "warn", rank: 1, message: EVIL })));
});

/** A file with a header and one number. */
function safetensors(header: string): Uint8Array {
  const text = new TextEncoder().encode(header);
  return Uint8Array.from([...new Uint8Array(BigUint64Array.of(BigInt(text.length)).buffer), ...text, 0, 0, 0, 0]);
}

test("inspect shows names of a file, and of a file that is none, without what a terminal would obey", {
  timeout: 60_000,
}, async () => {
  const folder = mkdtempSync(`${tmpdir()}/words-`);
  try {
    const header = JSON.stringify({ [EVIL]: { dtype: "F32", shape: [1], data_offsets: [0, 4] } });
    writeFileSync(`${folder}/model.safetensors`, safetensors(header));
    for (const flags of [["--tensors"], ["--tensors", "--json"]]) {
      const { code, stdout, stderr } = await runCli(["inspect", folder, ...flags]);
      assert.equal(code, 0, stderr);
      assert.ok(stdout.includes("\\u001b[2J"), stdout);
      assert.ok(isSafe(stdout));
      if (flags.includes("--json")) assert.equal(JSON.parse(stdout).tensors[0].name, EVIL);
    }
    const wrong = JSON.stringify({ [EVIL]: { dtype: EVIL, shape: [1], data_offsets: [0, 4] } });
    writeFileSync(`${folder}/model.safetensors`, safetensors(wrong));
    const { code, stderr } = await runCli(["inspect", folder]);
    assert.notEqual(code, 0);
    assert.ok(stderr.includes("\\u001b[2J") && isSafe(stderr), stderr);
  } finally {
    rmSync(folder, { recursive: true });
  }
});

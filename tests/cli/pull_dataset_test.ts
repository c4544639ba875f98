/** `fullyshard pull` of data sets, and what takes them by their address. @module */
import assert from "node:assert/strict";
import * as fs from "node:fs";
import { describe } from "node:test";
import { fixturePath } from "../support/golden.ts";
import { sharedTest as it } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { COMMIT, NAME, pull, run, TestHub } from "./test_hub.ts";

const text = (value: unknown): Uint8Array => new TextEncoder().encode(JSON.stringify(value));

describe("fullyshard pull --repo-type dataset", () => {
  it("gets the files of rows and text, which hf://datasets names, and says what is not there", async () => {
    using temporary = temporaryDirectory();
    const parquet = fs.readFileSync(fixturePath("parquet/chats-zstd.parquet"));
    const chat = [{ role: "user", content: "Hi" }, { role: "assistant", content: "Ho" }];
    const files = new Map([
      ["README.md", text("read me")],
      ["data/train-00000-of-00001.parquet", parquet],
      ["data/test.jsonl", text({ messages: chat })],
      ["loader.py", text("code")],
      [".gitattributes", text("hidden")],
      ["../../outside.jsonl", text("leaves the folder")],
    ]);
    await using hub = await TestHub.open(files, "dataset");
    const { code, stdout, stderr } = await pull(hub, temporary.path, [NAME, "--repo-type", "dataset"]);
    assert.equal(code, 0, stderr);
    const folder = `${temporary.path}/datasets--tiny--llama-odd/snapshots/${COMMIT}`;
    assert.equal(stdout, `${folder}\n`);
    const there = fs.readdirSync(folder, { recursive: true, encoding: "utf8" });
    assert.deepEqual(there.sort(), ["data", "data/test.jsonl", "data/train-00000-of-00001.parquet"]);

    const template = fixturePath("chat/templates/chatml.jinja");
    const env = { HF_HUB_CACHE: temporary.path };
    const inspect = (data: string): ReturnType<typeof run> =>
      run(["inspect-data", data, "--chat-template", template, "--rows", "1"], env);
    const train = await inspect(`hf://datasets/${NAME}/data/train-*.parquet`);
    assert.equal(train.code, 0, train.stderr);
    assert.match(train.stdout, /train-00000-of-00001\.parquet:1: \d+ tokens, \d+ trained on\n[^]*\n40 samples of/);
    const all = await inspect(`hf://datasets/${NAME}@main`);
    assert.match(all.stdout, /\n41 samples of/, all.stderr);
    const absent = await inspect("hf://datasets/tiny/other/x.parquet");
    assert.equal(absent.code, 2);
    assert.ok(absent.stderr.includes("get it by: fullyshard pull tiny/other --repo-type dataset"), absent.stderr);
    const asModel = await pull(hub, temporary.path);
    assert.ok(asModel.stderr.includes("'--repo-type dataset' for a data set"), asModel.stderr);
  });
});

/** `fullyshard tokenizer`: the files it writes, against Python's, and what it leaves where it cannot. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { existsSync, readdirSync, readFileSync } from "node:fs";
import { describe } from "node:test";
import { fileURLToPath } from "node:url";
import { z } from "zod";
import { typescriptLib } from "../../examples/typescript_lib.ts";
import { openText } from "../../src/data/documents.ts";
import { loadTokenizer } from "../../src/data/tokenizer.ts";
import { trainTokenizer } from "../../src/data/train_tokenizer.ts";
import { ArgumentError, FileError } from "../../src/errors.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { longTest, sharedTest as it } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";

const root = fileURLToPath(new URL("../../", import.meta.url));
const bin = `${root}bin/fullyshard.mjs`;

function run(folder: TemporaryDirectory, ...args: readonly string[]) {
  const command = [bin, "--runtime", RUNTIME, "tokenizer", ...args];
  const { status, stdout, stderr } = spawnSync("node", command, { encoding: "utf8", cwd: folder.path });
  return { code: status, stdout, stderr };
}

/** The tokenizer that Python's trainer has learned: `tests/fixtures/tokenizer/make.py`. */
const MODEL = z.object({ vocab: z.record(z.string(), z.number()), merges: z.array(z.array(z.string())) });
const TOKENIZER = z.object({ model: MODEL });
const LEARNED = MODEL.extend({ corpus: z.array(z.string()), ids: z.array(z.array(z.number())) }).parse(
  JSON.parse(readFileSync(`${root}tests/fixtures/tokenizer/learned.json`, "utf8")),
);

const json = (file: string): unknown => JSON.parse(readFileSync(file, "utf8"));

describe("fullyshard tokenizer", () => {
  it("learns the tokenizer that Python's tokenizers learn from the same text", () => {
    using folder = temporaryDirectory();
    const { code, stdout, stderr } = run(folder, typescriptLib(), "--vocab", "4096", "--out", "made/mine");
    assert.equal(code, 0, stderr);
    assert.match(
      stdout,
      /^Reading 108 files, 3\.\d MiB\n4096 entries; a token stands for 4\.\d\d bytes\. Train with --tokenizer made\/mine\n$/,
    );
    assert.deepEqual(readdirSync(folder.file("made/mine")).sort(), ["tokenizer.json", "tokenizer_config.json"]);
    // The output of `scripts/train_tokenizer.py`.
    for (const name of ["tokenizer.json", "tokenizer_config.json"]) {
      assert.deepEqual(json(folder.file(`made/mine/${name}`)), json(`${root}examples/data/${name}`));
    }
  });

  it("takes files, folders and lines of JSON, and says where the text holds fewer entries", async () => {
    using folder = temporaryDirectory();
    folder.write("texts/a.txt", "the other one, the other two\n");
    folder.write("lines.jsonl", `${JSON.stringify({ body: "über 😀 über 😀 über" })}\n`);
    const { code, stdout, stderr } = run(folder, "--text-field", "body", "--vocab", "600", "texts", "lines.jsonl");
    assert.equal(code, 0, stderr);
    assert.match(stdout, /^Reading 2 files, .*\n2\d\d entries, as no more pairs occur twice; a token stands for/);
    const tokenizer = await loadTokenizer(folder.file("tokenizer"));
    assert.equal(tokenizer.eosId, 0);
    for (const text of ["the other über 😀", "\0 unseen: Ж 漢字\r\n\t ", "<|endoftext|>"]) {
      assert.equal(tokenizer.decode(tokenizer.encode(text)), text);
    }
    assert.equal(tokenizer.encode(" other über 😀").length, 3);
  });

  it("leaves a tokenizer that is there, unless told to replace it", () => {
    using folder = temporaryDirectory();
    folder.write("text", "a a a");
    folder.write("tokenizer/tokenizer.json", "{}");
    const { code, stderr } = run(folder, "text");
    assert.equal(code, 2);
    assert.match(stderr, /--out: expected a folder without a tokenizer, or --overwrite to replace it, got 'tokenizer'/);
    assert.equal(run(folder, "text", "--overwrite").code, 0);
    assert.notDeepEqual(json(folder.file("tokenizer/tokenizer.json")), {});
  });

  it("refuses wrong arguments, and makes no folder then", () => {
    using folder = temporaryDirectory();
    const { code, stderr } = run(folder, "nothing", "--vocab", "256");
    assert.equal(code, 2);
    assert.match(stderr, /--vocab: expected a number >= 257, got 256/);
    assert.match(run(folder, "nothing").stderr, /data: expected .* got 'nothing'/);
    assert.match(run(folder).stderr, /data: expected files to learn from, as arguments or by '--data', got nothing/);
    assert.deepEqual(readdirSync(folder.path), []);
  });

  longTest("trains with what it wrote", () => {
    using folder = temporaryDirectory();
    assert.equal(run(folder, `${root}src`, "--vocab", "512").code, 0);
    const command = [bin, "--runtime", RUNTIME, "run", `${root}examples/train.ts`, "--data", `${root}src/data/**/*.ts`];
    const { status, stderr } = spawnSync(
      "node",
      [
        ...command,
        ...["--tokenizer", "tokenizer", "--steps", "1", "--warmup-steps", "0", "--global-batch", "1"],
        ...["--sequence-length", "32", "--sample-tokens", "0", "--out", "run"],
      ],
      { encoding: "utf8", cwd: folder.path },
    );
    assert.equal(status, 0, stderr);
    for (const name of ["tokenizer.json", "tokenizer_config.json"]) {
      assert.deepEqual(json(folder.file(`run/model/${name}`)), json(folder.file(`tokenizer/${name}`)));
    }
  });
});

describe("trainTokenizer()", () => {
  it("refuses a vocabulary that does not hold every byte", async () => {
    await assert.rejects(trainTokenizer(openText([bin]), { vocabSize: 256 }), ArgumentError);
  });

  it("learns and encodes awkward texts as Python's tokenizers do", async () => {
    using folder = temporaryDirectory();
    const lines = LEARNED.corpus.map((text) => `${JSON.stringify({ text })}\n`).join("");
    const source = openText([folder.write("texts.jsonl", lines)]);
    const trained = await trainTokenizer(source, { vocabSize: 600 });
    trained.save(folder.path);
    const { model } = TOKENIZER.parse(json(folder.file("tokenizer.json")));
    assert.deepEqual(model.merges, LEARNED.merges);
    assert.deepEqual(model.vocab, LEARNED.vocab);
    const tokenizer = await loadTokenizer(folder.path);
    assert.deepEqual(LEARNED.corpus.map((text) => tokenizer.encode(text)), LEARNED.ids);
    assert.deepEqual(LEARNED.ids.map((ids) => tokenizer.decode(ids)), LEARNED.corpus);
    assert.equal(trained.vocabSize, Object.keys(model.vocab).length);
  });

  it("leaves no folder where it cannot be written", async () => {
    using folder = temporaryDirectory();
    const trained = await trainTokenizer(openText([folder.write("text", "a a")]), { vocabSize: 257 });
    assert.throws(() => trained.save(`${folder.file("text")}/below`), FileError);
    assert.throws(() => trained.save("/dev/full/tokenizer"), FileError);
    assert.ok(!existsSync(`${folder.file("text")}/below`));
  });
});

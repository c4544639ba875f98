/** `fullyshard generate`: the tokens of the API, streamed or as JSON, and what is refused. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { copyFileSync } from "node:fs";
import process from "node:process";
import { after, before } from "node:test";
import { fileURLToPath } from "node:url";
import { generate, launch, openModel } from "../../mod.ts";
import { loadTokenizer } from "../../src/data/tokenizer.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const TIMEOUT = { timeout: 60_000 };
const pathOf = (relative: string): string => fileURLToPath(new URL(relative, import.meta.url));
const folder = temporaryDirectory();
after(() => folder[Symbol.dispose]());
const model = folder.file("model");
const PROMPTS = ["the warm river", " 2 + 2 =\n"];

before(async () => {
  await using run = await launch();
  const sizes = { vocab_size: 401, hidden_size: 32, intermediate_size: 48, num_hidden_layers: 2 };
  const heads = { num_attention_heads: 4, max_position_embeddings: 64, initializer_range: 0.3 };
  const made = await openModel(run, { model_type: "llama", ...sizes, ...heads }, { seed: 3 });
  await made.load();
  await made.save(model);
  for (const name of ["tokenizer.json", "tokenizer_config.json"]) {
    copyFileSync(pathOf(`../fixtures/chat/bytes/${name}`), `${model}/${name}`);
  }
});

function fullyshard(...args: readonly string[]) {
  const command = [pathOf("../../bin/fullyshard.mjs"), "--runtime", RUNTIME, "generate", ...args];
  return spawnSync("node", command, { encoding: "utf8", env: { ...process.env, NO_COLOR: "1" } });
}

test("fullyshard generate continues texts by the tokens of generate(), each as it is asked", TIMEOUT, async () => {
  const flags = [...PROMPTS.flatMap((prompt) => ["--prompt", prompt]), "--max-new-tokens", "12", "--temperature", "0"];
  const told = fullyshard(model, ...flags, "--json");
  assert.equal(told.status, 0, told.stderr);
  const found = told.stdout.trimEnd().split("\n").map((line): unknown => JSON.parse(line));
  await using run = await launch();
  const opened = await openModel(run, model);
  await opened.load();
  const tokenizer = await loadTokenizer(model);
  const expected = PROMPTS.map((prompt) => {
    const { eosId = NaN } = tokenizer;
    const options = { maxNewTokens: 12, temperature: 0, eosId: [eosId, ...opened.eosIds] };
    const tokens = generate(opened, tokenizer.encode(prompt), options);
    return { prompt, text: tokenizer.decode(tokens), tokens };
  });
  assert.deepEqual(found, expected);
  const shown = fullyshard("--model", model, ...flags);
  assert.equal(shown.status, 0, shown.stderr);
  assert.equal(shown.stdout, expected.map(({ prompt, text }) => `${prompt}${text}\n`).join(""));
});

test("fullyshard generate ends where the model has no more positions, and refuses a text without room", TIMEOUT, () => {
  const { status, stdout, stderr } = fullyshard(model, "--prompt", "the warm river", "--seed", "7", "--json");
  assert.equal(status, 0, stderr);
  const { tokens }: { readonly tokens: readonly number[] } = JSON.parse(stdout);
  assert.ok(tokens.length > 0 && tokens.length < 64, stdout);
  const cases: readonly (readonly [args: readonly string[], expected: RegExp])[] = [
    [[model], /prompt: expected a text to continue, by '--prompt', got nothing/],
    [["--prompt", "a"], /model: expected a folder of a model, as an argument or by '--model', got nothing/],
    [[model, "--model", model, "--prompt", "a"], /model: expected a folder .*, got 2 of them/],
    [
      [model, "--prompt", "a", "--prompt", "word ".repeat(80)],
      /prompt\.1: expected from 1 to 63 tokens, as the model has 64 positions, got \d+ tokens/,
    ],
    [[model, "--prompt", ""], /prompt\.0: expected from 1 to 63 tokens, .*, got 0 tokens/],
    [[folder.file("none"), "--prompt", "a"], /none/],
  ];
  for (const [args, expected] of cases) {
    const refused = fullyshard(...args);
    assert.equal(refused.status, 2, refused.stdout + refused.stderr);
    assert.match(refused.stderr, expected);
    assert.equal(refused.stdout, "");
  }
});

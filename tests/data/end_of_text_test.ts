/**
 * The end-of-text token of a folder, in each place that may name it.
 *
 * @module
 */
import assert from "node:assert/strict";
import { describe, test } from "node:test";
import { openText } from "../../src/data/documents.ts";
import { packInMemory } from "../../src/data/token_stream.ts";
import { loadTokenizer, type Tokenizer } from "../../src/data/tokenizer.ts";
import { CheckpointError } from "../../src/errors.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const SPECIAL = { single_word: false, lstrip: false, rstrip: false, normalized: false, special: true };

/** Letters, and special tokens. */
function tokenizerOf(...special: readonly string[]): string {
  const added_tokens = special.map((content, i) => ({ id: 3 + i, content, ...SPECIAL }));
  return JSON.stringify({ added_tokens, model: { type: "BPE", vocab: { a: 0, b: 1, c: 2 }, merges: [] } });
}

type Files = Readonly<Record<string, unknown>>;

async function load(
  files: Files,
  special: readonly string[] = ["<one>", "<two>"],
  eosToken?: string,
): Promise<Tokenizer> {
  using directory = temporaryDirectory();
  directory.write("tokenizer.json", tokenizerOf(...special));
  for (const [name, value] of Object.entries(files)) directory.write(`${name}.json`, JSON.stringify(value));
  return await loadTokenizer(directory.path, { eosToken });
}

describe("loadTokenizer() takes the end of text from", () => {
  const decoder = { added_tokens_decoder: { 3: { content: "<one>", ...SPECIAL } } };
  const cases: readonly (readonly [string, Files, number | undefined, RegExp | undefined])[] = [
    ["tokenizer_config.json", { tokenizer_config: { eos_token: "<two>" } }, 4, undefined],
    ["an object there", { tokenizer_config: { eos_token: { content: "<two>", ...SPECIAL } } }, 4, undefined],
    ["special_tokens_map.json", { special_tokens_map: { eos_token: "<two>" } }, 4, undefined],
    ["an object there", { special_tokens_map: { eos_token: { content: "<one>" } } }, 3, undefined],
    ["generation_config.json", { generation_config: { eos_token_id: 4 } }, 4, undefined],
    ["config.json", { config: { eos_token_id: 3 } }, 3, undefined],
    ["text_config", { config: { text_config: { eos_token_id: 3 } } }, 3, undefined],
    ["the first of several", { config: { eos_token_id: [4, 3] } }, 4, /end with "<two>" \(4\), by .*names 4, 3/],
    [
      "tokenizer_config.json before the model's files",
      { tokenizer_config: { eos_token: "<one>" }, config: { eos_token_id: 4 } },
      3,
      /end with "<one>" \(3\), by \S*tokenizer_config\.json; \S*\/config\.json names 4, which ends what is generated$/,
    ],
    [
      "tokenizer_config.json where the model has it among others",
      { tokenizer_config: { eos_token: "<one>" }, generation_config: { eos_token_id: [4, 3] } },
      3,
      undefined,
    ],
    [
      "generation_config.json before config.json",
      { generation_config: { eos_token_id: 4 }, config: { eos_token_id: 3 } },
      4,
      /by \S*generation_config\.json; \S*\/config\.json names 3/,
    ],
    [
      "special_tokens_map.json before an old tokenizer_config.json",
      { tokenizer_config: { eos_token: "<one>" }, special_tokens_map: { eos_token: "<two>" } },
      4,
      /by \S*special_tokens_map\.json; \S*tokenizer_config\.json names 3$/,
    ],
    [
      "tokenizer_config.json that has all added tokens before special_tokens_map.json",
      { tokenizer_config: { eos_token: "<one>", ...decoder }, special_tokens_map: { eos_token: "<two>" } },
      3,
      /by \S*tokenizer_config\.json; \S*special_tokens_map\.json names 4$/,
    ],
    ["elsewhere where it is empty", { tokenizer_config: { eos_token: "" }, config: { eos_token_id: 3 } }, 3, undefined],
    [
      "elsewhere where its content is empty",
      {
        tokenizer_config: { eos_token: { content: "" } },
        special_tokens_map: { eos_token: "" },
        generation_config: { eos_token_id: [] },
        config: { eos_token_id: 4 },
      },
      4,
      undefined,
    ],
    [
      "elsewhere where it is null",
      {
        tokenizer_config: { eos_token: null },
        special_tokens_map: {},
        generation_config: { eos_token_id: null },
        config: { eos_token_id: 4 },
      },
      4,
      undefined,
    ],
    ["nowhere", { config: { eos_token_id: null } }, undefined, undefined],
  ];
  for (const [place, files, id, note] of cases) {
    test(`${place} (${Object.keys(files).join(", ")})`, async () => {
      const { eosId, eosNote } = await load(files);
      assert.equal(eosId, id);
      if (note === undefined) assert.equal(eosNote, undefined);
      else assert.match(eosNote ?? "", note);
    });
  }

  test("a special added token with a usual name, if there is one", async () => {
    const only = await load({}, ["<pad>", "<|endoftext|>"]);
    assert.equal(only.eosId, 4);
    assert.match(
      only.eosNote ?? "",
      /end with "<\|endoftext\|>" \(4\), an added token of .*: no file names an end of text/,
    );
    assert.equal((await load({}, ["</s>", "<|endoftext|>"])).eosId, undefined);
  });

  test("eosToken before all files", async () => {
    const files = { tokenizer_config: { eos_token: "<one>" }, config: { eos_token_id: 99 } };
    assert.equal((await load(files, ["<one>", "<two>"], "<two>")).eosId, 4);
    assert.equal((await load(files, ["<one>", "<two>"], "b")).eosId, 1);
    await assert.rejects(
      load(files, ["<one>"], "<no>"),
      /the end-of-text token must be in the vocabulary of .* got "<no>"/,
    );
  });

  test("a token that added_tokens_decoder adds", async () => {
    const added = { added_tokens_decoder: { 5: { content: "<new>", ...SPECIAL } }, eos_token: "<new>" };
    const tokenizer = await load({ tokenizer_config: added });
    assert.equal(tokenizer.eosId, 5);
    assert.equal(tokenizer.vocabSize, 6);
    assert.deepEqual(tokenizer.encode("a<new>b<one>"), [0, 5, 1, 3]);
    const moved = { added_tokens_decoder: { 9: { content: "<new>", ...SPECIAL } } };
    await assert.rejects(
      load({ tokenizer_config: moved }),
      /added_tokens_decoder\.9\.content: expected the token of id 9, got .*5/,
    );
    const strips = { added_tokens_decoder: { 3: { content: "<one>", ...SPECIAL, lstrip: true } } };
    assert.deepEqual((await load({ tokenizer_config: strips })).encode("a <one>"), [0, 3]);
  });
});

test("loadTokenizer() refuses an end of text that is none, naming the file", async () => {
  const refused = async (files: Files, file: string, message: RegExp): Promise<void> => {
    await assert.rejects(load(files), (error) => {
      assert.ok(error instanceof CheckpointError, String(error));
      assert.ok(error.file.endsWith(`/${file}`), error.file);
      assert.match(error.message, message);
      return true;
    });
  };
  await refused(
    { special_tokens_map: { eos_token: "<no>" } },
    "special_tokens_map.json",
    /must be in the vocabulary of .*"<no>"/,
  );
  await refused(
    { tokenizer_config: { eos_token: 3 } },
    "tokenizer_config.json",
    /eos_token must be a string or have one/,
  );
  await refused(
    { config: { eos_token_id: 99 } },
    "config.json",
    /eos_token_id: expected an id of .*, got 99; set --eos-token/,
  );
  await refused(
    { generation_config: { eos_token_id: "3" } },
    "generation_config.json",
    /expected a token id or a list .* got "3"/,
  );
  await refused(
    { config: { eos_token_id: [3, -1] } },
    "config.json",
    /expected a token id or a list of ids, got \[3,-1\]/,
  );
});

test("packInMemory() without an end of text names all places that were looked at, and the flag", async () => {
  using directory = temporaryDirectory();
  const source = openText([directory.write("a.txt", "abc")]);
  await assert.rejects(packInMemory(source, await load({})), (error) => {
    assert.ok(error instanceof CheckpointError);
    const places = [
      "tokenizer_config.json",
      "special_tokens_map.json",
      "generation_config.json and config.json",
      "<|endoftext|>",
    ];
    for (const place of places) assert.ok(error.message.includes(place), place);
    assert.match(error.message, /set --eos-token \(eosToken\)/);
    return true;
  });
});

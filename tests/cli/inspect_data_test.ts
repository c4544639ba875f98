/** `fullyshard inspect-data`: what it shows of rows, and what is refused of them, as a run refuses it. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";
import { inspectData, markedText } from "../../src/cli/inspect_data.ts";
import { loadTokenizer } from "../../src/data/tokenizer.ts";
import { isOneOf, USAGE_ERRORS } from "../../src/errors.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const pathOf = (relative: string): string => fileURLToPath(new URL(relative, import.meta.url));
const fixture = (name: string): string => pathOf(`../fixtures/chat/${name}`);
const TOKENIZER = ["--tokenizer", fixture("bytes")];
const FLAGS = [...TOKENIZER, "--chat-template", fixture("templates/chatml.jinja"), "--sequence-length", "64"];

const SILENT = { write: () => undefined, hasColors: false };

async function refuses(argv: readonly string[], said: RegExp): Promise<void> {
  await assert.rejects(inspectData(argv, SILENT), (error) => {
    assert.ok(error instanceof Error && isOneOf(error, USAGE_ERRORS), String(error));
    assert.match(error.message, said);
    return true;
  });
}

test("fullyshard inspect-data shows rows with what is trained on in brackets, and counts all of them", () => {
  using folder = temporaryDirectory();
  const rows = [
    { messages: [{ role: "user", content: "Hi" }, { role: "assistant", content: "Ça va\n?" }] },
    { prompt: [{ role: "user", content: "2 + 2?" }], completion: [{ role: "assistant", content: "4" }] },
    { prompt: "2 + 2 = ", completion: "4" },
    { conversations: [{ from: "human", value: "Hi" }, { from: "gpt", value: "Ho" }] },
    { instruction: "Add", input: "1 and 2", output: "3" },
  ];
  const data = folder.write("rows.jsonl", rows.map((row) => JSON.stringify(row)).join("\n"));
  const bin = pathOf("../../bin/fullyshard.mjs");
  const flags = [...FLAGS.slice(0, 4), "--rows", "5", "--sequence-length", "100"];
  const command = [bin, "--runtime", RUNTIME, "inspect-data", data, ...flags];
  const { status, stdout, stderr } = spawnSync("node", command, { encoding: "utf8" });
  assert.equal(status, 0, stderr);
  const turn = (role: string, text: string): string => `<|im_start|>${role}\n${text}<|im_end|>\n`;
  const chat = (user: string, answer: string): string =>
    `${turn("system", "Be brief.")}${turn("user", user)}<|im_start|>assistant\n[[${answer}<|im_end|>\n]]`;
  const shown = [
    ...[chat("Hi", "Ça va\n?"), chat("2 + 2?", "4"), "2 + 2 =[[ 4</s>]]", chat("Hi", "Ho")],
    chat("Add\n1 and 2", "3"),
  ];
  const blocks = stdout.split(/^.*rows\.jsonl:\d+: \d+ tokens, \d+ trained on\n/m).slice(1);
  assert.deepEqual(blocks.map((block) => block.split("\n\n5 samples")[0]?.replace(/\n\n$/, "")), shown);
  assert.match(stdout, /\n5 samples of at most 100 tokens, \d+ in all, \d+ of them \([\d.]+ %\) trained on\n$/);
});

test("fullyshard inspect-data shows both answers of a preference, and refuses one without an answer by line", async () => {
  using folder = temporaryDirectory();
  const [good, bad] = [{ prompt: "2 + 2 =", chosen: " 4", rejected: " five" }, { prompt: "2 + 2 =", chosen: " 4" }];
  const data = folder.write("pairs.jsonl", `${JSON.stringify(good)}\n${JSON.stringify(bad)}\n`);
  const flags = [data, "--preference", "dpo", ...FLAGS];
  await refuses(
    flags,
    /pairs\.jsonl:2: data: expected the columns "chosen" and "rejected", .*, got "prompt", "chosen"/,
  );
  await refuses([...flags, "--loss-on", "all"], /lossOn: expected nothing with preference/);
  const parts: string[] = [];
  await inspectData([...flags, "--skip-bad-rows"], { write: (text) => void parts.push(text), hasColors: false });
  const shown = parts.join("");
  assert.match(shown, /pairs\.jsonl:1: chosen, \d+ tokens, 2 trained on\n2 \+ 2 =\[\[ 4<\/s>\]\]\n/);
  assert.match(shown, /pairs\.jsonl:1: rejected, \d+ tokens, \d+ trained on\n2 \+ 2 =\[\[ five<\/s>\]\]\n/);
  assert.match(shown, /\n1 pair of answers of at most 64 tokens, .*\nSkipped 1 row that did not fit: /);
});

test("fullyshard inspect-data takes tokenizer and template of a model's folder, and says how to get one of the Hub", async () => {
  using folder = temporaryDirectory();
  const row = { messages: [{ role: "user", content: "Hi" }, { role: "assistant", content: "Ho" }] };
  const data = folder.write("rows.jsonl", `${JSON.stringify(row)}\n`);
  for (const name of ["tokenizer.json", "tokenizer_config.json"]) {
    folder.write(`model/${name}`, readFileSync(fixture(`bytes/${name}`), "utf8"));
  }
  folder.write("model/chat_template.jinja", readFileSync(fixture("templates/chatml.jinja"), "utf8"));
  const shownBy = async (...flags: readonly string[]): Promise<string> => {
    const parts: string[] = [];
    await inspectData([data, ...flags], { write: (text) => void parts.push(text), hasColors: false });
    return parts.join("");
  };
  assert.equal(await shownBy("--model", folder.file("model"), "--sequence-length", "64"), await shownBy(...FLAGS));
  await assert.rejects(shownBy("--model", "nobody/nothing"), /get it by: fullyshard pull nobody\/nothing/);
});

test("markedText() colors what is trained on where there are colors, and gives all text", async () => {
  const tokenizer = await loadTokenizer(fixture("pieces"));
  const ids = Int32Array.from(tokenizer.encode("<|user|>\nHello you<|assistant|>\n Good 2 + 2<|end|>"));
  const labels = ids.map((id, i) => i > ids.length - 5 ? id : -100);
  const plain = markedText({ ids, labels }, tokenizer, false);
  assert.match(plain, /\[\[.+\]\]$/);
  assert.equal(plain.replace("[[", "").replace("]]", ""), tokenizer.decode(ids));
  const colored = markedText({ ids, labels }, tokenizer, true);
  assert.equal(colored, plain.replace("[[", "\x1b[33m").replace("]]", "\x1b[39m"));
});

const answer = '{"role": "assistant", "content": "b"}';
const good = `{"messages": [{"role": "user", "content": "a"}, ${answer}]}\n`;
const refused: readonly (readonly [what: string, name: string, contents: string | Uint8Array, said: RegExp])[] = [
  [
    "a row with no column that is known",
    "a.jsonl",
    `${good}{"chat": []}\n`,
    /a\.jsonl:2: data: expected the columns "messages".*got "chat"/,
  ],
  [
    "a role that is missing",
    "a.jsonl",
    `${good}{"messages": [{"from": "human", "value": "x"}]}\n`,
    /a\.jsonl:2: .*under "role" of messages\[0\], got the keys "from", "value"; "from" and "value" stand under "conversations"/,
  ],
  [
    "content that is no text",
    "a.jsonl",
    `{"messages": [{"role": "user", "content": 7}]}\n`,
    /a\.jsonl:1: .*text as messages\[0\]\.content.*, got 7/,
  ],
  [
    "a turn that counts nothing",
    "a.jsonl",
    `{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}, ${answer}]}\n`,
    /a\.jsonl:1: .*no "weight" but 1 in messages\[1\], as the loss counts all turns of a kind alike \(lossOn\), got 0/,
  ],
  [
    "a chat without an assistant",
    "a.jsonl",
    `${good}{"messages": [{"role": "user", "content": "x"}]}\n`,
    /a\.jsonl:2: data: expected a token to train on, got messages of 'user' only/,
  ],
  [
    "an answer that is cut off",
    "a.jsonl",
    `{"messages": [{"role": "user", "content": "${"x ".repeat(200)}"}, ${answer}]}\n`,
    /a\.jsonl:1: .*a token to train on among the first 64, got \d+ tokens, and the first to train on is number \d+/,
  ],
  [
    "bytes that are no UTF-8",
    "a.jsonl",
    new Uint8Array([...new TextEncoder().encode(good), 0x22, 0xff, 0x0a]),
    /a\.jsonl:2: data: expected UTF-8 text, got byte 0xff at byte 1/,
  ],
  [
    "gzip that is cut off",
    "a.jsonl.gz",
    gzipSync(good.repeat(100)).subarray(0, -9),
    /Cannot unpack '.*a\.jsonl\.gz': it ends in the middle of what gzip wrote/,
  ],
  [
    "an array that is cut off",
    "a.json",
    `[${good}`,
    /a\.json:2: data: expected a JSON array of objects, got the end of the file/,
  ],
];

for (const [what, name, contents, said] of refused) {
  test(`fullyshard inspect-data refuses ${what}, by file and line`, async () => {
    using folder = temporaryDirectory();
    await refuses([folder.write(name, contents), ...FLAGS], said);
  });
}

test("fullyshard inspect-data refuses what does not fit what the loss is to be on", async () => {
  using folder = temporaryDirectory();
  const chat = folder.write("chat.jsonl", good);
  const prompt = folder.write("prompt.jsonl", '{"prompt": "a", "completion": "b"}');
  const text = folder.write("text.txt", "words");
  await refuses(
    [chat, ...FLAGS, "--loss-on", "completion"],
    /chat\.jsonl:1: data: expected a prompt and a completion, .*got a chat under "messages": name its turns by '--loss-on assistant'/,
  );
  await refuses(
    [prompt, ...FLAGS, "--loss-on", "assistant"],
    /prompt\.jsonl:1: data: expected a chat, .*without roles: '--loss-on completion'/,
  );
  await refuses(
    [text, ...FLAGS],
    /data: expected rows of chats, or of prompts with completions: the columns 'messages', .*, got '.*text\.txt', which is text: a run trains on all of it/,
  );
  const wrong = folder.write("wrong.jsonl", '{"id": 1, "body": "b"}');
  const plain = folder.write("plain.jsonl", '{"text": "b"}');
  const empty = folder.write("empty.jsonl", "");
  await refuses(
    [wrong, plain, empty, ...FLAGS],
    /got '.*empty\.jsonl', which has no row; '.*plain\.jsonl', whose .* 'text': a run takes 'text' for text, and trains on all of it; '.*wrong\.jsonl', whose first row has the columns 'id', 'body'/,
  );
  await refuses(
    [chat, text, ...FLAGS],
    /text\.txt: data: expected rows, as other files of the data are chats, got a file/,
  );
});

test("fullyshard inspect-data names marks of a template that the tokenizer has no token for", async () => {
  using folder = temporaryDirectory();
  const data = folder.write(
    "a.jsonl",
    '{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}',
  );
  const said = async (mark: string): Promise<string> => {
    const template = folder.write(
      "t.jinja",
      `{% for m in messages %}${mark}{{ m.role + m.content }}<|im_end|>{% endfor %}`,
    );
    const lines: string[] = [];
    const write = (text: string): void => void lines.push(text);
    assert.equal(await inspectData([data, ...TOKENIZER, "--chat-template", template], { write, hasColors: false }), 0);
    return lines.join("");
  };
  for (const mark of ["<|turn_of|>", "<start_of_words>"]) {
    const count = (await loadTokenizer(fixture("bytes"))).encode(mark).length;
    const text = await said(mark);
    assert.ok(text.includes(`one token, got ${count} for ${mark}. They are trained on as any text`), text);
    assert.match(
      text,
      /^The chat template of '.*t\.jinja' writes marks that the tokenizer '.*bytes\/tokenizer\.json' does not have/,
    );
  }
  assert.match(await said("<|im_start|>"), /^.*a\.jsonl:1: \d+ tokens/);
});

test("fullyshard inspect-data refuses a tokenizer without a template, and a template that refuses or rewrites", async () => {
  using folder = temporaryDirectory();
  const turns = [1, 2].map((i) => `{"role": "user", "content": "a${i}"}, {"role": "assistant", "content": "b${i}"}`);
  const data = folder.write("a.jsonl", `{"messages": [${turns.join(", ")}]}`);
  await refuses(
    [data, ...TOKENIZER, "--skip-bad-rows"],
    /chatTemplate: expected a chat template: .*got none beside '.*bytes\/tokenizer\.json', and chats to train on/,
  );
  const templates: readonly (readonly [string, RegExp])[] = [
    [
      "{{ raise_exception('No ' + messages[0].role + '!') }}",
      /a\.jsonl:1: data: expected a chat that the template of '.*t\.jinja' takes, got one that it refuses: No user!/,
    ],
    [
      "{% for m in messages %}{{ m.role + (m.content if loop.last else '') }}{% endfor %}",
      /t\.jinja' takes, got it rewrites earlier turns: the text of messages 0 to 1 alone goes on with/,
    ],
    ["{{ messages[0].content | nothing }}", /a\.jsonl:1: .*got it fails: /],
    ["{% for %}", /t\.jinja: The chat template must be Jinja: /],
    [
      "{% for m in messages %}{{ m.content }}{% break %}{% endfor %}",
      /a chat template with {% break %} is not supported/,
    ],
    [
      "{% set x %}{% generation %} a {% endgeneration %}{% endset %}{{ x | trim }}",
      /a\.jsonl:1: .*got what lies between {% generation %} and {% endgeneration %} is changed/,
    ],
    [
      "{% generation %}{% endgeneration %}no answer",
      /a\.jsonl:1: data: expected a token to train on, got none that '.*t\.jinja' writes for the messages of 'user', 'assistant'/,
    ],
  ];
  for (const [source, said] of templates) {
    await refuses([data, ...TOKENIZER, "--chat-template", folder.write("t.jinja", source)], said);
  }
});

test("fullyshard inspect-data takes the template beside the tokenizer, as transformers does", async () => {
  using folder = temporaryDirectory();
  const data = folder.write("a.jsonl", good);
  const tools = folder.write("tools.jsonl", good.replace("}\n", `, "tools": ${JSON.stringify('[{"name": "f"}]')}}\n`));
  const read = (name: string): string => readFileSync(fixture(`bytes/${name}`), "utf8");
  const config: object = JSON.parse(read("tokenizer_config.json"));
  folder.write("t/tokenizer.json", read("tokenizer.json"));
  const flags = (file: string): string[] => [file, "--tokenizer", folder.file("t")];
  const throws = (word: string): string => `{{ raise_exception('${word}') }}`;
  const write = (value: unknown): void =>
    void folder.write("t/tokenizer_config.json", JSON.stringify({ ...config, chat_template: value }));
  write(throws("one text"));
  await refuses(flags(data), /that it refuses: one text/);
  write([{ name: "default", template: throws("default") }, { name: "tool_use", template: throws("tool") }]);
  await refuses(flags(data), /that it refuses: default/);
  await refuses(flags(tools), /that it refuses: tool/);
  write([{ name: "rag", template: "x" }]);
  await refuses(flags(data), /chat_template must have one named "default", got "rag": write the one that you mean/);
  write(7);
  await refuses(flags(data), /chat_template must be a text or a list of named ones, got 7/);
  folder.write("t/chat_template.jinja", throws("the file"));
  await refuses(flags(data), /that it refuses: the file/);
});

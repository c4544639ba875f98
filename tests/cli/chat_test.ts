/** `fullyshard chat` on a terminal: answers, history, Ctrl-C, commands; and what is refused. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { after } from "node:test";
import { fileURLToPath } from "node:url";
import process from "node:process";
import { generate, launch, openModel } from "../../mod.ts";
import { loadChatTemplates } from "../../src/data/chat/load_template.ts";
import { loadTokenizer } from "../../src/data/tokenizer.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { longTest, sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { run } from "../train/runs.ts";

const TIMEOUT = { timeout: 180_000 };
const pathOf = (relative: string): string => fileURLToPath(new URL(relative, import.meta.url));
const BIN = pathOf("../../bin/fullyshard.mjs");
const fixture = (name: string): string => pathOf(`../fixtures/chat/${name}`);

const folder = temporaryDirectory();
after(() => folder[Symbol.dispose]());
let made: Promise<string> | undefined;

/** A model that has learned to answer "Hi", and that goes on without end when told "Go"; an adapter for it lies beside it. */
async function makeModel(): Promise<string> {
  const chat = (user: string, assistant: string): string =>
    JSON.stringify({ messages: [{ role: "user", content: user }, { role: "assistant", content: assistant }] });
  const data = folder.write("chats.jsonl", `${chat("Hi", "Hello.")}\n${chat("Go", "ab".repeat(100))}\n`);
  const flags = ["--data", data, "--sequence-length", "96", "--global-batch", "2", "--sample-tokens", "0"];
  const places = ["--cache", folder.file("cache"), "--log-every", "50"];
  const template = folder.write(
    "template.jinja",
    "{% for message in messages %}{{ message['role'][0] + ':' + message['content'] + eos_token }}{% endfor %}" +
      "{% if add_generation_prompt %}a:{% endif %}",
  );
  const first = ["--tokenizer", fixture("bytes"), "--chat-template", template];
  const how = { ranks: 1, script: pathOf("scripts/talker.ts") };
  const rate = ["--learning-rate", "0.01", "--steps", "60", "--out", folder.file("base")];
  const ended = await run([...first, ...flags, ...places, ...rate], how);
  assert.equal(ended.code, 0, ended.stderr);
  const model = folder.file("base/model");
  const other = folder.write("other.jsonl", `${chat("Hi", "abababab")}\n`.repeat(2));
  const lora = ["--model", model, "--lora-r", "8", "--lora-alpha", "32", "--learning-rate", "0.01", "--steps", "80"];
  const more = ["--data", other, "--out", folder.file("adapter")];
  const adapted = await run([...flags, ...places, ...lora, ...more], how);
  assert.equal(adapted.code, 0, adapted.stderr);
  return model;
}

/** Talks on a terminal. Each text is typed when what was printed since the last one matches. */
function talk(steps: readonly (readonly [pattern: string, text: string])[], ...args: readonly string[]): string {
  const command = ["node", BIN, "--runtime", RUNTIME, "chat", ...args, "--temperature", "0"];
  const { status, stdout, stderr } = spawnSync(
    "python3",
    [pathOf("in_terminal.py"), JSON.stringify(steps), ...command],
    { encoding: "utf8", env: { ...process.env, NO_COLOR: "1" } },
  );
  assert.equal(status, 0, stdout + stderr);
  return stdout.replaceAll("\r\n", "\n");
}

test(
  "fullyshard chat streams answers of the template and the history, and forgets it with /reset",
  TIMEOUT,
  async () => {
    const model = await (made ??= makeModel());
    const printed = talk(
      [
        ["> $", "Hi\n"],
        ["Hello\\..*> $", "Hi\n"],
        ["\n> $", "/reset\n"],
        ["> $", "Hi\n"],
        ["\n> $", "/what\n"],
        ["There is no '/what'.*> $", "/exit\n"],
      ],
      model,
      "--max-new-tokens",
      "20",
    );
    const answers = printed.split("> ").slice(1).map((part) => part.split("\n").slice(1, -1).join("\n"));
    const expected = await expectedAnswers(model);
    assert.equal(answers[0], "Hello.");
    assert.deepEqual([answers[0], answers[1], answers[3]], [expected[0], expected[1], expected[0]], printed);
  },
);

/** Answers to "Hi" twice, by the API alone. */
async function expectedAnswers(folderName: string): Promise<readonly string[]> {
  await using own = await launch();
  const model = await openModel(own, folderName);
  await model.load();
  const tokenizer = await loadTokenizer(folderName);
  const templates = await loadChatTemplates(tokenizer.path);
  const messages: { role: string; content: string }[] = [];
  const answers: string[] = [];
  for (const _ of [1, 2]) {
    messages.push({ role: "user", content: "Hi" });
    const text = templates?.pick(false).render({ messages, addGenerationPrompt: true }) ?? "";
    const eosId = [tokenizer.eosId ?? -1, ...model.eosIds];
    const ids = generate(model, tokenizer.encode(text), { maxNewTokens: 20, temperature: 0, eosId });
    const content = tokenizer.decode(ids);
    messages.push({ role: "assistant", content });
    answers.push(content);
  }
  return answers;
}

test("Ctrl-C stops an answer and keeps it, a second one at the prompt ends the program", TIMEOUT, async () => {
  const model = await (made ??= makeModel());
  const printed = talk(
    [
      ["> $", "Go\n"],
      ["(?:ab){20}", "\u0003"],
      ["\n> $", "Hi\n"],
      ["\n> $", "\u0003"],
      ["Ctrl-C again, or /exit, ends.*> $", "/reset\n"],
      ["> $", "Hi\n"],
      ["Hello\\.\r\n> $", "\u0003"],
      ["Ctrl-C again.*> $", "\u0003"],
    ],
    model,
    "--max-new-tokens",
    "1900",
  );
  const stopped = /Go\n((?:ab)+)/.exec(printed)?.[1] ?? "";
  assert.ok(stopped.length >= 40 && stopped.length < 1900, `${stopped.length} characters before it stopped`);
});

longTest("fullyshard chat takes an adapter and a system's message, and ends with its input", TIMEOUT, async () => {
  const model = await (made ??= makeModel());
  assert.match(
    talk([["> $", "Hi\n"], ["(?:ab){4}\r\n> $", "\u0004"]], model, "--adapter", folder.file("adapter/model")),
    /\nabababab\n/,
  );
  // Another text before the chat gives another answer.
  const told = talk([["> $", "Hi\n"], ["\n> $", "/exit\n"]], model, "--system", "Go ab ab", "--max-new-tokens", "20");
  assert.ok(!told.includes("Hello.\n"), told);
});

test("fullyshard chat names what is missing", TIMEOUT, async () => {
  const of = (...args: readonly string[]): string =>
    spawnSync("node", [BIN, "--runtime", RUNTIME, "chat", ...args], { encoding: "utf8", input: "" }).stderr;
  assert.match(
    of(),
    /fullyshard chat: .*model: expected a folder of a model, as an argument or by '--model', got nothing/s,
  );
  assert.match(of("no/where"), /no\/where/);
  const model = await (made ??= makeModel());
  assert.match(
    of(model, "--tokenizer", fixture("bytes")),
    /chatTemplate: expected a chat template beside the tokenizer/,
  );
});

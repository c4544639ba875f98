/** `fullyshard eval`: figures against transformers' log-likelihoods and against the trainer's own, and what is refused. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { fileURLToPath } from "node:url";
import { evalModel } from "../../src/cli/eval.ts";
import { isOneOf, USAGE_ERRORS } from "../../src/errors.ts";
import { evaluate, launch, openModel, textData } from "../../mod.ts";
import { saveCheckpoint } from "../../doors/checkpoint.ts";
import { zooModels } from "../../scripts/zoo/families.ts";
import { fixturePath } from "../support/golden.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { longTest, sharedTest } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { flagsIn, metricLines, run as runRanks } from "../train/runs.ts";

const BIN = fileURLToPath(new URL("../../bin/fullyshard.mjs", import.meta.url));
const MODEL = fixturePath("choices/llama");
const WASM = ["--cpu-math", "wasm"];
const tokenizerOf = (kind: string): readonly string[] => ["--tokenizer", fixturePath(`chat/${kind}`)];

const RULES = ["acc", "acc_norm", "acc_bytes"] as const;
type Rule = typeof RULES[number];

/** The figures of a set of questions, by this library's names and in the fixture. */
type Figures = { readonly [Key in Rule | `${Rule}_stderr`]: number };

interface Sample extends Readonly<Record<Rule, number>> {
  readonly file: string;
  readonly line: number;
  readonly answer: number;
  readonly log_likelihoods: readonly number[];
}

/** A set in the JSON. */
interface MeasuredJson extends Figures {
  readonly name?: string;
  readonly loss: number;
  readonly perplexity: number;
  readonly mean_token_accuracy: number;
  readonly tokens: number;
  readonly questions: number;
  readonly cut: number;
  readonly skipped: number;
  readonly answers: readonly Sample[];
}

interface ExpectedCase extends Figures {
  readonly rows: readonly unknown[];
  readonly tokenizer: string;
  readonly add_bos_token: boolean;
  readonly log_likelihoods: readonly (readonly number[])[];
  readonly margin: number;
}

const EXPECTED: {
  readonly cases: readonly ExpectedCase[];
  readonly cut: ExpectedCase;
} = JSON.parse(readFileSync(fixturePath("choices/expected.json"), "utf8"));

const lines = (rows: readonly unknown[]): string => rows.map((row) => `${JSON.stringify(row)}\n`).join("");

/** What the command prints. */
async function printed(...argv: readonly string[]): Promise<string> {
  const parts: string[] = [];
  assert.equal(await evalModel([...argv, ...WASM], (text) => void parts.push(text)), 0);
  return parts.join("");
}

async function measured(...argv: readonly string[]): Promise<readonly MeasuredJson[]> {
  const { sets }: { readonly sets: readonly MeasuredJson[] } = JSON.parse(await printed(...argv, "--json"));
  return sets;
}

async function refuses(argv: readonly string[], ...said: readonly RegExp[]): Promise<void> {
  await assert.rejects(evalModel([...argv, ...WASM], () => undefined), (error) => {
    assert.ok(error instanceof Error && isOneOf(error, USAGE_ERRORS), String(error));
    for (const pattern of said) assert.match(error.message, pattern);
    return true;
  });
}

function isAsExpected(
  got: MeasuredJson | undefined,
  expected: Omit<ExpectedCase, "tokenizer" | "add_bos_token" | "rows">,
): void {
  assert.ok(got !== undefined);
  for (const rule of RULES) {
    assert.equal(got[rule], expected[rule], rule);
    assert.ok(Math.abs(got[`${rule}_stderr`] - expected[`${rule}_stderr`]) < 1e-12, `${rule}_stderr`);
  }
  assert.equal(got.questions, expected.log_likelihoods.length);
  assert.ok(expected.margin > 1e-3, "rounding could change an answer");
  for (const [row, likelihoods] of expected.log_likelihoods.entries()) {
    const { log_likelihoods: own }: Sample = got.answers[row] ?? assert.fail();
    assert.equal(own.length, likelihoods.length);
    for (const [i, want] of likelihoods.entries()) {
      const value = own[i] ?? NaN;
      assert.ok(
        Math.abs(value - want) <= 2e-6 * Math.abs(want),
        `row ${row}, choice ${i}: ${value}, ${want} by transformers`,
      );
    }
  }
}

const [{ rows: QUIZ } = assert.fail()] = EXPECTED.cases;

const FEW_SHOT: {
  readonly rows: readonly unknown[];
  readonly cases: readonly {
    readonly num_fewshot: number;
    readonly apply_chat_template: boolean;
    readonly fewshot_as_multiturn: boolean;
    readonly log_likelihoods: readonly (readonly number[])[];
  }[];
} = JSON.parse(readFileSync(fixturePath("choices/few_shot.json"), "utf8"));

for (const one of FEW_SHOT.cases) {
  const { num_fewshot: shots, apply_chat_template: isChat, fewshot_as_multiturn: isMultiturn, log_likelihoods: all } =
    one;
  const how = `${shots} examples${isChat ? ", as a chat" : ""}${isMultiturn ? " of several turns" : ""}`;
  test(`fullyshard eval gives choices the log-likelihoods of transformers: ${how}`, async () => {
    using folder = temporaryDirectory();
    const data = folder.write("questions.jsonl", lines(FEW_SHOT.rows));
    const flags = ["--data", data, ...tokenizerOf("bytes"), "--log-samples", "--num-fewshot", String(shots)];
    if (isChat) flags.push("--apply-chat-template", "--chat-template", fixturePath("chat/templates/chatml.jinja"));
    if (isMultiturn) flags.push("--fewshot-as-multiturn");
    const [got] = await measured(fixturePath("distillation/teacher"), ...flags);
    for (const [row, likelihoods] of all.entries()) {
      for (const [i, want] of likelihoods.entries()) {
        const value = got?.answers[row]?.log_likelihoods[i] ?? NaN;
        assert.ok(Math.abs(value - want) <= 2e-6 * Math.abs(want), `row ${row}, choice ${i}: ${value}, not ${want}`);
      }
    }
  });
}

test("fullyshard eval takes examples of other data, and refuses few of them and settings that nothing reads", async () => {
  using folder = temporaryDirectory();
  const data = folder.write("questions.jsonl", lines(FEW_SHOT.rows));
  const first = folder.write("first.jsonl", lines(FEW_SHOT.rows.slice(0, 2)));
  const own = ["--data", data, ...tokenizerOf("bytes"), "--num-fewshot", "2", "--log-samples"];
  const model = fixturePath("distillation/teacher");
  const [[mine], [others]] = [await measured(model, ...own), await measured(model, ...own, "--fewshot-data", first)];
  // The last rows have the same two examples, and the first row is one of them.
  assert.deepEqual(mine?.answers.slice(2), others?.answers.slice(2));
  assert.notDeepEqual(mine?.answers[0], others?.answers[0]);
  const args = [model, "--data", data, ...tokenizerOf("bytes")];
  await refuses([...args, "--num-fewshot", "4"], /data: expected at least 5 questions to take examples of, got 4 in /);
  await refuses([...args, "--fewshot-data", first], /fewshotData: expected numFewshot to be set too/);
  await refuses([...args, "--fewshot-as-multiturn"], /fewshotAsMultiturn: expected applyChatTemplate and numFewshot/);
  const text = folder.write("text.txt", "no choices here");
  await refuses(
    [model, "--data", text, ...tokenizerOf("bytes"), "--apply-chat-template"],
    /applyChatTemplate: expected rows/,
  );
});

for (const { tokenizer, add_bos_token: addsBos, rows, ...expected } of EXPECTED.cases) {
  const what = `${tokenizer}${addsBos ? " with a begin of text" : ""}`;
  test(`fullyshard eval gives choices the log-likelihoods of transformers: ${what}`, async () => {
    using folder = temporaryDirectory();
    const data = folder.write("questions.jsonl", lines(rows));
    const flags = ["--data", data, ...tokenizerOf(tokenizer), ...addsBos ? ["--add-bos-token"] : [], "--log-samples"];
    const [got] = await measured(MODEL, ...flags);
    isAsExpected(got, expected);
    // The same bits with one text at a time, and with all at once.
    for (const batch of ["1", "64"]) assert.deepEqual(await measured(MODEL, ...flags, "--batch", batch), [got]);
  });
}

test("fullyshard eval cuts the begins of texts that are longer than the model's positions, where that is wanted", async () => {
  using folder = temporaryDirectory();
  const { rows, ...expected } = EXPECTED.cut;
  const flags = [MODEL, "--data", folder.write("long.jsonl", lines(rows)), ...tokenizerOf("bytes"), "--add-bos-token"];
  await refuses(
    flags,
    /long\.jsonl:1: data: expected at most 40 tokens, the model's positions, got \d+ tokens with choice 0 \("Done again\."\): shorten it, or cut the beginnings of such texts by '--truncate'/,
  );
  const [got] = await measured(...flags, "--truncate", "--log-samples");
  isAsExpected(got, expected);
  assert.equal(got?.cut, 1);
  const none = folder.write("choice.jsonl", lines([{ question: "x", choices: ["y", "é".repeat(60)], answer: 0 }]));
  await refuses(
    [MODEL, "--data", none, ...tokenizerOf("bytes"), "--truncate"],
    /choice\.jsonl:1: .*: the choice alone is longer/,
  );
});

const odd: readonly (readonly [row: unknown, said: RegExp])[] = [
  [
    { choices: ["a", "b"], answer: 0 },
    /expected one of the columns "question", "prompt", "context", .*, got "choices" and "answer"/,
  ],
  [
    { question: "q", context: "c", choices: ["a", "b"], answer: 0 },
    /expected one of the columns .*, got "question" and "context"/,
  ],
  [{ question: 1, choices: ["a", "b"], answer: 0 }, /expected a text under "question", got 1$/],
  [{ question: "q", choices: [], answer: 0 }, /expected a list of at least two texts under "choices", got 0 texts/],
  [{ question: "q", choices: ["a"], answer: 0 }, /got 1 text$/],
  [{ question: "q", choices: "a", answer: 0 }, /expected a list of at least two texts under "choices", got "a"/],
  [
    { question: "q", choices: { text: ["a", "b"], label: ["A", "B"] }, answer: 0 },
    /got an object with "text": take its list/,
  ],
  [
    { question: "q", choices: ["a", ""], answer: 0 },
    /expected a text of at least one character in each choice, got "" as choice 1/,
  ],
  [{ question: "q", choices: ["a", null], answer: 0 }, /expected a text as choice 1, counted from 0, got null/],
  [
    { question: "q", choices: ["a", "b"], answer: 2 },
    /expected a number from 0 to 1, a letter from "A" to "B", or the text of a choice under "answer", got 2/,
  ],
  [{ question: "q", choices: ["a", "b"], answer: -1 }, /got -1/],
  [{ question: "q", choices: ["a", "b"], answer: 0.5 }, /got 0\.5/],
  [{ question: "q", choices: ["a", "b"], answer: "C" }, /got "C"/],
  [{ question: "q", choices: ["a", "b"] }, /or the text of a choice under "answer", got nothing/],
  [{ question: "q", choices: ["a", "a"], answer: "a" }, /got "a", which choices 0 and 1 are/],
  [{ question: "\ud800", choices: ["a", "b"], answer: 0 }, /expected valid Unicode text under "question"/],
];

test("fullyshard eval names rows that do not fit by file and line, and leaves them out where that is wanted", async () => {
  using folder = temporaryDirectory();
  const good = { question: "Good", choices: ["morning", "now"], answer: 0 };
  const flags = [MODEL, ...tokenizerOf("bytes")];
  for (const [i, [row, said]] of odd.entries()) {
    const file = folder.write(`odd${i}.jsonl`, lines([good, row]));
    await refuses([...flags, "--data", file], new RegExp(`odd${i}\\.jsonl:2: data: expected `), said);
  }
  const all = folder.write("all.jsonl", `${lines([good, ...odd.map(([row]) => row)])}{"question": \n`);
  const [got] = await measured(...flags, "--data", all, "--skip-bad-rows");
  assert.deepEqual([got?.questions, got?.skipped], [1, odd.length + 1]);
  assert.equal(got?.acc_stderr, null, "one question has no standard error");
  const text = await printed(...flags, "--data", all, "--skip-bad-rows");
  assert.match(
    text,
    /all\.jsonl: 1 question\n {2}acc {8}[01]\.0000\n[^]* {2}left out 17 rows that did not fit: .*all\.jsonl:2: expected one of the columns/,
  );
  const bad = folder.write("bad.jsonl", lines(odd.map(([row]) => row).slice(2)));
  await refuses(
    [...flags, "--data", bad, "--skip-bad-rows"],
    /expected questions with choices, got none in '.*bad\.jsonl'; the first row that did not fit/,
  );
});

test("fullyshard eval refuses choices without tokens of their own, a begin of text that there is not, and other mistakes", async () => {
  using folder = temporaryDirectory();
  const data = folder.write("q.jsonl", lines([{ question: "Good", choices: ["morning", "now"], answer: 0 }]));
  const text = folder.write("text.txt", "some text");
  const bytes = tokenizerOf("bytes");
  const joined = folder.write("joined.jsonl", lines([{ question: "Good mornin", choices: ["x", "g"], answer: 0 }]));
  await refuses(
    [MODEL, "--data", joined, ...bytes, "--delimiter", ""],
    /joined\.jsonl:1: data: expected a token of its own for each choice, got none for choice 1 \("g"\): it joins the text before it/,
  );
  await refuses([MODEL, "--data", data], /tokenizer\.json/);
  await refuses([MODEL, ...bytes], /data: expected files to evaluate on, got nothing/);
  await refuses(["--data", data], /arguments: expected <model>, got nothing/);
  await refuses(
    [MODEL, "--data", data, ...bytes, "--log-samples"],
    /logSamples: expected --json to be set too, got true without it/,
  );
  await refuses(
    [MODEL, "--data", `${text}:0.5`, ...bytes],
    /expected sources without weights, .*, got a weight behind/,
  );
  await refuses(
    [MODEL, "--data", data, "--data", text, ...bytes],
    /text\.txt: data: expected rows with "choices", as other files of the data have them, got a file without: give it a name of its own/,
  );
  await refuses([MODEL, "--data", folder.file("nothing.jsonl"), ...bytes], /nothing\.jsonl/);
  await refuses([fixturePath("llama-tied"), "--data", data, ...bytes], /128/);
  const plain = folder.write("plain/tokenizer.json", readFileSync(fixturePath("chat/bytes/tokenizer.json"), "utf8"));
  await refuses(
    [MODEL, "--data", data, "--tokenizer", plain, "--add-bos-token"],
    /addBosToken: expected a bos_token in tokenizer_config\.json, got none beside/,
  );
});

longTest("fullyshard eval measures texts and questions under names of their own, as lines and as JSON", async () => {
  using folder = temporaryDirectory();
  const questions = folder.write("q.jsonl", lines(QUIZ));
  const text = folder.write("text.txt", "Good morning, what is 2 + 2? ".repeat(8));
  const flags = [
    MODEL,
    ...tokenizerOf("bytes"),
    "--sequence-length",
    "16",
    "--data",
    `quiz=${questions}`,
    "--data",
    `text=${text}`,
  ];
  const [quiz, plain] = await measured(...flags);
  assert.deepEqual([quiz?.name, plain?.name, quiz?.answers], ["quiz", "text", undefined]);
  await using run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 28 });
  const model = await openModel(run, MODEL);
  await model.load();
  using data = await textData(run, model, text, { sequenceLength: 16, batch: 8, tokenizer: fixturePath("chat/bytes") });
  const { loss, perplexity, accuracy, tokens } = await evaluate(run, model, data);
  assert.deepEqual([plain?.loss, plain?.perplexity, plain?.mean_token_accuracy, plain?.tokens], [
    loss,
    perplexity,
    accuracy,
    tokens,
  ]);
  const command = [BIN, "--runtime", RUNTIME, "eval", ...flags, ...WASM];
  const { status, stdout, stderr } = spawnSync("node", command, { encoding: "utf8" });
  assert.equal(status, 0, stderr);
  const figures = (rule: Rule): string =>
    `  ${rule.padEnd(9)}  ${quiz?.[rule].toFixed(4)} ± ${quiz?.[`${rule}_stderr`].toFixed(4)}\n`;
  assert.equal(
    stdout,
    `${MODEL}\nquiz: ${questions}: 8 questions\n${RULES.map(figures).join("")}` +
      `text: ${text}: ${tokens} predicted tokens of ${data.numSamples} samples of at most 16 tokens\n` +
      `  loss                 ${loss.toFixed(4)}\n  perplexity           ${perplexity.toFixed(3)}\n` +
      `  mean_token_accuracy  ${accuracy.toFixed(4)}\n`,
  );
});

test("fullyshard eval takes checkpoints, adapters, and models that were trained on bytes", async () => {
  using folder = temporaryDirectory();
  const text = folder.write("text.txt", "the step of rank 3 is the step of rank 4. ".repeat(6));
  await using run = await launch({ cpuMath: "wasm", memoryBytes: 2 ** 28 });
  const sizes = { model_type: "llama", vocab_size: 257, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2 };
  const model = await openModel(run, { ...sizes, num_attention_heads: 2, max_position_embeddings: 32 }, { seed: 3 });
  await model.load();
  await model.save(folder.file("model"));
  const { group } = run;
  await saveCheckpoint({ directory: folder.path, step: 4, model, group, state: {} });
  const flags = ["--data", text, "--sequence-length", "24"];
  const [whole] = await measured(folder.file("model"), ...flags);
  assert.ok(whole !== undefined && Math.abs(whole.loss - Math.log(257)) < 0.1);
  assert.deepEqual(await measured(folder.file("checkpoint-4"), ...flags), [whole]);
  // Experts get other rows with other questions beside.
  const [{ hfConfig } = assert.fail()] = zooModels("mixtral");
  const mixture = await openModel(run, { ...hfConfig, vocab_size: 257, max_position_embeddings: 64 }, { seed: 3 });
  await mixture.load();
  await mixture.save(folder.file("mixture"));
  const quiz = ["--data", folder.write("quiz.jsonl", lines(QUIZ)), "--log-samples"];
  const [one] = await measured(folder.file("mixture"), ...quiz, "--batch", "1");
  assert.equal(one?.questions, QUIZ.length);
  assert.deepEqual(await measured(folder.file("mixture"), ...quiz, "--batch", "64"), [one]);
});

sharedTest("fullyshard eval gives the figures of a run's last evaluation, of its model and of its adapter", {
  timeout: 120_000,
}, async () => {
  using folder = temporaryDirectory();
  const held = folder.write("held.txt", "the shard of rank number 7 is tensor\n".repeat(6));
  const flags = (out: string, ...more: readonly string[]): string[] =>
    flagsIn(
      folder,
      "--eval-data",
      held,
      "--steps",
      "3",
      "--save-every",
      "0",
      "--out",
      folder.file(out),
      ...more,
    );
  const base = await runRanks(flags("base"), { ranks: 2 });
  assert.equal(base.code, 0, base.stderr);
  const lora = await runRanks(
    flags("lora", "--model", folder.file("base/model"), "--lora-r", "2", "--learning-rate", "0.01"),
    { ranks: 1 },
  );
  assert.equal(lora.code, 0, lora.stderr);
  const at = flagsIn(folder).indexOf("--sequence-length");
  const length = ["--sequence-length", flagsIn(folder)[at + 1] ?? assert.fail()];
  for (const [out, more] of [["base", []], ["lora", ["--adapter", folder.file("lora/model")]]] as const) {
    const last: Readonly<Record<string, number>> = JSON.parse(metricLines(folder, out).at(-1) ?? "");
    const figures: string[] = [];
    assert.equal(
      await evalModel(
        [folder.file("base/model"), "--data", held, ...length, ...more, ...WASM, "--json"],
        (part) => void figures.push(part),
      ),
      0,
    );
    const { sets: [got] }: { readonly sets: readonly MeasuredJson[] } = JSON.parse(figures.join(""));
    assert.deepEqual(
      [got?.loss, got?.perplexity, got?.mean_token_accuracy],
      [last["eval_loss"], last["eval_perplexity"], last["eval_mean_token_accuracy"]],
    );
  }
});

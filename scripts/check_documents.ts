/**
 * Runs the code blocks of the README and of `docs/` from the packed npm package, in a folder of each document's own. A document that is
 * about starting runs under Bun and under Deno; the name of each other one decides which of the two runs it, and with `--all` both do.
 * Documents run side by side, one more than there are cores, as ranks wait for each other. What the word behind a block's language
 * makes of it:
 *
 *     ```ts            a program: it is run
 *     ```ts train.ts   a file: it is written, and the document's commands use it; so for yaml and json
 *     ```sh            commands: they are run; those of the other runtime are left out
 *     ```sh published  commands that need a registry which the package is not in yet: shown only
 *     ```sh checkout   commands in a checkout of the project: shown only
 *     ```text          shown only
 *
 * The folder has `texts/` (the documents themselves) and `path/to/llama` (a small one with its tokenizer).
 *
 * @module
 */
import { spawn } from "node:child_process";
import { cpSync, mkdirSync, readdirSync, readFileSync, writeFileSync } from "node:fs";
import { availableParallelism } from "node:os";
import { delimiter } from "node:path";
import process from "node:process";
import { numberOf } from "../tests/support/name_number.ts";
import { installInto, packInto, ROOT, temporaryFolder } from "./packed.ts";

const RUNTIMES = ["bun", "deno"] as const;
/** The command of each runtime for a program that a document shows without a command. */
const RUN = { bun: "bun", deno: "deno run --allow-all" } as const;
/** Longest time of one block. */
const BLOCK_SECONDS = 300;
/** Starts the command that `npx` would find, which takes half a second of CPU for that: documents for both runtimes run `npx` itself. */
const SHORT_NPX = 'npx() { local name=$1; shift; "$DOCUMENT_BIN/$name" "$@"; }';

interface Block {
  readonly document: string;
  readonly line: number;
  readonly language: string;
  /** The words after the language. */
  readonly word: string;
  readonly text: string;
}

/** Documents that a newcomer follows, with whichever runtime is at hand. */
const FOR_BOTH = ["README.md", "docs/install.md", "docs/from_pytorch.md"];
const isAll = process.argv.includes("--all");
const asked = process.argv.slice(2).filter((argument) => argument !== "--all");
const all = [
  ...["README.md", "CHANGELOG.md", "CONTRIBUTING.md"],
  ...readdirSync(`${ROOT}docs`).filter((name) => name.endsWith(".md")).map((name) => `docs/${name}`),
];
const documents = all.filter((document) => asked.length === 0 || asked.includes(document));
let [passed, failed] = [0, 0];
using pack = temporaryFolder();
const tarball = packInto(pack.path);
const llama = `${pack.path}/llama`;
await makeLlama();
// The longest first, as the blocks of a document run one after another.
const byLength = documents.toSorted((a, b) => blocksOf(b).length - blocksOf(a).length);
const queue = byLength.flatMap((document) =>
  RUNTIMES.filter((_, place) =>
    isAll || asked.length > 0 || FOR_BOTH.includes(document) || numberOf(document) % 2 === place
  )
    .map((runtime) => [document, runtime] as const)
);
await Promise.all(Array.from({ length: availableParallelism() + 1 }, async () => {
  for (let next = queue.shift(); next !== undefined; next = queue.shift()) await runDocument(...next);
}));
process.stdout.write(`${passed} passed, ${failed} failed\n`);
process.exitCode = failed === 0 ? 0 : 1;

async function runDocument(document: string, runtime: (typeof RUNTIMES)[number]): Promise<void> {
  const blocks = blocksOf(document);
  if (!blocks.some((block) => commandOf(block, runtime) !== undefined)) return;
  using folder = temporaryFolder();
  prepare(folder.path);
  for (const block of blocks) {
    if (block.word.includes(".")) writeFileSync(`${folder.path}/${block.word}`, block.text);
    const command = commandOf(block, runtime);
    if (command === undefined) continue;
    if (block.language === "ts") writeFileSync(`${folder.path}/${programOf(block)}`, block.text);
    const started = performance.now();
    const lead = FOR_BOTH.includes(document) ? "" : `${SHORT_NPX}\n`;
    const fault = await execute(folder.path, lead + command, runtime);
    const took = ((performance.now() - started) / 1000).toFixed(1);
    const where = `${document}:${block.line} under ${runtime}, ${took} s`;
    process.stdout.write(fault === undefined ? `ok ${where}\n` : `FAILED ${where}\n${command}\n${fault}\n`);
    if (fault === undefined) passed += 1;
    else failed += 1;
  }
}

/** The commands of a block, or `undefined` where it is not run. */
function commandOf(block: Block, runtime: (typeof RUNTIMES)[number]): string | undefined {
  const { language, word, text } = block;
  if (language === "ts" && word === "") return `${RUN[runtime]} ${programOf(block)}`;
  if (language !== "sh" || word !== "") return undefined;
  const lines = text.replaceAll("\\\n", "\u0000").split("\n");
  const others = RUNTIMES.filter((name) => name !== runtime);
  const own = lines.filter((command) => !others.some((name) => command.startsWith(`${name} `)));
  // The package that is being checked takes the place of the registry's.
  const joined = own.join("\n").replaceAll("\u0000", "\\\n").trim();
  const command = joined.replace(/^(npm install|bun add) fullyshard$/gm, `$1 ${tarball}`);
  return command === "" ? undefined : command;
}

/** The file that a program without a name is written to. */
function programOf({ line }: Block): string {
  return `block-${line}.ts`;
}

/** Runs a command; what went wrong, if anything. */
function execute(folder: string, command: string, runtime: string): Promise<string | undefined> {
  // A function of the shell that started this would hide the runtimes' programs.
  const inherited = Object.fromEntries(Object.entries(process.env).filter(([name]) => !name.startsWith("BASH_FUNC_")));
  const child = spawn("bash", ["-euo", "pipefail", "-c", command], {
    cwd: folder,
    stdio: ["ignore", "pipe", "pipe"],
    timeout: BLOCK_SECONDS * 1000,
    env: {
      ...inherited,
      PATH: [`${ROOT}node_modules/.bin`, process.env["PATH"]].join(delimiter),
      DOCUMENT_BIN: `${folder}/node_modules/.bin`,
      FULLYSHARD_RUNTIME: runtime,
      NO_COLOR: "1",
    },
  });
  let output = "";
  for (const stream of [child.stdout, child.stderr]) stream.setEncoding("utf8").on("data", (text) => output += text);
  return new Promise((resolve, reject) => {
    child.once("error", reject);
    child.once("close", (status) => resolve(status === 0 ? undefined : `exit status ${status}\n${output}`));
  });
}

function blocksOf(document: string): Block[] {
  const source = readFileSync(ROOT + document, "utf8");
  return [...source.matchAll(/^```(\w+)(?: (\S+))?\n(.*?)^```$/gms)].map((found) => {
    const [, language = "", word = "", text = ""] = found;
    return { document, language, word, text, line: source.slice(0, found.index).split("\n").length };
  });
}

/** The reader's files: the package, some texts, and a model. */
function prepare(folder: string): void {
  installInto(folder, tarball);
  const manifest = { type: "module", dependencies: { fullyshard: `file:${tarball}` } };
  writeFileSync(`${folder}/package.json`, JSON.stringify(manifest));
  mkdirSync(`${folder}/texts`);
  for (const document of all) cpSync(ROOT + document, `${folder}/texts/${document.replace("/", "-")}`);
  mkdirSync(`${folder}/path/to`, { recursive: true });
  cpSync(llama, `${folder}/path/to/llama`, { recursive: true });
}

/** Makes a small Llama with random weights, in the way of the documents. */
async function makeLlama(): Promise<void> {
  using folder = temporaryFolder();
  installInto(folder.path, tarball);
  const sizes = { hidden_size: 32, intermediate_size: 64, num_hidden_layers: 2, num_attention_heads: 2 };
  const config = JSON.stringify({ model_type: "llama", vocab_size: 4096, max_position_embeddings: 2048, ...sizes });
  const lines = [
    'import { launch, openModel } from "fullyshard";',
    "await using run = await launch();",
    `const model = await openModel(run, ${config});`,
    "await model.load();",
    `await model.save(${JSON.stringify(llama)});`,
  ];
  writeFileSync(`${folder.path}/make.ts`, lines.join("\n"));
  const fault = await execute(folder.path, "bun make.ts", "bun");
  if (fault !== undefined) throw new Error(`Cannot make a model for the documents: ${fault}`);
  for (const name of readdirSync(`${ROOT}examples/data`)) cpSync(`${ROOT}examples/data/${name}`, `${llama}/${name}`);
}

/** `fullyshard init`: the files of each kind of project, its questions, and what it refuses. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { readdirSync, readFileSync, writeFileSync } from "node:fs";
import { describe } from "node:test";
import { fileURLToPath } from "node:url";
import { z } from "zod";
import { resolveConfig } from "../../src/config/resolve.ts";
import { TRAIN_SECTIONS } from "../../src/train/config.ts";
import { VERSION } from "../../src/version.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { sharedTest as it } from "../support/share.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";

const root = fileURLToPath(new URL("../../", import.meta.url));
const PACKAGE = z.object({
  name: z.string(),
  type: z.literal("module"),
  scripts: z.record(z.string(), z.string()).optional(),
  dependencies: z.record(z.string(), z.string()),
});

function run(folder: TemporaryDirectory, args: readonly string[], input: string = "") {
  const command = [`${root}bin/fullyshard.mjs`, "--runtime", RUNTIME, "init", ...args];
  return spawnSync("node", command, { encoding: "utf8", cwd: folder.path, input });
}

const filesOf = (path: string): readonly string[] =>
  readdirSync(path, { recursive: true, encoding: "utf8" }).filter((name) => name !== "data").sort();

function packageOf(folder: TemporaryDirectory, project: string) {
  return PACKAGE.parse(JSON.parse(readFileSync(folder.file(`${project}/package.json`), "utf8")));
}

describe("fullyshard init", () => {
  it("writes the files of a module, and names the next commands", () => {
    using folder = temporaryDirectory();
    const { status, stdout, stderr } = run(folder, ["My Nets", "--kind", "module", "--defaults"]);
    assert.equal(status, 0, stderr);
    assert.match(
      stdout,
      /^Wrote 3 files in 'My Nets'\. Next:\n {2}cd 'My Nets'\n {2}npm install\n {2}npm run train\n$/,
    );
    assert.deepEqual(filesOf(folder.file("My Nets")), [".gitignore", "package.json", "train.ts"]);
    const { name, scripts, dependencies } = packageOf(folder, "My Nets");
    assert.equal(name, "my-nets");
    assert.deepEqual(dependencies, { fullyshard: `^${VERSION}` });
    assert.equal(scripts?.["train"], "fullyshard run --nproc-per-node 2 train.ts");
  });

  it("asks for what no flag gives, and takes an empty line for the usual answer", async () => {
    using folder = temporaryDirectory();
    const { status, stdout, stderr } = run(folder, ["mine", "--package", "file:../x.tgz"], "fine-tune\ndeno\n\n4\n");
    assert.equal(status, 0, stderr);
    assert.match(stdout, /Kind \(scratch, fine-tune, module\) \[scratch\]: /);
    assert.match(stdout, /\n {2}deno install\n {2}deno task pull\n {2}deno task train\n$/);
    const names = [".gitignore", "data/chats.jsonl", "deno.json", "package.json", "train.ts", "train.yaml"];
    assert.deepEqual(filesOf(folder.file("mine")), names);
    const { tasks } = z.object({ tasks: z.record(z.string(), z.string()) })
      .parse(JSON.parse(readFileSync(folder.file("mine/deno.json"), "utf8")));
    assert.match(tasks["train"] ?? "", /^deno run -A npm:fullyshard\/fullyshard run --nproc-per-node 4 /);
    assert.equal(packageOf(folder, "mine").dependencies["fullyshard"], "file:../x.tgz");
    const argv = ["--config", folder.file("mine/train.yaml")];
    const { model, loraR, lossOn } = await resolveConfig(TRAIN_SECTIONS, { argv });
    assert.deepEqual([model, loraR, lossOn], ["HuggingFaceTB/SmolLM2-135M-Instruct", 16, "assistant"]);
    const rows = readFileSync(folder.file("mine/data/chats.jsonl"), "utf8").trimEnd().split("\n");
    for (const row of rows) assert.equal(JSON.parse(row).messages.length, 2);
  });

  it("writes keys of a training from scratch that are known", async () => {
    using folder = temporaryDirectory();
    assert.equal(run(folder, ["--kind", "scratch", "--defaults"]).status, 0);
    const { steps, out } = await resolveConfig(TRAIN_SECTIONS, { argv: ["--config", folder.file("train.yaml")] });
    assert.deepEqual([steps, out], [100, "runs/scratch"]);
  });

  it("refuses what it cannot do, and leaves files that are there", () => {
    using folder = temporaryDirectory();
    writeFileSync(folder.file("package.json"), "{}");
    const cases: readonly (readonly [readonly string[], string, RegExp])[] = [
      [["--defaults"], "", /folder: expected a folder without the project's files, got '\.', which has package\.json/],
      [["a", "--kind", "chat"], "", /--kind: expected one of scratch, fine-tune, module, got 'chat'/],
      [["a", "--ranks", "0", "--defaults"], "", /--ranks: expected a whole number from 1, got '0'/],
      [["a", "--model", "m", "--defaults"], "", /--model: expected a model with the kind 'fine-tune' only/],
      [["a"], "module\n", /expected an answer to 'Installed by', got the end of the input/],
      [["a", "b", "--defaults"], "", /folder: expected one folder, got 'b' too/],
    ];
    for (const [args, input, pattern] of cases) {
      const { status, stderr } = run(folder, args, input);
      assert.equal(status, 2, args.join(" "));
      assert.match(stderr, pattern);
    }
    assert.deepEqual(filesOf(folder.path), ["package.json"]);
  });
});

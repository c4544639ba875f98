/** `fullyshard completions`: what bash completes, run in bash; and that each shell's script is sound where that shell is. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { writeFileSync } from "node:fs";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { COMMANDS } from "../../src/cli/commands.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const bin = fileURLToPath(new URL("../../bin/fullyshard.mjs", import.meta.url));

function completions(...args: readonly string[]) {
  return spawnSync("node", [bin, "--runtime", RUNTIME, "completions", ...args], { encoding: "utf8" });
}

/** Replies of bash to each command line, whose last word is being typed. */
function repliesOf(script: string, lines: readonly (readonly string[])[]): readonly (readonly string[])[] {
  using folder = temporaryDirectory();
  writeFileSync(folder.file("a file.jsonl"), "");
  const calls = lines.map((words) => {
    const list = words.map((word) => `'${word}'`).join(" ");
    return `COMP_WORDS=(${list}); COMP_CWORD=${words.length - 1}; _fullyshard; (IFS='|'; echo "\${COMPREPLY[*]}")`;
  });
  const text = [script, "compopt() { :; }", ...calls].join("\n");
  const { stdout, stderr } = spawnSync("bash", ["--norc"], { encoding: "utf8", input: text, cwd: folder.path });
  assert.equal(stderr, "");
  return stdout.trimEnd().split("\n").map((line) => line.split("|").filter((word) => word !== ""));
}

describe("fullyshard completions", () => {
  it("lets bash complete commands, flags, values and files", () => {
    const { status, stdout } = completions("bash");
    assert.equal(status, 0);
    const [commands, insides, flags, values, afterEqual, inScript, negated, files, shells, unknown] = repliesOf(
      stdout,
      [
        ["fullyshard", ""],
        ["fullyshard", "inspect"],
        ["fullyshard", "run", "--nproc"],
        ["fullyshard", "run", "train.ts", "--precision", ""],
        ["fullyshard", "run", "train.ts", "--precision", "=", "fl"],
        ["fullyshard", "--runtime", "deno", "run", "--standalone", "train.ts", "--grad-"],
        ["fullyshard", "run", "train.ts", "--no-reshard"],
        ["fullyshard", "inspect-data", "a"],
        ["fullyshard", "completions", ""],
        ["fullyshard", "run", "train.ts", "--steps", ""],
      ],
    );
    for (const name of Object.keys(COMMANDS)) assert.ok(commands?.includes(name), name);
    assert.deepEqual(insides, ["inspect", "inspect-data"]);
    assert.deepEqual(flags, ["--nproc-per-node"]);
    assert.deepEqual(values, ["float32", "bfloat16", "float16"]);
    assert.deepEqual(afterEqual, ["float32", "float16"]);
    assert.deepEqual(inScript, ["--gradient-checkpointing"].filter((flag) => flag.startsWith("--grad-")));
    assert.deepEqual(negated, ["--no-reshard-after-forward"]);
    assert.deepEqual(files, ["a file.jsonl"]);
    assert.deepEqual(shells, ["bash", "zsh", "fish"]);
    assert.deepEqual(unknown ?? [], []);
  });

  it("writes scripts that each shell reads", () => {
    using folder = temporaryDirectory();
    for (const shell of ["bash", "zsh", "fish"]) {
      const { status, stdout } = completions(shell);
      assert.equal(status, 0);
      for (const name of Object.keys(COMMANDS)) assert.ok(stdout.includes(name));
      writeFileSync(folder.file(shell), stdout);
      const checked = spawnSync(shell, ["-n", folder.file(shell)], { encoding: "utf8" });
      if (checked.error !== undefined) continue; // the shell is not on this machine
      assert.deepEqual([checked.status, checked.stderr], [0, ""], shell);
    }
  });

  it("refuses other shells by name", () => {
    for (const [args, got] of [[["tcsh"], "'tcsh'"], [[], "nothing"], [["bash", "zsh"], "'bash' 'zsh'"]] as const) {
      const { status, stderr } = completions(...args);
      assert.equal(status, 2);
      assert.ok(stderr.endsWith(`  shell: expected one of bash, zsh, fish, got ${got}\n`), stderr);
    }
  });
});

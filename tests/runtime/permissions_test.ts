/**
 * Permissions under Deno: what the README's line gives is enough, what is refused is named with the flag that permits
 * it, and an answer at the terminal counts.
 *
 * @module
 */
import assert from "node:assert/strict";
import { spawn, spawnSync } from "node:child_process";
import { once } from "node:events";
import { readdirSync, readFileSync } from "node:fs";
import process from "node:process";
import { text } from "node:stream/consumers";
import { describe, it } from "node:test";
import { fileURLToPath } from "node:url";
import { permissionRemedy } from "../../src/runtime/permissions.ts";
import { executablePath, runtime } from "../../src/runtime/processes.ts";
import { type TemporaryDirectory, temporaryDirectory } from "../support/temporary.ts";
import { longTest } from "../support/share.ts";

const root = fileURLToPath(new URL("../../", import.meta.url));
const skip = runtime().name !== "deno" && "only Deno has permissions";

/** The README's example, with few steps, in a folder of its own. */
function example(): TemporaryDirectory {
  const folder = temporaryDirectory();
  folder.write("train.ts", readFileSync(`${root}examples/minimal.ts`, "utf8").replaceAll("60", "6"));
  return folder;
}

/** The arguments of Deno. A Deno that is started by Deno without any permission would get all of its own. */
function denoRun(permissions: readonly string[]): string[] {
  return ["run", "--no-check", "--quiet", `--config=${root}deno.json`, ...permissions, "train.ts"];
}

function runExample(permissions: readonly string[]) {
  using folder = example();
  const ended = spawnSync(executablePath(), denoRun(["--no-prompt", ...permissions]), {
    ...{ cwd: folder.path, encoding: "utf8", env: { ...process.env, NO_COLOR: "1" }, timeout: 30_000 },
  });
  return { ...ended, files: readdirSync(folder.path, { recursive: true, encoding: "utf8" }) };
}

/** The permissions that the README's line gives. */
function readmePermissions(): string[] {
  const [, flags = ""] = /`deno run (.*) train\.ts`/.exec(readFileSync(`${root}README.md`, "utf8")) ?? [];
  return flags.split(" ");
}

/** Runs the example on two ranks. */
async function runTwoRanks(permissions: readonly string[]) {
  using folder = example();
  const ranks = ["0", "1"].map(async (RANK) => {
    const child = spawn(executablePath(), denoRun(["--no-prompt", ...permissions]), {
      cwd: folder.path,
      env: { ...process.env, RANK, WORLD_SIZE: "2", FULLYSHARD_RUN_ID: `permissions-${process.pid}` },
      timeout: 30_000,
    });
    const [code, stderr] = await Promise.all([once(child, "close"), text(child.stderr)]);
    return { code: code[0], stderr };
  });
  return await Promise.all(ranks);
}

/** Runs the example at a terminal on which every question is answered by `answer`; gives what was shown. */
async function runAtTerminal(answer: string): Promise<string> {
  using folder = example();
  const command = [executablePath(), ...denoRun(["--allow-sys=cpus"])].map((word) => `'${word}'`).join(" ");
  const child = spawn("script", ["-qec", command, "/dev/null"], {
    cwd: folder.path,
    timeout: 30_000,
  });
  let shown = "";
  let answered = 0;
  for await (const piece of child.stdout.setEncoding("utf8")) {
    shown += piece;
    const questions = shown.split("Allow?").length - 1;
    if (questions === answered) continue;
    answered = questions;
    // Deno throws away what was typed before it asked.
    await new Promise((resolve) => void setTimeout(resolve, 300));
    child.stdin.write(`${answer}\n`);
  }
  return shown;
}

describe("Deno's permissions", { skip }, () => {
  it("are enough as the README gives them, and none is too many", () => {
    const given = readmePermissions();
    assert.deepEqual(given.map((flag) => flag.split("=")[0]), ["--allow-read", "--allow-env", "--allow-write"]);
    const ended = runExample(given);
    assert.equal(ended.status, 0, ended.stderr);
    assert.ok(ended.files.includes("runs/minimal/model.safetensors"));
    for (const flag of given) assert.equal(runExample(given.filter((other) => other !== flag)).status, 1, flag);
  });

  longTest("are named where one is lacking", () => {
    const refused = (...permissions: string[]): string => runExample(permissions).stderr;
    const kernels = `${root}wasm/pkg/relaxed.wasm`;
    assert.ok(
      refused("--allow-env").includes(
        `Cannot open '${kernels}': Deno was not given the permission; add --allow-read=${kernels}, or --allow-read for all`,
      ),
    );
    assert.match(
      refused("--allow-env", `--allow-read=${root}wasm`),
      /Cannot look at '(.*\/src)\/': Deno was not given the permission; add --allow-read=\1, or --allow-read for all/,
    );
    assert.match(
      refused("--allow-env", "--allow-read"),
      /Cannot make directory 'runs\/minimal': .*; add --allow-write=runs\/minimal, or --allow-write for all/,
    );
  });

  longTest("name --allow-ffi where several ranks may not call the C library, and suffice with it", async () => {
    for (const { code, stderr } of await runTwoRanks(readmePermissions())) {
      assert.equal(code, 1);
      assert.match(stderr, /Cannot open libc\. Deno may not call native code: add --allow-ffi/);
      assert.doesNotMatch(stderr, /part of every Linux system/);
    }
    for (const { code, stderr } of await runTwoRanks([...readmePermissions(), "--allow-ffi"])) {
      assert.equal(code, 0, stderr);
    }
  });
});

const hasScript = spawnSync("script", ["--version"]).status === 0;

describe("a question at the terminal", { skip: skip || (!hasScript && "needs util-linux' script") }, () => {
  it("is asked once for each kind of permission, and its answer is used", async () => {
    const shown = await runAtTerminal("A");
    assert.match(shown, /step 6 /);
    assert.equal(shown.split("Allow?").length - 1, 3, shown); // variables, reading, writing
    assert.doesNotMatch(await runAtTerminal("n"), /step 6 /);
  });
});

describe("permissionRemedy()", () => {
  it("gives the flag for what was refused, and nothing for other errors", () => {
    const refusal = (message: string): Error => Object.assign(new Error(message), { name: "NotCapable" });
    assert.equal(
      permissionRemedy(refusal('Requires net access to "host:80", run again with the --allow-net flag')),
      "Deno was not given the permission; add --allow-net=host:80, or --allow-net for all",
    );
    assert.equal(
      permissionRemedy(refusal('Requires read access to "/a,b", run again with the --allow-read flag')),
      "Deno was not given the permission; add --allow-read=/a,,b, or --allow-read for all",
    );
    assert.equal(
      permissionRemedy(refusal("Requires sys access, run again with the --allow-sys flag")),
      "Deno was not given the permission; add --allow-sys",
    );
    assert.equal(permissionRemedy(new Error("Requires nothing")), undefined);
    assert.equal(permissionRemedy("text"), undefined);
  });
});

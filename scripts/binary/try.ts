/**
 * Tries the single executable where nothing else is: in a root folder that holds the executable and the C library, without Node, Bun,
 * Deno or a shell; where no such root can be entered, with an empty PATH. It trains, resumes on other ranks, fine-tunes, estimates, and
 * runs a script that imports the package.
 *
 * @module
 */
import { execFileSync, spawnSync } from "node:child_process";
import { copyFileSync, existsSync, mkdirSync, realpathSync, writeFileSync } from "node:fs";
import { dirname } from "node:path";
import process from "node:process";
import { temporaryFolder } from "../packed.ts";

interface Ended {
  readonly status: number | null;
  readonly stdout: string;
  readonly stderr: string;
}

/** The only other program in the root: it sets the working directory. */
const ENV = "/usr/bin/env";

/** Runs the executable with arguments, in the folder `/home` of its root. */
type Run = (args: readonly string[]) => Ended;

const CONFIG = {
  model_type: "llama",
  vocab_size: 300,
  hidden_size: 32,
  intermediate_size: 64,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  max_position_embeddings: 128,
};

const OWN_SCRIPT = `import { launch, openModel } from "fullyshard";
await using run = await launch();
const model = await openModel(run, ${JSON.stringify(CONFIG)});
await model.load();
await model.save("base");
if (run.isMain) console.log(\`saved by \${run.group.size} ranks\`);
`;

/** Tries an executable, a line for each check. */
export function tryBinary(path: string): { readonly passed: number; readonly failed: number } {
  using folder = temporaryFolder();
  const home = `${folder.path}/home`;
  mkdirSync(home);
  writeFileSync(`${home}/own.ts`, OWN_SCRIPT);
  writeFileSync(`${home}/text.txt`, Array.from({ length: 900 }, (_, i) => `Each rank keeps shard ${i}. `).join(""));
  const run = runnerIn(folder.path, path);
  const [passed, failed]: [string[], string[]] = [[], []];
  const check = (name: string, args: readonly string[], expected: RegExp, file?: string): void => {
    const began = performance.now();
    const { status, stdout, stderr } = run(args);
    const isMade = file === undefined || existsSync(`${home}/${file}`);
    const isRight = status === 0 && expected.test(stdout + stderr) && isMade;
    (isRight ? passed : failed).push(name);
    process.stdout.write(
      `${isRight ? "ok" : "FAILED"} ${name}, ${((performance.now() - began) / 1000).toFixed(1)} s\n`,
    );
    if (!isRight) process.stdout.write(`${stdout}${stderr}exit status ${status}${isMade ? "" : `, no '${file}'`}\n`);
  };
  const train = ["train", "--data", "text.txt", "--sequence-length", "32", "--out", "runs/a", "--save-every", "5"];
  check("first start, which unpacks it", ["--version"], /^\d+\.\d+\.\d+\n$/);
  check("second start", ["--version"], /^\d+\.\d+\.\d+\n$/);
  check("doctor", ["doctor"], /runtime +bun/);
  check(
    "a script of one's own, on two ranks",
    ["run", "--nproc-per-node", "2", "own.ts"],
    /saved by 2 ranks/,
    "base/model.safetensors",
  );
  check("a tokenizer", ["tokenizer", "text.txt", "--vocab", "300", "--out", "base"], /entries/, "base/tokenizer.json");
  check("estimate", ["estimate", "--model", "base", "--nproc", "64", "--seq", "64"], /rank/);
  check(
    "train on two ranks",
    [...train, "--model", "base", "--nproc-per-node", "2", "--steps", "5"],
    /step 5\/5/,
    "runs/a/model/config.json",
  );
  check("resume on one rank", [...train, "--model", "base", "--steps", "8", "--resume", "auto"], /step 8\/8/);
  check(
    "fine-tune by LoRA, saved in the background",
    [
      ...["train", "--nproc-per-node", "2", "--model", "runs/a/model", "--data", "text.txt", "--sequence-length", "32"],
      ...["--lora-r", "4", "--steps", "4", "--save-every", "2", "--async-save", "--out", "runs/b"],
    ],
    /step 4\/4/,
    "runs/b/checkpoint-4",
  );
  return { passed: passed.length, failed: failed.length };
}

/** Makes the root and a function that runs the executable in it. */
function runnerIn(folder: string, path: string): Run {
  const variables = { HOME: "/home", NO_COLOR: "1" };
  for (const file of [ENV, ...librariesOf(ENV), ...librariesOf(path)]) {
    mkdirSync(`${folder}${dirname(file)}`, { recursive: true });
    copyFileSync(realpathSync(file), `${folder}${file}`);
  }
  for (const name of ["proc", "dev", "tmp"]) mkdirSync(`${folder}/${name}`);
  copyFileSync(path, `${folder}/fullyshard`);
  // The kernel's own file systems are seen in the root, as in a container; they go with the namespace.
  const inRoot = (command: readonly string[]): Ended => {
    const enter = 'mount --rbind /proc "$0/proc" && mount --rbind /dev "$0/dev" && exec chroot "$0" "$@"';
    const args = ["--mount", "sh", "-c", enter, folder, ENV, "-C", "/home", "PATH=/nothing", ...command];
    return spawnSync("unshare", args, { encoding: "utf8", env: { ...variables, PATH: process.env["PATH"] } });
  };
  const probe = inRoot([ENV, "--version"]);
  if (probe.status === 0) {
    process.stdout.write("In a root without Node, Bun, Deno and a shell:\n");
    return (args) => inRoot(["/fullyshard", ...args]);
  }
  process.stdout.write(`Without a root of its own (${probe.stderr.trim().split("\n").at(-1)}), with an empty PATH:\n`);
  const home = `${folder}/home`;
  return (args) =>
    spawnSync(path, args, { encoding: "utf8", cwd: home, env: { ...variables, HOME: home, PATH: "/nothing" } });
}

/** The shared libraries that a program loads at its start, and their loader. */
function librariesOf(program: string): readonly string[] {
  const text = execFileSync("ldd", [program], { encoding: "utf8" });
  return [...text.matchAll(/(?:=> )?(\/\S+) \(0x/g)].map(([, path = ""]) => path);
}

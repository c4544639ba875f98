/** The run on a card by one command, on doubles of NVIDIA's libraries: its arguments, its order, what it writes and leaves out. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { appendFileSync, readFileSync } from "node:fs";
import process from "node:process";
import { GPU_ITEMS } from "../../bench/gpu/items.ts";
import { differenceOf, OPERATIONS } from "../../bench/gpu/operations.ts";
import { rank, ROOT } from "../../bench/process.ts";
import { buildCudaTwin, lackingForTwin } from "../native/cuda/build.ts";
import { longTest, sharedTest as test } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";

const skip = lackingForTwin();
const PEER_PYTHON = process.env["PEER_PYTHON"];
const withoutPeer = PEER_PYTHON === undefined ? "PEER_PYTHON names no Python that has torch" : undefined;
/** The cases that are compared with PyTorch, in order. */
const RATIOS = [
  ...["gemm", "gemm:input-gradient", "gemm:weight-gradient"],
  ...["attention", "attention-backward"].flatMap((name) => [`${name}:flash`, `${name}:cudnn`]),
  ...["rms-norm", "rms-norm-backward", "cross-entropy", "adamw"],
  ...["step", "graph"].flatMap((name) => ["eager-flash", "eager", "compiled"].map((kind) => `${name}:${kind}`)),
];
const runtime = process.versions["bun"] === undefined ? "deno" : "bun";

interface Line {
  readonly item: string;
  readonly case: string;
  readonly outcome: string;
  readonly reason?: string;
  readonly figures?: Readonly<Record<string, number | string>>;
}

interface Ended {
  readonly code: number | null;
  readonly errors: string;
}

async function runGpu(args: readonly string[], variables: Readonly<Record<string, string>> = {}): Promise<Ended> {
  const [program, ...rest] = rank(runtime, "bench/gpu.ts", "--runtime", runtime, "--size", "small", ...args);
  // Deno's programs inherit what is not named.
  const env = { ...process.env, PEER_PYTHON: "", ...(await buildCudaTwin()).variables, ...variables };
  const { status, stderr } = spawnSync(program, rest, { cwd: ROOT, env, encoding: "utf8" });
  return { code: status, errors: stderr };
}

function linesOf(file: string): readonly Line[] {
  return readFileSync(file, "utf8").split("\n").filter((line) => line.endsWith("}")).map((line): Line =>
    JSON.parse(line)
  );
}

test("gpu.ts names what is wrong with its arguments", { skip }, async () => {
  const { code, errors } = await runGpu([
    "--only",
    "train,nothing",
    "--budget",
    "soon",
    "--peer-device",
    "tpu",
    "--fast",
  ]);
  assert.equal(code, 2);
  assert.match(errors, /--only: expected self-check, operations, .*, got nothing/);
  assert.match(errors, /--budget: expected a positive number of seconds, got soon/);
  assert.match(errors, /--peer-device: expected cuda or cpu, got tpu/);
  assert.match(errors, /--fast/);
});

longTest("gpu.ts tells what cannot run, goes on, and leaves out what passed when it resumes", { skip }, async () => {
  using folder = temporaryDirectory();
  const file = folder.file("gpu.jsonl");
  const args = ["--out", file, "--only", "two-ranks,self-check,ratios"];
  const first = await runGpu(args);
  assert.equal(first.code, 0, first.errors);
  // Lines of two ranks come in any order.
  const told = linesOf(file).map(({ item, case: what, outcome }) => [item, what, outcome]);
  told.splice(2, 2, ...told.slice(2, 4).sort());
  assert.deepEqual(told, [
    ["self-check", "three numbers", "passed"],
    ["self-check", "self-check", "passed"],
    ["two-ranks", "llama of 18592 parameters, 2 x 24 tokens, rank 0 of 2, shm, by calls", "passed"],
    ["two-ranks", "llama of 18592 parameters, 2 x 24 tokens, rank 1 of 2, shm, by calls", "passed"],
    ["two-ranks", "two-ranks", "passed"],
    ["ratios", "ratios", "cannot"],
    ["ratios", "ratios", "cannot"],
  ]);
  assert.match(linesOf(file)[5]?.reason ?? "", /PEER_PYTHON/);
  const again = await runGpu(args);
  assert.equal(again.code, 2);
  assert.match(again.errors, /--out: expected a new file, got .*; go on with it by --resume/);
  appendFileSync(file, '{"item":"self-check","case":"self'); // cut off
  const resumed = await runGpu([...args, "--resume"], { FULLYSHARD_CUDART_LIBRARY: "/nowhere/cudart.so" });
  assert.equal(resumed.code, 0, resumed.errors);
  const later = linesOf(file).slice(7).map(({ item, outcome }) => [item, outcome]);
  assert.deepEqual(later, ["ratios", "ratios"].map((item) => [item, "cannot"]));
});

longTest(
  "gpu.ts tells of a Python that is not there, and that there was no time for the ratios",
  { skip },
  async () => {
    using folder = temporaryDirectory();
    const file = folder.file("gpu.jsonl");
    const { code, errors } = await runGpu(["--out", file, "--only", "ratios"], { PEER_PYTHON: "/nowhere/python" });
    assert.equal(code, 0, errors);
    const told = linesOf(file);
    assert.ok(RATIOS.every((name) => told.some((line) => line.case === name && line.outcome === "cannot")));
    assert.match(told[0]?.reason ?? "", /^PyTorch: the process ended: Error: .*ENOENT.*/);
    const late = folder.file("late.jsonl");
    await runGpu(["--out", late, "--only", "ratios", "--budget", "1.5"], { PEER_PYTHON: "/nowhere/python" });
    assert.match(linesOf(late).at(-2)?.reason ?? "", /^ours: the time was over$/);
  },
);

test(
  "gpu.ts takes turns with PyTorch over kernels and steps",
  { skip: skip ?? withoutPeer, timeout: 300_000 },
  async () => {
    using folder = temporaryDirectory();
    const file = folder.file("gpu.jsonl");
    const args = ["--out", file, "--only", "ratios", "--peer-device", "cpu"];
    const variables = { PEER_PYTHON: PEER_PYTHON ?? "" };
    const { code, errors } = await runGpu(args, variables);
    assert.equal(code, 0, errors);
    const told = linesOf(file);
    assert.deepEqual(told.map((line) => line.case), [...RATIOS, "ratios"]);
    for (const { case: name, outcome, reason, figures } of told.slice(0, -1)) {
      if (name.endsWith(":cudnn")) {
        assert.deepEqual([outcome, reason], ["cannot", "PyTorch: RuntimeError: attention of cuDNN needs CUDA"]);
        continue;
      }
      assert.deepEqual([name, outcome, reason], [name, "passed", undefined]);
      const { oursMs, theirsMs, ratio, "theirs.by": by } = figures ?? {};
      assert.ok(Math.abs(Number(ratio) - Number(theirsMs) / Number(oursMs)) < 1e-9, name);
      assert.match(String(by), /^torch \S+ on the CPU$/);
      if (!/^(?:step|graph):/.test(name)) continue;
      // Both train the same model on the same tokens.
      assert.equal(figures?.["ours.parameters"], figures?.["theirs.parameters"]);
      const [own, other] = ["ours", "theirs"].map((side) => Number(figures?.[`${side}.tokensPerSecond`]));
      assert.ok(Math.abs(Number(own) / Number(other) - Number(ratio)) < 1e-9, name);
      assert.ok(Number(figures?.["ours.peakBytes"]) > 0);
      assert.equal(figures?.["theirs.noPeak"], "peak memory of torch needs CUDA");
      assert.equal(figures?.["microBatch"], "2 x 24 tokens");
    }
    const resumed = await runGpu([...args, "--resume"], variables);
    assert.equal(resumed.code, 0, resumed.errors);
    const later = linesOf(file).slice(told.length).map((line) => line.case);
    assert.deepEqual(later, ["attention:cudnn", "attention-backward:cudnn", "ratios"]);
  },
);

test("gpu.ts trains by calls and by a graph, and tells how fast memory and kernels are", { skip }, async () => {
  using folder = temporaryDirectory();
  const file = folder.file("gpu.jsonl");
  const { code, errors } = await runGpu(["--out", file, "--only", "train,train-graph,memory,profile"]);
  assert.equal(code, 0, errors);
  const told = linesOf(file);
  assert.deepEqual(told.map((line) => [line.item, line.case.replace(/^llama .*, (by .*)$/, "$1"), line.outcome]), [
    ["train", "by calls", "passed"],
    ["train", "train", "passed"],
    ["train-graph", "by a graph", "passed"],
    ["train-graph", "train-graph", "passed"],
    ...["copy", "rms-norm", "rms-norm-backward", "cross-entropy", "adamw", "memory"].map((
      one,
    ) => ["memory", one, "passed"]),
    ...["attention", "rms-norm", "adamw", "profile"].map((one) => ["profile", one, "passed"]),
  ]);
  for (const { figures, case: name } of told.filter((line) => line.case.startsWith("llama"))) {
    const { msPerStep, tokensPerSecond, hostMs, hostShare, mfuIs } = figures ?? {};
    assert.ok(Math.abs(Number(tokensPerSecond) * Number(msPerStep) / 48_000 - 1) < 1e-9, name);
    assert.ok(Math.abs(Number(hostShare) - Number(hostMs) / Number(msPerStep)) < 1e-9, name);
    assert.match(String(mfuIs), /parameters/);
  }
});

test("gpu.ts starts nothing when its budget is spent", { skip }, async () => {
  using folder = temporaryDirectory();
  const file = folder.file("gpu.jsonl");
  const { code, errors } = await runGpu(["--out", file, "--budget", "0.5"]);
  assert.equal(code, 0, errors);
  const starts = linesOf(file).filter((line) => line.case === "start");
  assert.deepEqual(starts.map(({ item }) => item), GPU_ITEMS.map(({ name }) => name));
  for (const { outcome, reason } of starts) assert.deepEqual([outcome, reason], ["cannot", "the budget is spent"]);
});

test("gpu.ts computes each operation of dev.cuh on both sides", { skip }, async () => {
  using folder = temporaryDirectory();
  const file = folder.file("gpu.jsonl");
  const { code, errors } = await runGpu(["--out", file, "--only", "operations"]);
  assert.equal(code, 0, errors);
  const names = linesOf(file).filter((line) => line.outcome === "passed").map((line) => line.case);
  assert.deepEqual(names, [...Object.keys(OPERATIONS), "operations"]);
});

longTest(
  "gpu.ts compares attention by cuDNN with that by our own kernels, where there is cuDNN",
  { skip },
  async () => {
    using folder = temporaryDirectory();
    const file = folder.file("gpu.jsonl");
    const { code, errors } = await runGpu(["--out", file, "--only", "cudnn"]);
    assert.equal(code, 0, errors);
    const told = linesOf(file).map(({ case: what, outcome }) => [what, outcome]);
    assert.deepEqual(told, [["attention by cuDNN", "passed"], ["cudnn", "passed"]]);
    const without = folder.file("without.jsonl");
    const nowhere = { FULLYSHARD_CUDNN_LIBRARY: "/nowhere/libcudnn.so.9" };
    assert.equal((await runGpu(["--out", without, "--only", "cudnn"], nowhere)).code, 0);
    const [line] = linesOf(without);
    assert.deepEqual([line?.case, line?.outcome], ["attention by cuDNN", "cannot"]);
    assert.match(line?.reason ?? "", /^Cannot open cuDNN\. Install it with 'pip install nvidia-cudnn-cu13'/);
  },
);

test("differenceOf() finds a word that differs by more than is allowed", () => {
  const words = (...values: readonly number[]): Uint32Array => new Uint32Array(Float32Array.from(values).buffer);
  assert.equal(differenceOf("philox", words(1, 2), words(1, 2)), undefined);
  assert.match(
    differenceOf("philox", words(1, 2), words(1, 3)) ?? "",
    /^element 1: 0x40000000 on the card, 0x40400000/,
  );
  assert.equal(differenceOf("sigmoid", words(1.0000001), words(1)), undefined);
  assert.match(differenceOf("sigmoid", words(1.00001), words(1)) ?? "", /^element 0/);
  assert.match(differenceOf("sigmoid", words(NaN), words(1)) ?? "", /^element 0/);
  assert.match(differenceOf("philox", words(1, 2), words(1)) ?? "", /2 words on the card, 1 on the host/);
});

/** `fullyshard estimate`: its figures, in both forms, its speed at scale, and what it refuses. @module */
import assert from "node:assert/strict";
import { spawnSync } from "node:child_process";
import { describe } from "node:test";
import { fileURLToPath } from "node:url";
import { buildCudaTwin, lackingForTwin } from "../native/cuda/build.ts";
import { RUNTIME } from "../support/rank_process.ts";
import { longTest, onlyInAll, sharedTest as it } from "../support/share.ts";
import { temporaryDirectory } from "../support/temporary.ts";
import { flagsIn, metricLines, run as runRanks } from "../train/runs.ts";

const bin = fileURLToPath(new URL("../../bin/fullyshard.mjs", import.meta.url));

function run(...args: readonly string[]): { code: number | null; stdout: string; stderr: string } {
  const command = [bin, "--runtime", RUNTIME, "estimate", ...args];
  const { status, stdout, stderr } = spawnSync("node", command, { encoding: "utf8" });
  return { code: status, stdout, stderr };
}

/** The output of `--json`. */
interface Estimate {
  readonly peak_bytes: number;
  readonly terms: Readonly<Record<string, number>>;
  readonly bytes_communicated: number;
  readonly collectives: readonly {
    readonly kind: string;
    readonly unit: string;
    readonly phase: string | null;
    readonly bytes: number;
  }[];
  readonly flops: number;
}

const llama3 = {
  model_type: "llama",
  vocab_size: 128256,
  hidden_size: 4096,
  intermediate_size: 14336,
  num_hidden_layers: 32,
  num_attention_heads: 32,
  num_key_value_heads: 8,
  max_position_embeddings: 8192,
  rope_theta: 500000,
  tie_word_embeddings: false,
};
const perBlock = 2 * 4096 * 4096 + 2 * 4096 * 1024 + 3 * 4096 * 14336 + 2 * 4096;
const rootParameters = 2 * 128256 * 4096 + 4096;

const small = {
  ...llama3,
  vocab_size: 640,
  hidden_size: 64,
  intermediate_size: 96,
  num_hidden_layers: 2,
  num_attention_heads: 4,
  num_key_value_heads: 2,
  max_position_embeddings: 64,
};

describe("fullyshard estimate", () => {
  for (const ranks of [8, 64, 1024]) {
    it(`tells what Llama-3-8B takes on ${ranks} ranks`, () => {
      using folder = temporaryDirectory();
      folder.write("config.json", JSON.stringify(llama3));
      const sizes = ["--nproc", `${ranks}`, "--precision", "bfloat16", "--seq", "2048", "--cpu-math", "wasm"];
      const { code, stdout, stderr } = run("--model", folder.path, ...sizes, "--json");
      assert.equal(code, 0, stderr);
      const { peak_bytes: peak, terms, bytes_communicated: received, collectives, flops }: Estimate = JSON.parse(
        stdout.trimEnd().split("\n").at(-1) ?? "",
      );
      assert.equal(Object.values(terms).reduce((sum, bytes) => sum + bytes, 0), peak);
      const numParameters = 32 * perBlock + rootParameters;
      // Parameters and runs are padded to whole blocks, and a unit's window on each rank to whole pages.
      const isAbout = (bytes: number | undefined, expected: number): void => {
        const most = 1.001 * expected + 33 * 4096;
        assert.ok(bytes !== undefined && bytes >= expected && bytes < most, `${bytes} is not about ${expected}`);
      };
      isAbout(terms["parameters"], numParameters / ranks * (4 + 2)); // masters, and what is gathered
      isAbout(terms["optimizer"], numParameters / ranks * 8);
      assert.ok(flops > 6 * numParameters * 2048 * 0.93 && flops < 6 * numParameters * 2048 * 1.07, `${flops}`);
      const of = (kind: string, phase: string): typeof collectives =>
        collectives.filter((call) => call.kind === kind && call.phase === phase);
      const blocks = Array.from({ length: 32 }, (_, i) => `model.layers.${i}`);
      const unitsOf = (list: typeof collectives): string[] => list.map(({ unit }) => unit);
      assert.deepEqual(unitsOf(of("gather", "forward")), ["LlamaForCausalLm", ...blocks]);
      assert.deepEqual(unitsOf(of("gather", "backward")), blocks.toReversed());
      assert.deepEqual(unitsOf(of("reduce-scatter", "backward")), [...blocks.toReversed(), "LlamaForCausalLm"]);
      for (const { unit, bytes } of of("gather", "forward")) {
        isAbout(bytes, 2 * (unit === "LlamaForCausalLm" ? rootParameters : perBlock));
      }
      for (const { unit, bytes } of of("reduce-scatter", "backward")) {
        isAbout(bytes, 4 * (unit === "LlamaForCausalLm" ? rootParameters : perBlock));
      }
      const sums = collectives.filter(({ kind }) => kind === "all-reduce");
      assert.deepEqual(sums.map(({ unit }) => unit), ["loss", "gradient norm"]);
      assert.equal(collectives.length, 33 + 32 + 33 + 2);
      const moved = collectives.reduce((sum, { kind, bytes }) => sum + bytes * (kind === "all-reduce" ? 2 : 1), 0);
      assert.equal(received, Math.ceil(moved * (ranks - 1) / ranks));
    });
  }

  longTest("tells the time of a step as published for Llama-3.1-8B on 8 and 128 H100", () => {
    // torchtitan 2024-12, bfloat16 with selective checkpointing, 2 samples of 8192 tokens: tokens a second and GPU.
    const published = { 8: 5762, 128: 5605 };
    using folder = temporaryDirectory();
    folder.write("config.json", JSON.stringify(llama3));
    const timesOf = (ranks: number, tflops: number): Readonly<Record<string, number>> => {
      const sizes = [
        "--nproc",
        `${ranks}`,
        "--ranks-per-host",
        "8",
        "--seq",
        "8192",
        "--batch",
        "2",
        "--cpu-math",
        "wasm",
      ];
      const kind = ["--precision", "bfloat16", "--activation-checkpointing", "selective", "--json"];
      // NVLink within a host, a 400 Gb/s card for each GPU across them.
      const speeds = ["--tflops", `${tflops}`, "--host-bandwidth", "350", "--bandwidth", "50"];
      const { code, stdout, stderr } = run("--model", folder.path, ...sizes, ...kind, ...speeds);
      assert.equal(code, 0, stderr);
      return JSON.parse(stdout);
    };
    // The speed of compute is that of 8 GPUs, whose communication is hidden; 128 follow from it.
    const few = timesOf(8, 348.5);
    const many = timesOf(128, 348.5);
    const error = (times: typeof few, expected: number): number =>
      (times["tokens_per_second_per_rank"] ?? NaN) / expected - 1;
    assert.ok(Math.abs(error(few, published[8])) < 0.005, `${error(few, published[8])}`);
    assert.ok(Math.abs(error(many, published[128])) < 0.03, `${error(many, published[128])}`);
    for (const times of [few, many]) {
      const [step = NaN, compute = NaN, exposed = NaN, all = NaN] = ["step", "compute", "exposed", "communication"]
        .map((name) => times[`${name}_seconds`]);
      assert.ok(Math.abs(compute + exposed - step) < 1e-9);
      assert.ok(exposed > 0 && exposed < all);
    }
    assert.ok((many["communication_seconds"] ?? 0) > 5 * (few["communication_seconds"] ?? NaN));
  });

  longTest("tells what a mesh moves: hosts that hold copies send each other less", () => {
    using folder = temporaryDirectory();
    const file = folder.write("tiny.json", JSON.stringify(small));
    const callsOf = (...flags: readonly string[]): readonly (Estimate["collectives"][number] & { hosts: number })[] => {
      const { code, stdout, stderr } = run("--model", file, "--nproc", "8", "--seq", "16", "--json", ...flags);
      assert.equal(code, 0, stderr);
      return JSON.parse(stdout).collectives;
    };
    const hostsOf = (calls: ReturnType<typeof callsOf>, kind: string): Set<number> =>
      new Set(calls.filter((call) => call.kind === kind && call.phase !== null).map(({ hosts }) => hosts));
    const flat = callsOf("--ranks-per-host", "4");
    const hybrid = callsOf("--ranks-per-host", "4", "--mesh", "hybrid");
    assert.deepEqual(hostsOf(flat, "gather"), new Set([2]));
    assert.deepEqual([hostsOf(hybrid, "gather"), hostsOf(hybrid, "all-reduce")], [new Set([1]), new Set([2])]);
    assert.deepEqual(callsOf("--ranks-per-host", "4", "--mesh", "2x4"), hybrid);
    const { code, stderr } = run("--model", file, "--nproc", "8", "--mesh", "3x2", "--seq", "16");
    assert.equal(code, 2);
    assert.match(stderr, /mesh: expected a mesh of 8 ranks, got 3x2/);
    const half = run("--model", file, "--nproc", "8", "--seq", "16", "--tflops", "1");
    assert.match(half.stderr, /--bandwidth: expected both speeds, or none, got nothing/);
    const told = run("--model", file, "--nproc", "8", "--seq", "16", "--tflops", "1", "--bandwidth", "10").stdout;
    assert.match(told, /^Time of a step at 1 TFLOP\/s and 10 GB\/s\n {2}compute +\S+ s\n/m);
    assert.match(told, /^ {2}tokens a second +\d+$/m);
  });

  it("prints a table, takes a file, and says what the flags change", () => {
    using folder = temporaryDirectory();
    const file = folder.write("tiny.json", JSON.stringify(small));
    const text = (...flags: readonly string[]): string => {
      const { code, stdout, stderr } = run("--model", file, "--nproc", "4", "--seq", "16", ...flags);
      assert.equal(code, 0, stderr);
      return stdout;
    };
    const plain = text();
    assert.match(plain, /^\d+ parameters, FSDP over 4 ranks, float32, a step of 1 × 1 sample of 16 tokens a rank\n/);
    assert.match(
      plain,
      /^Memory of rank 0 at its peak\n( {2}[a-z ]+ +[\d.]+ ([KMG]iB|bytes)\n)+ {2}in all +[\d.]+ [KMG]iB$/m,
    );
    assert.match(plain, /^ {2}gather +5 × +[\d.]+ [KMG]iB$/m);
    assert.match(text("--no-reshard-after-forward"), /^ {2}gather +3 × /m);
    assert.match(text("--micro-batches", "2", "--batch", "3"), /, a step of 2 × 3 samples of 16 tokens a rank\n/);
    const ddp = text("--strategy", "ddp", "--rank", "3");
    assert.match(ddp, /DDP over 4 ranks[^]*Memory of rank 3/);
    assert.doesNotMatch(ddp, /^ {2}gather /m);
  });

  it("counts the memory of a step's graph, and only the calls of one step", () => {
    using folder = temporaryDirectory();
    const file = folder.write("tiny.json", JSON.stringify(small));
    const of = (...flags: readonly string[]): Estimate => {
      const { code, stdout, stderr } = run("--model", file, "--nproc", "2", "--seq", "16", "--json", ...flags);
      assert.equal(code, 0, stderr);
      return JSON.parse(stdout);
    };
    const [plain, byGraph] = [of(), of("--cuda-graphs", "--no-registers-memory")];
    // A graph's block holds what a step allocates, whatever it is for, beside what was there before; NCCL stages nothing.
    const { optimizer, activations = 0, gathered, gradients, staging } = byGraph.terms;
    assert.deepEqual([optimizer, gathered, gradients, staging], [plain.terms["optimizer"], 0, 0, 0]);
    assert.ok(activations > Number(plain.terms["gathered"]) + Number(plain.terms["gradients"]));
    assert.deepEqual(byGraph.collectives, plain.collectives);
    assert.equal(byGraph.flops, plain.flops);
    const offloaded = run("--model", file, "--nproc", "2", "--seq", "16", "--cuda-graphs", "--cpu-offload");
    assert.match(offloaded.stderr, /Cannot capture steps on cuda: '.+' is offloaded/);
  });

  longTest(
    "takes the card that it is told of, or that others of its flags need, as one that computes more logits at once",
    () => {
      using folder = temporaryDirectory();
      const file = folder.write(
        "wide.json",
        JSON.stringify({ ...small, vocab_size: 8192, max_position_embeddings: 512 }),
      );
      const of = (...flags: readonly string[]): Estimate => {
        const { code, stdout, stderr } = run("--model", file, "--nproc", "1", "--seq", "512", "--json", ...flags);
        assert.equal(code, 0, stderr);
        return JSON.parse(stdout);
      };
      const [cpu, card, byCudnn] = [of(), of("--device", "cuda"), of("--attention", "cudnn")];
      assert.deepEqual(of("--device", "cpu"), cpu);
      assert.deepEqual(byCudnn, card);
      // Rows of float32, of which the CPU computes 256 at a time.
      const more = Number(card.terms["activations"]) - Number(cpu.terms["activations"]);
      assert.equal(more, (512 - 256) * 8192 * 4);
      const { code, stderr } = run(
        "--model",
        file,
        "--nproc",
        "1",
        "--device",
        "cpu",
        "--cuda-graphs",
        "--attention",
        "cudnn",
      );
      assert.equal(code, 2);
      assert.match(
        stderr,
        /cudaGraphs: expected device cuda, got 'cpu'\n {2}attention: expected device cuda, got 'cpu'/,
      );
    },
  );

  // With these sizes a card computes 320 rows of logits at once, and the CPU 256.
  const wide = { ...small, vocab_size: 4096, hidden_size: 16, intermediate_size: 32, num_hidden_layers: 1 };
  const ofCards: readonly (readonly [what: string, flags: readonly string[], nccl: string, ...more: string[]])[] = [
    ["by single calls", ["--device", "cuda"], "22809"],
    ["by graphs", ["--device", "cuda", "--cuda-graphs", "--precision", "bfloat16"], "22809"],
    ["by graphs by an NCCL of 2.26", ["--device", "cuda", "--cuda-graphs"], "22605", "--no-registers-memory"],
  ];
  const onTwin = { skip: lackingForTwin(), timeout: 300_000 };
  for (const [what, flags, nccl, ...more] of onlyInAll(ofCards)) {
    it(`tells what a run on cards uses ${what}, to the byte`, onTwin, async () => {
      using folder = temporaryDirectory();
      const file = folder.write("config.json", JSON.stringify(wide));
      const env = { ...(await buildCudaTwin()).variables, TWIN_CARDS: "2", TWIN_NCCL: nccl };
      const sizes = ["--sequence-length", "64", "--global-batch", "10", "--steps", "4"];
      const taken = await runRanks(flagsIn(folder, "tokens=bytes", ...sizes, "--model", file, ...flags), { env });
      assert.equal(taken.code, 0, taken.stdout + taken.stderr);
      const { peak_bytes: seen }: Estimate = JSON.parse(metricLines(folder).at(-1) ?? "");
      const shape = ["--nproc", "2", "--batch", "5", "--seq", "64"];
      const { stdout, stderr } = run("--model", file, ...shape, ...flags, ...more, "--json");
      const { peak_bytes: told }: Estimate = JSON.parse(stdout || assert.fail(stderr));
      assert.equal(told, seen);
    });
  }

  longTest("refuses what it cannot read or run, by name", () => {
    using folder = temporaryDirectory();
    const file = folder.write("config.json", JSON.stringify(small));
    const cases: readonly (readonly [args: readonly string[], message: RegExp])[] = [
      [["--model", file, "--nprok", "2"], /--nprok: expected a known flag, got '--nprok'\. Did you mean '--nproc'\?/],
      [["--model", file], /nproc: expected .*, got nothing\. Set '--nproc'/],
      [["--nproc", "2"], /model: expected a text, got nothing\. Set '--model'/],
      [["--model", file, "--nproc", "0"], /--nproc: expected .*> ?=? ?0.*, got 0/],
      [["--model", file, "--nproc", "2", "--rank", "2"], /--rank: expected a rank below 2, got 2/],
      [["--model", file, "--nproc", "2", "--precision", "bfloat"], /--precision: expected .*Did you mean 'bfloat16'\?/],
      [["--model", file, "--nproc", "2"], /sequenceLength: expected at most 64, the model's positions, got 256/],
      [["--model", `${folder.path}/none`, "--nproc", "2"], /none\/config\.json/],
      [["--model", folder.write("a.json", "{"), "--nproc", "2"], /a\.json: The model configuration must be JSON/],
      [["--model", folder.write("b.json", "[]"), "--nproc", "2"], /b\.json: The model configuration must be .*object/],
      [
        ["--model", folder.write("c.json", "{}"), "--nproc", "2"],
        /Cannot build a model of no model_type: 'deepseek_v2', .* are supported/,
      ],
      [
        ["--model", folder.write("d.json", '{"model_type":"mamba"}'), "--nproc", "2"],
        /Cannot build a model of model_type 'mamba': 'deepseek_v2', .* are supported/,
      ],
      [
        ["--model", folder.write("e.json", '{"model_type":"llama"}'), "--nproc", "2"],
        /config\.json hidden_size: expected .*, got nothing/,
      ],
    ];
    for (const [args, message] of cases) {
      const { code, stdout, stderr } = run(...args);
      assert.match(stderr, message);
      assert.match(stderr, /^fullyshard estimate: /);
      assert.deepEqual([code, stdout], [2, ""]);
    }
  });
});

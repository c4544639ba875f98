/**
 * One optimizer step with AdamW: of Llamas of 7.9 M and 110 M parameters on two ranks, sequence 256, four and two samples a rank,
 * or with `--threads` on one rank; and of a GPT of 0.47 M parameters on one rank, eight samples of 64 tokens, against jax-js.
 *
 * @module
 */
import { fmaPeak } from "./peak.ts";
import { jaxJsSide } from "./jax_js.ts";
import { launch, rank } from "./process.ts";
import { type BenchModel, modelOfCase } from "./ranks/models.ts";
import { type BenchCase, program, type Side, type Subject } from "./subject.ts";

/** A case, the flags of our side, and what PyTorch's side is called, where it has one. */
interface StepCase extends BenchCase {
  readonly args: readonly string[];
  readonly mode?: string;
  /** True if the case always runs on one rank. */
  readonly isAlone?: true;
}

/** PyTorch computes in bfloat16 where the processor has AVX512_BF16, and emulates it elsewhere. */
const BFLOAT16 = { avx2: 3, avx512: 3, "avx512-bf16": 1.8 } as const;

const CASES: readonly StepCase[] = [
  {
    name: "llama-8m-f32",
    args: ["--cpu-math", "native"],
    mode: "fsdp2",
    peers: ["torch", "ddp", "apart"],
    target: { avx2: 1.7, avx512: 2.2 },
    targets: { ddp: 1 / 1.03, apart: 0.97 },
  },
  {
    name: "llama-8m-f32-ddp",
    args: ["--cpu-math", "native", "--strategy", "ddp"],
    mode: "ddp",
    target: { avx2: 1.5, avx512: 1.6 },
  },
  {
    name: "llama-8m-bf16",
    args: ["--cpu-math", "native", "--precision", "bfloat16"],
    mode: "fsdp2-bf16",
    target: BFLOAT16,
  },
  { name: "llama-110m-f32", args: ["--cpu-math", "native"], mode: "fsdp2", target: 2 },
  {
    name: "llama-110m-bf16",
    args: ["--cpu-math", "native", "--precision", "bfloat16"],
    mode: "fsdp2-bf16",
    target: 1.8,
  },
  {
    name: "llama-8m-f32-wasm",
    args: ["--cpu-math", "wasm-relaxed"],
    mode: "fsdp2",
    target: { avx2: 0.55, avx512: 0.45 },
  },
  {
    name: "gpt-0.5m",
    args: ["--cpu-math", "native"],
    isAlone: true,
    peers: ["jax-js"],
    targets: { "jax-js": 4 },
  },
  { name: "gpt-0.5m-wasm", args: ["--cpu-math", "wasm-relaxed"], isAlone: true, peers: ["jax-js"] },
];

function caseOf(names: readonly string[]): StepCase {
  const found = CASES.find(({ name }) => name === names[0]);
  if (found === undefined) throw new Error(`no step '${names[0]}'`);
  return found;
}

/** A rank's FLOPs: six for each weight of a product and token, and attention's, of which a causal one does half. */
function flopsOf({ config, batch, seq }: BenchModel): number {
  const size = (key: string): number => Number(config[key]);
  const [hidden, heads, layers] = [size("hidden_size"), size("num_attention_heads"), size("num_hidden_layers")];
  const [kv, inner] = [hidden * size("num_key_value_heads") / heads, size("intermediate_size")];
  const weights = layers * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner) + hidden * size("vocab_size");
  return 6 * weights * batch * seq + 3 * layers * (4 * batch * seq * seq * hidden / 2);
}

/** Our side, with more flags. */
function ours(...more: readonly string[]): Side {
  return program(({ runtime, ranks = 2 }, names) => {
    const { args, isAlone, name } = caseOf(names);
    const script = ["bench/ranks/step.ts", ...args, ...more, name];
    return isAlone ? rank(runtime, ...script) : launch(runtime, ranks, ...script);
  });
}

/** As many runs of one rank at the same time, of which each computes what a rank computes and none waits for another: their mean. */
const apart: Side = async (setting, names) => {
  const alone = program(({ runtime }) =>
    rank(runtime, "bench/ranks/step.ts", ...caseOf(names).args, caseOf(names).name)
  );
  const runs = await Promise.all(Array.from({ length: setting.ranks ?? 2 }, () => alone(setting, names)));
  return new Map(names.map((name) => {
    const outcomes = runs.flatMap((run) => run.get(name) ?? []);
    const failure = outcomes.find((outcome) => typeof outcome === "string");
    const sum = outcomes.reduce<number>((total, ms) => total + Number(ms), 0);
    return [name, failure ?? sum / outcomes.length];
  }));
};

/** Milliseconds of a step, the median of one process's steps. */
export const STEP: Subject = {
  name: "step",
  unit: "ms",
  higherIsBetter: false,
  takesThreads: true,
  threadsTarget: 1.65,
  isApart: true,
  cases: CASES,
  ours: ours(),
  peers: {
    torch: program(({ python, ranks = 2 }, names) => {
      const { name, mode = "none" } = caseOf(names);
      const launcher = ["-m", "torch.distributed.run", "--nproc_per_node", String(ranks)];
      const model = JSON.stringify(modelOfCase(name));
      return [python, ...launcher, "bench/peers/step.py", "--mode", mode, "--model", model, "--case", name];
    }),
    "jax-js": jaxJsSide("jax_js_step.mjs"),
    ddp: ours("--strategy", "ddp"),
    apart,
  },
  // MFU: FLOPs over the time, by the FMA peak of as many cores as are busy.
  more: async ({ ranks = 2, threads }, name, ours, theirs) => {
    if (!/^llama-.*-f32/.test(name)) return {};
    const flops = flopsOf(modelOfCase(name));
    const cores = ranks * threads;
    const peak = await fmaPeak(cores);
    const mfu = (ms: number): number => ranks * flops / ms / 1e6 / (cores * peak);
    return { fmaPeak: peak, mfu: mfu(ours), ...theirs === undefined ? {} : { theirMfu: mfu(theirs) } };
  },
};

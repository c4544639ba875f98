/**
 * One optimizer step of the 7.9 M Llama on two ranks: sequence 256, four samples a rank, AdamW. With
 * `--threads` on one rank.
 *
 * @module
 */
import { fmaPeak } from "./peak.ts";
import { launch } from "./process.ts";
import { program, type Subject } from "./subject.ts";

const CASES = [
  { name: "llama-8m-f32", args: ["--cpu-math", "native"], mode: "fsdp2", target: { avx2: 1.7, avx512: 2.2 } },
  {
    name: "llama-8m-f32-ddp",
    args: ["--cpu-math", "native", "--strategy", "ddp"],
    mode: "ddp",
    target: { avx2: 1.5, avx512: 1.6 },
  },
  { name: "llama-8m-bf16", args: ["--cpu-math", "native", "--precision", "bfloat16"], mode: "fsdp2-bf16", target: 1.8 },
  { name: "llama-8m-f32-onednn", args: ["--cpu-math", "onednn"], mode: "fsdp2" },
  {
    name: "llama-8m-f32-wasm",
    args: ["--cpu-math", "wasm-relaxed"],
    mode: "fsdp2",
    target: { avx2: 0.55, avx512: 0.45 },
  },
] as const;

function caseOf(names: readonly string[]): typeof CASES[number] {
  const found = CASES.find(({ name }) => name === names[0]);
  if (found === undefined) throw new Error(`no step '${names[0]}'`);
  return found;
}

/** A rank's FLOPs: six for each weight of a product and token, and attention's, of which a causal one does half. */
const FLOPS = ((): number => {
  const [tokens, hidden, kv, inner, layers, vocab, seq] = [1024, 256, 128, 688, 8, 4096, 256];
  const weights = layers * (2 * hidden * hidden + 2 * hidden * kv + 3 * hidden * inner) + hidden * vocab;
  return 6 * weights * tokens + 3 * layers * (4 * tokens * seq * hidden / 2);
})();

/** Milliseconds of a step, the median of one process's steps. */
export const STEP: Subject = {
  name: "step",
  unit: "ms",
  higherIsBetter: false,
  threadsTarget: 1.65,
  isApart: true,
  cases: CASES,
  ours: program(({ runtime, ranks = 2 }, names) =>
    launch(runtime, ranks, "bench/ranks/step.ts", ...caseOf(names).args, names[0] ?? "")
  ),
  torch: program(({ python, ranks = 2 }, names) => [
    python,
    ...["-m", "torch.distributed.run", "--nproc_per_node", String(ranks), "bench/peers/step.py"],
    ...["--mode", caseOf(names).mode, "--case", ...names],
  ]),
  // MFU: FLOPs over the time, by the FMA peak with both cores busy.
  more: async ({ ranks = 2 }, name, ours, theirs) => {
    if (!name.startsWith("llama-8m-f32")) return {};
    const peak = await fmaPeak(2);
    const mfu = (ms: number): number => ranks * FLOPS / ms / 1e6 / (2 * peak);
    return { fmaPeak: peak, mfu: mfu(ours), ...theirs === undefined ? {} : { theirMfu: mfu(theirs) } };
  },
};

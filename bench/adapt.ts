/**
 * Fine-tuning on chats in one process, against TRL's `SFTTrainer` with transformers and PEFT: tokens a second of a Llama of 32 M parameters,
 * four samples of 256 tokens a step, all of the model and LoRA of rank 16 on all linear layers, in float32 and bfloat16. Both sides read the
 * same folder and rows and take the same optimizer's steps; neither checkpoints activations. `rss` and `theirRss` are the most resident
 * memory of a process in MiB, `rssRatio` ours by theirs; `grown` and `theirGrown` leave out what it had before the model was read.
 *
 * Two cases take the same steps on two ranks: ours shard the model (FSDP), and TRL's replicate it, as Accelerate does on CPUs.
 *
 * @module
 */
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { dirname } from "node:path";
import process from "node:process";
import { chatOf, makeBase } from "../scripts/adapt/inputs.ts";
import { median } from "./figures.ts";
import { launch, rank, runOfItsOwn, runProgram } from "./process.ts";
import { type BenchCase, type BenchSetting, linesOf, outcomeOf, type Side, type Subject } from "./subject.ts";

/** A Llama of 32 M parameters. */
const SIZES = {
  model_type: "llama",
  vocab_size: 8192,
  hidden_size: 512,
  intermediate_size: 1408,
  num_hidden_layers: 8,
  num_attention_heads: 8,
  num_key_value_heads: 4,
  max_position_embeddings: 1024,
  rms_norm_eps: 1e-6,
  rope_theta: 10000,
  tie_word_embeddings: false,
  bos_token_id: 0,
  eos_token_id: 1,
} as const;

/** What a step takes, and the steps before those that are timed, and how many are. */
const STEP = { batch: 4, seq: 256, warmUp: 3, timed: 5 } as const;

/** A case: what is trained, and what is computed in. */
interface AdaptCase extends BenchCase {
  readonly lora: boolean;
  readonly precision: "float32" | "bfloat16";
  /** @default 1 */
  readonly ranks?: number;
}

const CASES: readonly AdaptCase[] = [
  { name: "full-f32", lora: false, precision: "float32", peers: ["trl"], targets: { trl: 1.8 } },
  { name: "full-bf16", lora: false, precision: "bfloat16", peers: ["trl"], targets: { trl: 1.8 } },
  { name: "lora-f32", lora: true, precision: "float32", peers: ["trl"], targets: { trl: 2 } },
  { name: "lora-bf16", lora: true, precision: "bfloat16", peers: ["trl"], targets: { trl: 2 } },
  { name: "full-f32-2-ranks", lora: false, precision: "float32", ranks: 2, peers: ["trl"] },
  { name: "lora-f32-2-ranks", lora: true, precision: "float32", ranks: 2, peers: ["trl"] },
];

function caseOf(name: string): AdaptCase {
  const found = CASES.find((one) => one.name === name);
  if (found === undefined) throw new Error(`no case '${name}' of fine-tuning`);
  return found;
}

/** The folder of models and rows, made for the first case that needs it. */
let made: Promise<string> | undefined;

/** Makes models in both types, and rows of more tokens than a sample has, so that every sample has as many. */
async function makeFolder(): Promise<string> {
  const folder = mkdtempSync(`${tmpdir()}/fullyshard-bench-adapt-`);
  process.once("exit", () => rmSync(folder, { recursive: true, force: true }));
  await makeBase(`${folder}/float32`, { sizes: SIZES });
  await makeBase(`${folder}/bfloat16`, { sizes: SIZES, dtype: "bfloat16" });
  const rows = Array.from({ length: 64 }, (_, i) => {
    const messages = Array.from(
      { length: 24 },
      (_, turn) => chatOf(i * 24 + turn).messages.filter(({ role }) => role !== "system"),
    );
    return `${JSON.stringify({ messages: messages.flat() })}\n`;
  });
  writeFileSync(`${folder}/chats.jsonl`, rows.join(""));
  return folder;
}

/** The most resident memory of each side's last runs, in bytes: all of it, and what came with the model. */
interface Resident {
  readonly all: number[];
  readonly grown: number[];
}
const resident = new Map<string, Resident>();

function sideOf(
  who: "ours" | "theirs",
  commandOf: (setting: BenchSetting, one: AdaptCase, model: string, rows: string) => readonly [string, ...string[]],
): Side {
  return async (setting, [name = ""]) => {
    const folder = await (made ??= makeFolder());
    const one = caseOf(name);
    // Weights that are trained are float32; a frozen model is of the type that is computed in.
    const model = `${folder}/${one.lora ? one.precision : "float32"}`;
    const [program, ...args] = commandOf(setting, one, model, `${folder}/chats.jsonl`);
    const threads = Math.max(1, Math.floor(setting.threads / (one.ranks ?? 1)));
    const variables = { OMP_NUM_THREADS: String(threads), HF_HOME: `${folder}/hugging_face`, ...runOfItsOwn() };
    const { output } = await runProgram(program, args, { ...variables, HF_HUB_OFFLINE: "1", CUDA_VISIBLE_DEVICES: "" });
    const kept = resident.get(`${who} ${name}`) ?? { all: [], grown: [] };
    resident.set(`${who} ${name}`, kept);
    for (const [key, text] of linesOf(output)) {
      if (key === `${name}-rss`) kept.all.push(Number(text));
      if (key === `${name}-grown`) kept.grown.push(Number(text));
    }
    return new Map([[name, outcomeOf(output, name)]]);
  };
}

/** MiB of a side's rounds: their median. */
function mib(who: string, name: string, what: keyof Resident): number {
  return (median(resident.get(`${who} ${name}`)?.[what] ?? []) ?? NaN) / 2 ** 20;
}

/** Tokens a second. */
export const ADAPT: Subject = {
  name: "adapt",
  unit: "tokens/s",
  higherIsBetter: true,
  takesThreads: true,
  usualThreads: 2,
  isApart: true,
  cases: CASES,
  ours: sideOf(
    "ours",
    ({ runtime }, { name, lora, precision, ranks = 1 }, model, rows) => {
      const out = mkdtempSync(`${dirname(rows)}/out-`); // one for all ranks
      const script = ["bench/ranks/adapt.ts", name, JSON.stringify({ ...STEP, lora, precision, model, rows, out })];
      return ranks === 1 ? rank(runtime, ...script) : launch(runtime, ranks, "--deno-args=-A", ...script);
    },
  ),
  peers: {
    trl: sideOf(
      "theirs",
      (
        { python },
        { name, lora, precision, ranks = 1 },
        model,
        rows,
      ) => [
        python,
        ...ranks === 1 ? [] : ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", String(ranks)],
        ...["bench/peers/adapt.py", name, JSON.stringify({ ...STEP, lora, precision, model, rows })],
      ],
    ),
  },
  more: (_setting, name, _ours, theirs) => {
    const own = { rss: mib("ours", name, "all"), grown: mib("ours", name, "grown") };
    if (theirs === undefined) return Promise.resolve(own);
    const other = { theirRss: mib("theirs", name, "all"), theirGrown: mib("theirs", name, "grown") };
    return Promise.resolve({ ...own, ...other, rssRatio: own.rss / other.theirRss, rssTarget: 0.7 });
  },
};

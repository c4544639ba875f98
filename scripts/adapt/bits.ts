/**
 * Fine-tuning on 1 to 4 ranks has the same bits sharded, replicated, and on one rank that accumulates as many micro-batches; also when it
 * stops in the middle of an epoch and one rank goes on. Another number of ranks goes on with the same rows, and sums them in another order.
 *
 * @module
 */
import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import type { Bed } from "./bed.ts";
import { type AdaptItem, type Outcome, verdict } from "./item.ts";
import { distance, metricLines, metricsOf, train } from "./own.ts";

const STEPS = 5;
/** Rows of a step: a multiple of 1, 2, 3 and 4 micro-batches. */
const BATCH = 12;
/** The step after which a run on three ranks stops, to go on on another number: in the middle of the first epoch. */
const STOP_AFTER = 2;

const LORA = ["--lora-r", "4", "--lora-alpha", "16"];
const MUON = ["--optimizer", "muon"];
const EIGHT_BITS = ["--optimizer", "adamw8bit"];
const PACKED = ["--packing", "bfd"];

const DPO = ["--preference", "dpo"];

/** What is trained, and how, by name. */
const SETTINGS: ReadonlyMap<string, readonly string[]> = new Map([
  ["LoRA with dropout", [...LORA, "--lora-dropout", "0.1"]],
  ["LoRA, packed, Muon", [...LORA, ...PACKED, ...MUON]],
  ["LoRA, packed, 8-bit states", [...LORA, ...PACKED, ...EIGHT_BITS]],
  ["LoRA beside 4-bit weights", [...LORA, "--load-in-4bit"]],
  ["full, packed, Muon", [...PACKED, ...MUON]],
  ["full, 8-bit states", EIGHT_BITS],
  ["full, DPO", DPO],
  ["LoRA, DPO", [...LORA, ...DPO]],
]);

/** The bits of a run: its losses, norms and rates as they were written, and a digest of its weights. */
interface Bits {
  readonly lines: readonly string[];
  readonly weights: string;
}

function bitsOf(out: string): Bits {
  const hash = createHash("sha256");
  const files = readdirSync(`${out}/model`).filter((name) => name.endsWith(".safetensors")).sort();
  for (const name of files) hash.update(readFileSync(`${out}/model/${name}`));
  return {
    lines: metricLines(out).map((line) => line.replace(/,"tokens_per_second".*/, "")),
    weights: hash.digest("hex"),
  };
}

/** What two runs differ in. */
function differences(name: string, own: Bits, expected: Bits): readonly string[] {
  const step = expected.lines.findIndex((line, i) => own.lines[i] !== line);
  if (step >= 0) return [`${name}: expected ${expected.lines[step]}, got ${own.lines[step] ?? "no such step"}`];
  return own.weights === expected.weights ? [] : [`${name}: the weights differ after equal losses`];
}

/** What a resumed run may be off by, where other ranks sum the same rows in another order. */
const OTHER_ORDER = 1e-4;

async function sameBits({ inputs, folder }: Bed, name: string, flags: readonly string[]): Promise<Outcome> {
  const place = (label: string): string => `${folder}/bits-${name.replace(/\W+/g, "-")}-${label}`;
  const data = flags.includes("--preference") ? inputs.manyPairs : inputs.chats;
  let runs = 0;
  const run = async (label: string, ranks: number, ...more: readonly string[]): Promise<void> => {
    await train(
      place(label),
      ranks,
      ...["--model", inputs.base, "--data", data, "--steps", String(STEPS), "--learning-rate", "0.002"],
      ...["--global-batch", String(BATCH), ...flags, ...more],
    );
    runs++;
  };
  const wrong: string[] = [];
  for (const ranks of [1, 2, 3, 4]) {
    await run(`alone-${ranks}`, 1, "--micro-batches", String(ranks));
    const alone = bitsOf(place(`alone-${ranks}`));
    for (const strategy of ranks === 1 ? ["ddp"] : ["fsdp", "ddp"]) {
      const label = `${strategy}-${ranks}`;
      await run(label, ranks, "--strategy", strategy);
      wrong.push(...differences(label, bitsOf(place(label)), alone));
    }
  }
  const ofThree = bitsOf(place("alone-3"));
  await run("on-1", 3, "--stop-after", String(STOP_AFTER));
  await run("on-1", 1, "--resume", "auto", "--micro-batches", "3");
  wrong.push(...differences("resumed from 3 ranks on 1", bitsOf(place("on-1")), ofThree));
  await run("on-2", 3, "--stop-after", String(STOP_AFTER));
  await run("on-2", 2, "--resume", "auto");
  const [whole, resumed] = ["alone-3", "on-2"].map((label) => metricsOf(place(label)).map(({ loss }) => loss));
  const off = distance(whole ?? [], resumed ?? []);
  if (!(off <= OTHER_ORDER)) wrong.push(`resumed from 3 ranks on 2: expected losses within ${OTHER_ORDER}, got ${off}`);
  const [first = "", last = ""] = [ofThree.lines[0], ofThree.lines.at(-1)];
  return verdict(wrong, { runs, steps: STEPS, first, last, resumed_on_2_off: off });
}

/** An item a setting. */
export const BITS: readonly AdaptItem[] = Array.from(SETTINGS, ([name, flags]) => ({
  name: `FSDP = DDP = accumulation to the bit on 1 to 4 ranks, and resumed on another number: ${name}`,
  run: (bed: Bed) => sameBits(bed, name, flags),
}));

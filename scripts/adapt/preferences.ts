/**
 * Preferences beside TRL's `DPOTrainer`, `ORPOTrainer` and `KTOTrainer`: losses and rewards of steps that each take all rows.
 *
 * @module
 */
import { readFileSync } from "node:fs";
import * as z from "zod";
import { type Bed, oncePerBed } from "./bed.ts";
import { NUM_PAIRS, SEQUENCE_LENGTH } from "./inputs.ts";
import { type AdaptItem, type Outcome, verdict } from "./item.ts";
import { distance, train } from "./own.ts";

const STEPS = 10;
const LEARNING_RATE = 2e-3;
/** By which losses and margins in float32 may differ. */
const LARGEST_DISTANCE = 1e-4;

const NAMES = { dpo: "DPO", orpo: "ORPO", kto: "KTO" } as const;

/** What is learned, and of which weights. */
interface Case {
  readonly kind: keyof typeof NAMES;
  readonly lora: boolean;
}

const CASES: readonly Case[] = [
  { kind: "dpo", lora: false },
  { kind: "orpo", lora: false },
  { kind: "orpo", lora: true },
  { kind: "kto", lora: false },
  { kind: "kto", lora: true },
];

const line = z.object({ loss: z.number(), "rewards/margins": z.number() });

function rowsOf({ pairs, labels }: Bed["inputs"], kind: Case["kind"]): string {
  return kind === "kto" ? labels : pairs;
}

/** TRL's losses, and behind them the margins of rewards. */
function theirNumbers({ inputs, peer, recorded }: Bed, { kind, lora }: Case): Promise<readonly number[]> {
  return recorded.losses(
    `${kind} ${lora ? "lora" : "full"}`,
    peer && (async () => {
      const { losses, margins } = await peer.prefer({
        ...{ kind, base: inputs.base, ...lora ? { adapter: inputs.adapter } : {}, rows: rowsOf(inputs, kind) },
        ...{ batch: NUM_PAIRS, steps: STEPS, maxLength: SEQUENCE_LENGTH, learningRate: LEARNING_RATE },
      });
      return [...losses, ...margins];
    }),
  );
}

/** Trains on our side, as TRL did, and compares. */
async function compare({ inputs, folder }: Bed, one: Case, ranks: number, theirs: readonly number[]): Promise<Outcome> {
  const { kind, lora } = one;
  const out = `${folder}/${kind}-${lora}-${ranks}`;
  await train(
    out,
    ranks,
    ...["--preference", kind, "--model", inputs.base, "--data", rowsOf(inputs, kind), "--steps", String(STEPS)],
    ...["--global-batch", String(NUM_PAIRS), "--learning-rate", String(LEARNING_RATE), "--weight-decay", "0"],
    ...["--beta2", "0.999", "--max-grad-norm", "1", ...lora ? ["--adapter", inputs.adapter] : []],
  );
  const metrics = readFileSync(`${out}/metrics.jsonl`, "utf8").trimEnd().split("\n").map((text) =>
    line.parse(JSON.parse(text))
  );
  const own = [...metrics.map(({ loss }) => loss), ...metrics.map((found) => found["rewards/margins"])];
  const off = distance(own, theirs);
  const wrong = off <= LARGEST_DISTANCE && own.length === 2 * STEPS
    ? []
    : [`expected ${2 * STEPS} numbers within ${LARGEST_DISTANCE} of ${theirs.join(", ")}, got ${own.join(", ")}`];
  const figures = { ranks, steps: STEPS, first_loss: own[0] ?? NaN, last_loss: own[STEPS - 1] ?? NaN };
  return verdict(wrong, { ...figures, largest_difference: off });
}

/** Losses and rewards of preferences. */
export const PREFERENCES_BESIDE: readonly AdaptItem[] = CASES.flatMap((one) => {
  const theirs = oncePerBed((bed) => theirNumbers(bed, one));
  return [1, 2].map((ranks): AdaptItem => ({
    name: `${STEPS} losses and margins of ${NAMES[one.kind]}, ${one.lora ? "LoRA" : "all weights"}, ` +
      `${ranks} rank${ranks === 1 ? "" : "s"}`,
    run: async (bed) => await compare(bed, one, ranks, await theirs(bed)),
  }));
});

/**
 * Fine-tuning beside TRL's `SFTTrainer`: the same rows, template, masks and initial adapter, and the losses of 20 steps.
 *
 * @module
 */
import { type Bed, oncePerBed } from "./bed.ts";
import { NUM_CHATS, SEQUENCE_LENGTH } from "./inputs.ts";
import { type AdaptItem, type Outcome, verdict } from "./item.ts";
import { distance, metricsOf, orderOf, readRows, train, writeInOrder } from "./own.ts";
import type { Sample, Training, TrlLoss } from "./peer.ts";

const STEPS = 20;
const BATCH = 4;
/** Nats a token by which two losses in float32 may differ. */
const LOSS_DISTANCE = 1e-4;

const OPTIMIZER = { learningRate: 2e-3, weightDecay: 0.01, beta2: 0.999 } as const;

/** The first difference between two lists of samples. */
function difference(own: readonly Sample[], theirs: readonly Sample[]): readonly string[] {
  if (own.length !== theirs.length) return [`expected ${theirs.length} samples, got ${own.length}`];
  const row = own.findIndex((sample, i) => JSON.stringify(sample) !== JSON.stringify(withoutFirst(theirs[i])));
  if (row < 0) return [];
  return [`row ${row + 1}: expected ${JSON.stringify(withoutFirst(theirs[row]))}, got ${JSON.stringify(own[row])}`];
}

/** A sample whose first label is left out: nothing comes before it, so nothing predicts it. */
function withoutFirst(sample: Sample | undefined): Sample | undefined {
  return sample && { ids: sample.ids, labels: [-100, ...sample.labels.slice(1)] };
}

/** Rows, the part that the loss is on, and TRL's name for it. */
const KINDS:
  readonly (readonly [rows: "chats" | "prompts", own: "assistant" | "completion" | "all", theirs: TrlLoss])[] = [
    ["chats", "assistant", "assistant_only_loss"],
    ["chats", "all", "all"],
    ["prompts", "completion", "completion_only_loss"],
    ["prompts", "all", "all"],
  ];

async function compareSamples({ inputs, peer, recorded }: Bed): Promise<Outcome> {
  const [wrong, figures]: [string[], Record<string, number>] = [[], {}];
  for (const [kind, lossOn, loss] of KINDS) {
    const [name, rows] = [`${kind}, ${lossOn}`, inputs[kind]];
    const theirs = await recorded.samples(
      name,
      peer && (() => peer.samples(inputs.base, rows, loss, SEQUENCE_LENGTH)),
    );
    const own = await readRows(inputs.base, rows, { lossOn });
    wrong.push(...difference(own, theirs).map((what) => `${name}: ${what}`));
    figures[`${kind}_${lossOn}_tokens`] = own.reduce((sum, { ids }) => sum + ids.length, 0);
    figures[`${kind}_${lossOn}_targets`] = own.reduce(
      (sum, { labels }) => sum + labels.filter((label) => label >= 0).length,
      0,
    );
  }
  return verdict(wrong, figures);
}

/** What is trained: all of the model, or an adapter. */
type Kind = "full" | "lora";

/** TRL's training, which is the same for every number of ranks. */
async function theirTraining({ folder, inputs, peer, recorded }: Bed, kind: Kind): Promise<Partial<Training>> {
  const adapter = kind === "lora" ? { adapter: inputs.adapter } : {};
  let norms: Pick<Training, "gradNorms"> | undefined;
  const losses = await recorded.losses(
    kind,
    peer && (async () => {
      const rows = `${folder}/ordered.jsonl`;
      writeInOrder(inputs.chats, await orderOf(inputs.base, inputs.chats, STEPS, BATCH), rows);
      const request = { base: inputs.base, ...adapter, rows, batch: BATCH, steps: STEPS, maxLength: SEQUENCE_LENGTH };
      const { losses, gradNorms } = await peer.train({ ...request, ...OPTIMIZER });
      norms = { gradNorms };
      return losses;
    }),
  );
  return { losses, ...norms };
}

/** Trains on our side, as TRL did, and compares. */
async function compareLosses(bed: Bed, kind: Kind, ranks: number, theirs: Partial<Training>): Promise<Outcome> {
  const { inputs, folder } = bed;
  const out = `${folder}/${kind}-${ranks}`;
  await train(
    out,
    ranks,
    ...["--model", inputs.base, "--data", inputs.chats, "--steps", String(STEPS), "--global-batch", String(BATCH)],
    ...["--learning-rate", String(OPTIMIZER.learningRate), "--weight-decay", String(OPTIMIZER.weightDecay)],
    ...["--beta2", String(OPTIMIZER.beta2), "--decay-on", "weights", "--max-grad-norm", "1"],
    ...kind === "lora" ? ["--adapter", inputs.adapter] : [],
  );
  const metrics = metricsOf(out);
  const losses = metrics.map(({ loss }) => loss);
  const { losses: expected = [], gradNorms } = theirs;
  const off = distance(losses, expected);
  const figures = {
    ranks,
    steps: losses.length,
    first_loss: losses[0] ?? NaN,
    last_loss: losses.at(-1) ?? NaN,
    largest_difference: off,
    ...gradNorms === undefined
      ? {}
      : { largest_grad_norm_difference: distance(metrics.map(({ grad_norm }) => grad_norm), gradNorms) },
  };
  const wrong = off <= LOSS_DISTANCE && losses.length === STEPS
    ? []
    : [`expected ${STEPS} losses within ${LOSS_DISTANCE} of ${expected.join(", ")}, got ${losses.join(", ")}`];
  return verdict(wrong, figures);
}

/** TRL is asked once for each kind. */
const THEIRS: Readonly<Record<Kind, (bed: Bed) => Promise<Partial<Training>>>> = {
  full: oncePerBed((bed) => theirTraining(bed, "full")),
  lora: oncePerBed((bed) => theirTraining(bed, "lora")),
};

function lossItem(kind: Kind, ranks: number): AdaptItem {
  const what = kind === "full" ? "full fine-tuning" : "LoRA from the same initial adapter";
  return {
    name: `${STEPS} losses of ${what}, float32, ${ranks} rank${ranks === 1 ? "" : "s"}`,
    run: async (bed) => await compareLosses(bed, kind, ranks, await THEIRS[kind](bed)),
  };
}

/** Tokens and masks, then losses. */
export const SIDE_BY_SIDE: readonly AdaptItem[] = [
  { name: `tokens and masks of ${NUM_CHATS} chats, and of prompts with completions`, run: compareSamples },
  ...(["full", "lora"] as const).flatMap((kind) => [1, 2].map((ranks) => lossItem(kind, ranks))),
];

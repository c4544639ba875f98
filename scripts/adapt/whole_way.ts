/**
 * The whole way of a new user: chats with mistakes among them, LoRA on two ranks, evaluations, the best adapter kept, merged, and read by
 * transformers and PEFT.
 *
 * @module
 */
import { existsSync } from "node:fs";
import { evaluate, launch, openModel, textData } from "../../mod.ts";
import { type Bed, oncePerBed } from "./bed.ts";
import { fullyshard, succeeds } from "./commands.ts";
import { MISTAKES, NUM_CHATS, SEQUENCE_LENGTH } from "./inputs.ts";
import { type AdaptItem, type Outcome, verdict } from "./item.ts";
import { distance, metricsOf, read, readRows, train } from "./own.ts";
import type { ReadRequest, Sample } from "./peer.ts";

/** Distance that two scores of the same weights may have. */
export const LOGIT_DISTANCE = 1e-5;
const STEPS = 30;

const runOf = ({ folder }: Bed): string => `${folder}/way`;
const adapterOf = (bed: Bed): string => `${runOf(bed)}/model`;

async function findMistakes({ inputs }: Bed): Promise<Outcome> {
  const [first] = MISTAKES.keys();
  const refused = await fullyshard("inspect-data", inputs.mistakes, "--model", inputs.base);
  const { stdout } = await succeeds("inspect-data", inputs.mistakes, "--model", inputs.base, "--skip-bad-rows");
  const wrong: string[] = [];
  if (refused.code !== 2 || !refused.stderr.includes(`mistakes.jsonl:${first}: `)) {
    wrong.push(`expected exit code 2 and 'mistakes.jsonl:${first}', got ${refused.code}: ${refused.stderr.trim()}`);
  }
  if (!stdout.includes(`Skipped ${MISTAKES.size} rows that did not fit`) || !stdout.includes(`${NUM_CHATS} samples`)) {
    wrong.push(`expected ${MISTAKES.size} skipped rows and ${NUM_CHATS} samples, got: ${stdout.trim()}`);
  }
  return verdict(wrong, { refused: refused.stderr.trim(), skipped: MISTAKES.size });
}

/** The model that the user begins with: it has learned what answers look like from other chats. */
export const begun: (bed: Bed) => Promise<string> = oncePerBed(async ({ inputs, folder }) => {
  const out = `${folder}/begun`;
  await train(
    out,
    1,
    ...[
      "--model",
      inputs.base,
      "--data",
      inputs.earlier,
      "--steps",
      "40",
      "--global-batch",
      "8",
      "--learning-rate",
      "0.005",
    ],
  );
  return `${out}/model`;
});

/** The run that trains the adapter, as the user gives it; what it said. */
const trained: (bed: Bed) => Promise<string> = oncePerBed(async (bed) => {
  const { inputs } = bed;
  const { said } = await train(
    runOf(bed),
    2,
    ...["--model", await begun(bed), "--data", inputs.mistakes, "--skip-bad-rows", "--steps", String(STEPS)],
    ...["--global-batch", "8", "--learning-rate", "0.02", "--lora-r", "8", "--lora-alpha", "16"],
    ...["--lora-dropout", "0.05", "--eval-data", inputs.held, "--eval-every", "3", "--load-best-model-at-end"],
  );
  return said;
});

/** The folder of the merged model. */
const merged: (bed: Bed) => Promise<string> = oncePerBed(async (bed) => {
  await trained(bed);
  await succeeds("merge", await begun(bed), `${bed.folder}/merged`, "--adapter", adapterOf(bed));
  return `${bed.folder}/merged`;
});

async function trainAdapter(bed: Bed): Promise<Outcome> {
  const { inputs } = bed;
  const said = await trained(bed);
  const held = metricsOf(runOf(bed)).flatMap(({ step, eval_loss: loss }) => loss === undefined ? [] : [{ step, loss }]);
  const best = held.reduce((least, one) => one.loss < least.loss ? one : least, { step: 0, loss: Infinity });
  const wrong: string[] = [];
  if (held.length !== STEPS / 3) wrong.push(`expected ${STEPS / 3} evaluations, got ${held.length}`);
  if (!said.includes(`Skipped ${MISTAKES.size} rows that did not fit`)) wrong.push("skipped rows are not told");
  for (const file of ["adapter_config.json", "adapter_model.safetensors", "tokenizer.json", "chat_template.jinja"]) {
    if (!existsSync(`${adapterOf(bed)}/${file}`)) wrong.push(`${file} is missing in the run's model`);
  }
  await using run = await launch();
  const model = await openModel(run, await begun(bed), { adapter: adapterOf(bed) });
  await model.load();
  using data = await textData(run, model, inputs.held, { sequenceLength: SEQUENCE_LENGTH, batch: 1 });
  const { loss } = await evaluate(run, model, data);
  if (loss !== best.loss) {
    wrong.push(`expected the adapter of step ${best.step}, with an evaluation of ${best.loss}, got ${loss}`);
  }
  const last = held.at(-1);
  if (!(best.step < (last?.step ?? 0))) wrong.push(`expected a best step before the last one, got ${best.step}`);
  return verdict(wrong, {
    best_step: best.step,
    best_eval_loss: best.loss,
    last_eval_loss: last?.loss ?? NaN,
    eval_loss_of_kept_adapter: loss,
  });
}

/** Held-out samples, and their beginnings up to the first answer. */
export async function requestOf(
  { inputs }: Bed,
): Promise<Pick<ReadRequest, "samples" | "prompts" | "newTokens" | "eosId">> {
  const held: readonly Sample[] = await readRows(inputs.base, inputs.held);
  const prompts = held.map(({ ids, labels }) => ids.slice(0, labels.findIndex((label) => label >= 0)));
  // The id of <|im_end|>, which ends a turn.
  return { samples: held.map(({ ids }) => ids), prompts, newTokens: 24, eosId: 4 };
}

async function mergeAdapter(bed: Bed): Promise<Outcome> {
  const base = await begun(bed);
  const request = await requestOf(bed);
  const own = await read({ ...request, base: await merged(bed) });
  const beside = await read({ ...request, base, adapter: adapterOf(bed) });
  const off = distance(own.logits.flat(), beside.logits.flat());
  const wrong = off <= LOGIT_DISTANCE ? [] : [`expected scores within ${LOGIT_DISTANCE}, got ${off}`];
  if (own.texts.join("\0") !== beside.texts.join("\0")) wrong.push("the greedy texts differ");
  const distinct = new Set(own.texts.filter((text) => text.trim() !== "")).size;
  if (distinct < 3) wrong.push(`expected texts that tell something, got ${JSON.stringify(own.texts)}`);
  return verdict(wrong, { scores: own.logits.flat().length, largest_difference: off, distinct_texts: distinct });
}

async function readByPeer(bed: Bed): Promise<Outcome> {
  const { peer } = bed;
  if (peer === undefined) throw new Error("Expected a peer to read the merged folder, got none: give --peer trl");
  const base = await begun(bed);
  const request = await requestOf(bed);
  const own = await read({ ...request, base: await merged(bed) });
  const theirs = {
    transformers: await peer.read({ ...request, base: await merged(bed) }),
    peft: await peer.read({ ...request, base, adapter: adapterOf(bed) }),
  };
  const [wrong, figures]: [string[], Record<string, number | string>] = [[], {}];
  for (const [name, { logits, texts }] of Object.entries(theirs)) {
    const off = distance(own.logits.flat(), logits.flat());
    figures[`largest_difference_${name}`] = off;
    if (!(off <= LOGIT_DISTANCE)) wrong.push(`${name}: expected scores within ${LOGIT_DISTANCE}, got ${off}`);
    const other = texts.findIndex((text, i) => text !== own.texts[i]);
    if (other >= 0) {
      wrong.push(`${name}: expected '${own.texts[other]}' after prompt ${other + 1}, got '${texts[other]}'`);
    }
  }
  figures["largest_score"] = own.logits.flat().reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return verdict(wrong, { ...figures, texts: own.texts });
}

/** The steps of the way, of which each needs those before it. */
export const WHOLE_WAY: readonly AdaptItem[] = [
  { name: "the whole way: mistakes in the chats are refused by line, or skipped and counted", run: findMistakes },
  { name: "the whole way: LoRA on two ranks, evaluated, the best kept", run: trainAdapter },
  { name: "the whole way: merged, with the scores and texts of model and adapter", run: mergeAdapter },
  {
    name: "the whole way: transformers and PEFT give the same scores and greedy texts",
    needsPeer: true,
    run: readByPeer,
  },
];

/**
 * The whole way once more, as the package's users go it: from the packed tarball, installed in an empty folder, by the command line alone
 * on each runtime.
 *
 * @module
 */
import { mkdirSync, rmSync, writeFileSync } from "node:fs";
import { loadTokenizer } from "../../doors/data.ts";
import { installInto, packInto } from "../packed.ts";
import { type Bed, oncePerBed } from "./bed.ts";
import { type Ended, runProgram } from "./commands.ts";
import { MISTAKES, SEQUENCE_LENGTH } from "./inputs.ts";
import { type AdaptItem, type Outcome, verdict } from "./item.ts";
import { distance, metricsOf, read } from "./own.ts";
import { begun, LOGIT_DISTANCE, requestOf } from "./whole_way.ts";

const STEPS = 15;

/** The tarball. */
const packed: (bed: Bed) => Promise<string> = oncePerBed(({ folder }) => Promise.resolve(packInto(folder)));

/** Goes the way on a runtime. */
async function goWay(bed: Bed, runtime: "bun" | "deno"): Promise<Outcome> {
  const { folder, inputs, peer } = bed;
  const home = `${folder}/packed-${runtime}`;
  mkdirSync(home);
  const tarball = await packed(bed);
  installInto(home, tarball);
  const manifest = { type: "module", dependencies: { fullyshard: `file:${tarball}` } };
  writeFileSync(`${home}/package.json`, JSON.stringify(manifest));
  const command = (...args: readonly string[]): Promise<Ended> =>
    runProgram("node", [`${home}/node_modules/.bin/fullyshard`, "--runtime", runtime, ...args], {}, home);
  const succeeds = async (...args: readonly string[]): Promise<Ended> => {
    const ended = await command(...args);
    if (ended.code === 0) return ended;
    throw new Error(`Expected 'fullyshard ${args.join(" ")}' to succeed, got ${ended.code}: ${ended.stderr.trim()}`);
  };
  const base = await begun(bed);
  const wrong: string[] = [];
  const refused = await command("inspect-data", inputs.mistakes, "--model", base);
  const [line] = MISTAKES.keys();
  if (refused.code !== 2 || !refused.stderr.includes(`mistakes.jsonl:${line}: `)) {
    wrong.push(`expected 'mistakes.jsonl:${line}' to be refused, got ${refused.code}: ${refused.stderr.trim()}`);
  }
  await succeeds(
    ...["train", "--nproc-per-node", "2", "--model", base, "--data", inputs.mistakes, "--skip-bad-rows"],
    ...["--sequence-length", String(SEQUENCE_LENGTH), "--steps", String(STEPS), "--global-batch", "8"],
    ...["--learning-rate", "0.02", "--lora-r", "8", "--lora-alpha", "16", "--sample-tokens", "0"],
    ...["--eval-data", inputs.held, "--eval-every", "3", "--load-best-model-at-end", "--out", "run"],
  );
  const held = metricsOf(`${home}/run`).flatMap(({ eval_loss: loss }) => loss ?? []);
  await succeeds("merge", base, "merged", "--adapter", "run/model");
  const tokenizer = await loadTokenizer(base);
  const { eosId } = tokenizer;
  if (eosId === undefined) throw new Error(`Expected a tokenizer with an end of text beside '${base}', got none`);
  const asked = await requestOf(bed);
  const beginnings = asked.prompts.map((ids) => tokenizer.decode(ids));
  // A text's beginning may be other tokens than the beginning of the text's tokens.
  const request = { ...asked, prompts: beginnings.map((text) => [...tokenizer.encode(text)]), eosId };
  const prompts = beginnings.flatMap((text) => ["--prompt", text]);
  const drawn = async (...model: readonly string[]): Promise<readonly string[]> => {
    const flags = ["--temperature", "0", "--max-new-tokens", String(request.newTokens), "--json"];
    const { stdout } = await succeeds("generate", ...model, ...prompts, ...flags);
    return stdout.trimEnd().split("\n").map((text) => {
      const { text: found }: { readonly text: string } = JSON.parse(text);
      return found;
    });
  };
  const texts = await drawn("merged");
  const besides: Record<string, readonly string[]> = {
    "fullyshard generate --adapter": await drawn(base, "--adapter", "run/model"),
  };
  const own = await read({ ...request, base: `${home}/merged` });
  const figures: Record<string, number> = { best_eval_loss: Math.min(...held), last_eval_loss: held.at(-1) ?? NaN };
  if (peer !== undefined) {
    const theirs = {
      transformers: await peer.read({ ...request, base: `${home}/merged` }),
      peft: await peer.read({ ...request, base, adapter: `${home}/run/model` }),
    };
    for (const [name, found] of Object.entries(theirs)) {
      const off = distance(own.logits.flat(), found.logits.flat());
      figures[`largest_difference_${name}`] = off;
      if (!(off <= LOGIT_DISTANCE)) wrong.push(`${name}: expected scores within ${LOGIT_DISTANCE}, got ${off}`);
      besides[name] = found.texts;
    }
  }
  for (const [name, others] of Object.entries(besides)) {
    const other = others.findIndex((text, i) => text !== texts[i]);
    if (other >= 0) wrong.push(`${name}: expected '${texts[other]}' after prompt ${other + 1}, got '${others[other]}'`);
  }
  rmSync(`${home}/node_modules`, { recursive: true });
  return verdict(wrong, { ...figures, texts });
}

/** An item for each runtime. */
export const PACKED_WAY: readonly AdaptItem[] = (["bun", "deno"] as const).map((runtime) => ({
  name: `the whole way from the packed tarball in an empty folder, on ${runtime}`,
  run: (bed) => goWay(bed, runtime),
}));

/**
 * Each row is taken once in an epoch, also where a run stops in its middle and goes on on other numbers of ranks: rows of one chat each,
 * rows that chats share, and pairs of answers.
 *
 * @module
 */
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import * as z from "zod";
import type { Bed } from "./bed.ts";
import { succeeds } from "./commands.ts";
import { type AdaptItem, type Outcome, verdict } from "./item.ts";
import { readRows } from "./own.ts";

const script = fileURLToPath(new URL("./rows_rank.ts", import.meta.url));

/** Runs one after another, of which the last one takes what is left of the epoch. */
const STAGES = [
  { ranks: 3, batch: 12, steps: "1" },
  { ranks: 1, batch: 4, steps: "2" },
  { ranks: 4, batch: 4, steps: "2" },
  { ranks: 2, batch: 4, steps: "rest" },
] as const;

type Kind = "apart" | "packed" | "pairs";

/** What a rank took: the ids of its documents in order. */
const taken: z.ZodType<readonly string[]> = z.array(z.string());

function fileOf({ chats, manyPairs }: Bed["inputs"], kind: Kind): string {
  return kind === "pairs" ? manyPairs : chats;
}

/** Takes the steps of a stage; gives the documents of all ranks. */
async function take(
  { inputs, folder }: Bed,
  kind: Kind,
  { ranks, batch, steps }: typeof STAGES[number],
): Promise<readonly string[]> {
  const out = `${folder}/rows-${kind}-${ranks}`;
  await succeeds(
    ...["run", "--nproc-per-node", String(ranks), script, inputs.base, fileOf(inputs, kind), kind],
    ...[String(batch), steps, `${folder}/rows-${kind}-state.json`, out],
  );
  return Array.from({ length: ranks }, (_, rank) => {
    return taken.parse(JSON.parse(readFileSync(`${out}-${rank}.json`, "utf8")));
  }).flat();
}

async function countRows(bed: Bed, kind: Kind): Promise<Outcome> {
  const { base } = bed.inputs;
  const samples = await readRows(base, fileOf(bed.inputs, kind), { isPreference: kind === "pairs" });
  const all = samples.map(({ ids }) => ids.join());
  const counts = new Map(all.map((key) => [key, 0]));
  const found: number[] = [];
  for (const stage of STAGES) {
    const documents = await take(bed, kind, stage);
    for (const key of documents) counts.set(key, (counts.get(key) ?? 0) + 1);
    found.push(documents.length);
  }
  const once = all.filter((key) => counts.get(key) === 1).length;
  const others = counts.size - new Set(all).size;
  const wrong = once === all.length && others === 0
    ? []
    : [`expected each of ${all.length} rows once, got ${once} of them once, and ${others} others`];
  return verdict(wrong, {
    rows: all.length,
    ranks: STAGES.map(({ ranks }) => ranks),
    taken_by_stage: found,
    seen_once: once,
  });
}

/** An item for each kind of rows. */
export const ROWS: readonly AdaptItem[] = ([
  ["apart", "each chat is taken once"],
  ["packed", "each chat of rows that chats share is taken once"],
  ["pairs", "each answer of pairs is taken once"],
] as const).map(([kind, what]) => ({
  name: `${what} in an epoch that goes over 3, 1, 4 and 2 ranks`,
  run: (bed) => countRows(bed, kind),
}));

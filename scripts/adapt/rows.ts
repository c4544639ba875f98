/**
 * Each row is taken once in an epoch, also where a run stops in its middle and goes on on another number of ranks.
 *
 * @module
 */
import { readFileSync } from "node:fs";
import { fileURLToPath } from "node:url";
import * as z from "zod";
import type { Bed } from "./bed.ts";
import { succeeds } from "./commands.ts";
import { NUM_CHATS } from "./inputs.ts";
import { type AdaptItem, type Outcome, verdict } from "./item.ts";
import { readRows } from "./own.ts";

const script = fileURLToPath(new URL("./rows_rank.ts", import.meta.url));

const BATCH = 12;

/** What a rank took: the ids of its rows in order. */
const taken: z.ZodType<readonly string[]> = z.array(z.string());

/** Takes steps of rows on so many ranks; gives the rows of all ranks. */
async function take({ inputs, folder }: Bed, ranks: number, steps: number): Promise<readonly string[]> {
  const out = `${folder}/rows-${ranks}`;
  await succeeds(
    ...["run", "--nproc-per-node", String(ranks), script],
    ...[inputs.base, inputs.chats, String(BATCH), String(steps), `${folder}/rows-state.json`, out],
  );
  return Array.from({ length: ranks }, (_, rank) => {
    return taken.parse(JSON.parse(readFileSync(`${out}-${rank}.json`, "utf8")));
  }).flat();
}

async function countRows(bed: Bed): Promise<Outcome> {
  const all = (await readRows(bed.inputs.base, bed.inputs.chats)).map(({ ids }) => ids.join());
  const [before, after] = [await take(bed, 3, 1), await take(bed, 2, NUM_CHATS / BATCH - 1)];
  const counts = new Map(all.map((key) => [key, 0]));
  for (const key of [...before, ...after]) counts.set(key, (counts.get(key) ?? 0) + 1);
  const once = all.filter((key) => counts.get(key) === 1).length;
  const wrong = once === NUM_CHATS && counts.size === NUM_CHATS
    ? []
    : [`expected each of ${NUM_CHATS} rows once, got ${once} of them once, and ${counts.size - all.length} others`];
  return verdict(wrong, { rows: all.length, before: before.length, after: after.length, seen_once: once });
}

/** One item. */
export const ROWS: readonly AdaptItem[] = [
  { name: "each row is taken once in an epoch that begins on 3 ranks and ends on 2", run: countRows },
];

/** What ranks of `families_test.ts` do. @module */
import { scope } from "../../mod.ts";
import {
  batchOf,
  type FamilyOrders,
  type FamilyReport,
  laidOut,
  trainFamily as train,
} from "../../scripts/axes/training.ts";
import { messageOf } from "../support/message.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** Trains a family over axes. */
export function trainFamily(rank: WorldRank, orders: FamilyOrders): Promise<FamilyReport> {
  return train(rank, orders);
}

/** What is said of ids and labels that the vocabulary has not, where ranks divide it. */
export async function outOfVocabulary(
  rank: WorldRank,
  [config, place, id]: [Readonly<Record<string, unknown>>, "inputIds" | "labels", number],
): Promise<string> {
  const { run, model } = await laidOut(rank, { config, axes: { tensor: rank.group.size } });
  const { microBatches: [batch] } = batchOf(run, model, 0);
  if (batch === undefined) throw new Error("no rows");
  const wrong = { ...batch, [place]: batch[place].with(5, id) };
  return messageOf(() => {
    using _frame = scope();
    return run.backward(model, { microBatches: [wrong] }).item();
  });
}

rankFunctions(import.meta.url, { trainFamily, outOfVocabulary });

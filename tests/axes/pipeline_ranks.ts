/** What ranks of `pipeline_test.ts` do. @module */
import { type FamilyOrders, type FamilyReport, trainFamily as train } from "../../scripts/axes/training.ts";
import { rankFunctions, type WorldRank } from "../support/world.ts";

/** Trains a family over axes. */
export function trainFamily(rank: WorldRank, orders: FamilyOrders): Promise<FamilyReport> {
  return train(rank, orders);
}

rankFunctions(import.meta.url, { trainFamily });

/**
 * Plans which rank writes which part of a tensor; every rank makes the same plan.
 *
 * @module
 */
import { InternalError } from "../../errors.ts";
import { numelOf } from "../../shape.ts";
import type { Box } from "../../tensor/shard_layout.ts";
import type { Ranks } from "../format/ranks.ts";
import type { HeldTensor } from "./state_dict.ts";

/** The boxes that one rank writes of a tensor: all that it holds. */
export interface WritingRank {
  readonly rank: number;
  readonly boxes: readonly Box[];
}

/** The rule that chooses one of the ranks that hold the same boxes: the rank with the least to write so far, or the first. */
export type WriterChoice = "least loaded" | "first";

/**
 * Tells all ranks which rank holds which boxes, and chooses the writer among the ranks that hold the same boxes. Collective.
 *
 * @param what name of the written tensors, for messages
 * @returns for each tensor, in the order given, its writers by rank
 * @throws {InternalError} if the ranks together do not hold as many elements as a tensor has
 */
export function agreeOnWriters(
  tensors: readonly Pick<HeldTensor, "name" | "shard">[],
  ranks: Pick<Ranks, "size" | "exchangeText">,
  what: string = "save the model",
  choice: WriterChoice = "least loaded",
): readonly (readonly WritingRank[])[] {
  const own = JSON.stringify(tensors.map(({ shard }) => shard.boxes));
  const held = ranks.exchangeText(own, what).map((text): readonly (readonly Box[])[] => JSON.parse(text));
  const load = new Array<number>(ranks.size).fill(0);
  const loadOf = (rank: number): number => load[rank] ?? Infinity;
  return tensors.map(({ name, shard: { shape } }, i) => {
    const all = held.map(({ [i]: boxes = [] }, rank): WritingRank => ({ rank, boxes }));
    const holders = Map.groupBy(all.filter(({ boxes }) => boxes.length > 0), ({ boxes }) => JSON.stringify(boxes));
    let total = 0;
    const writers = [...holders.values()].map((replicas): WritingRank => {
      const writer = replicas.reduce((best, other) => (loadOf(other.rank) < loadOf(best.rank) ? other : best));
      const numel = writer.boxes.reduce((sum, { sizes }) => sum + numelOf(sizes), 0);
      if (choice === "least loaded") load[writer.rank] = loadOf(writer.rank) + numel;
      total += numel;
      return writer;
    });
    if (total !== numelOf(shape)) {
      throw new InternalError(`ranks hold ${total} of the ${numelOf(shape)} elements of '${name}'`);
    }
    return writers.sort((a, b) => a.rank - b.rank);
  });
}

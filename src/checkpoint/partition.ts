/**
 * Which rank writes which part of a tensor: a plan that every rank makes alike. Pure.
 *
 * @module
 */
import { InternalError } from "../errors.ts";
import { numelOf, type Shape } from "../shape.ts";
import type { Box } from "../tensor/shard_layout.ts";

/** A tensor, and the boxes of it that each rank holds, by rank. */
export interface SpreadTensor {
  readonly name: string;
  readonly shape: Shape;
  readonly held: readonly (readonly Box[])[];
}

/** What one rank writes of a tensor: all that it holds. */
export interface Writer {
  readonly rank: number;
  readonly boxes: readonly Box[];
}

/**
 * Chooses who writes. Ranks that hold the same boxes are replicas: of those the one with the least to write does.
 *
 * @returns for each tensor, in the order given, its writers by rank
 * @throws {InternalError} if the ranks together do not hold as many elements as the tensor has
 */
export function planWriters(tensors: readonly SpreadTensor[], world: number): readonly (readonly Writer[])[] {
  const load = new Array<number>(world).fill(0);
  const loadOf = (rank: number): number => load[rank] ?? Infinity;
  return tensors.map(({ name, shape, held }) => {
    const holders = new Map<string, number[]>();
    for (const [rank, boxes] of held.entries()) {
      if (boxes.length === 0) continue;
      const key = JSON.stringify(boxes);
      holders.set(key, [...holders.get(key) ?? [], rank]);
    }
    let total = 0;
    const writers = [...holders.values()].map((ranks): Writer => {
      const rank = ranks.reduce((best, other) => (loadOf(other) < loadOf(best) ? other : best));
      const boxes = held[rank] ?? [];
      const numel = boxes.reduce((sum, { sizes }) => sum + numelOf(sizes), 0);
      load[rank] = loadOf(rank) + numel;
      total += numel;
      return { rank, boxes };
    });
    if (total !== numelOf(shape)) {
      throw new InternalError(`ranks hold ${total} of the ${numelOf(shape)} elements of '${name}'`);
    }
    return writers.sort((a, b) => a.rank - b.rank);
  });
}

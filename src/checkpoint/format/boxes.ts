/**
 * Boxes that make up a tensor: of those that lie within it and have as many elements together, no two may share one.
 *
 * @module
 */
import { at } from "../../at.ts";
import { numelOf } from "../../shape.ts";
import type { Box } from "../../tensor/shard_layout.ts";

/** Two of the boxes that share elements; undefined if there are none. Takes little more than sorting where boxes are cut along a dim. */
export function overlapIn<B extends Box>(boxes: readonly B[]): readonly [B, B] | undefined {
  const held = boxes.filter(({ sizes }) => numelOf(sizes) > 0);
  const [first, second] = held;
  if (first === undefined || second === undefined) return undefined;
  if (first.offsets.length === 0) return [first, second]; // a scalar has one element
  // Along the dim that most boxes differ in, few are beside each other.
  const begins = first.offsets.map((_, dim) => new Set(held.map(({ offsets }) => offsets[dim])).size);
  const dim = begins.indexOf(Math.max(...begins));
  const beginOf = ({ offsets }: Box): number => at(offsets, dim, "offset");
  const endOf = (box: Box): number => beginOf(box) + at(box.sizes, dim, "size");
  const sorted = held.toSorted((a, b) => beginOf(a) - beginOf(b));
  let open: B[] = [];
  for (const box of sorted) {
    open = open.filter((before) => endOf(before) > beginOf(box));
    const other = open.find((before) => overlap(before, box));
    if (other !== undefined) return [other, box];
    open.push(box);
  }
  return undefined;
}

/** True if two non-empty boxes share elements. */
function overlap(a: Box, b: Box): boolean {
  return a.offsets.every((offset, dim) => {
    const [other, size, otherSize] = [at(b.offsets, dim, "offset"), at(a.sizes, dim, "size"), at(b.sizes, dim, "size")];
    return offset < other + otherSize && other < offset + size;
  });
}

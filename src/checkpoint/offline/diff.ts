/**
 * Compares two checkpoints of any kind tensor by tensor, saved on any numbers of ranks.
 *
 * @module
 */
import { at } from "../../at.ts";
import { InternalError } from "../../errors.ts";
import { sameShape } from "../../shape.ts";
import type { StoredTensor } from "../format/dcp_shards.ts";
import { type StoredCheckpoint, valuesOf } from "./stored.ts";

/** A tensor that differs, and in which way. */
export interface TensorDifference {
  readonly name: string;
  /** `only in first`, `only in second`, `shape` or `values`. */
  readonly kind: "only in first" | "only in second" | "shape" | "values";
  /** Shapes, where those differ. */
  readonly shapes?: readonly [readonly number[], readonly number[]];
  /** Elements of other bits, and the largest distance of two that are both numbers. */
  readonly values?: { readonly elements: number; readonly of: number; readonly largest: number };
}

/** Compares weights, and states of optimizers where both have them. */
export function* differencesOf(first: StoredCheckpoint, second: StoredCheckpoint): Generator<TensorDifference> {
  yield* compare(first.model, second.model);
  if (first.optimizer.size > 0 && second.optimizer.size > 0) yield* compare(first.optimizer, second.optimizer);
}

function* compare(
  first: ReadonlyMap<string, StoredTensor>,
  second: ReadonlyMap<string, StoredTensor>,
): Generator<TensorDifference> {
  for (const [name, a] of first) {
    const b = second.get(name);
    if (b === undefined) yield { name, kind: "only in first" };
    else if (!sameShape(a.shape, b.shape)) yield { name, kind: "shape", shapes: [a.shape, b.shape] };
    else {
      const values = compareValues(a, b);
      if (values.elements > 0) yield { name, kind: "values", values };
    }
  }
  for (const name of second.keys()) if (!first.has(name)) yield { name, kind: "only in second" };
}

function compareValues(a: StoredTensor, b: StoredTensor): NonNullable<TensorDifference["values"]> {
  const others = valuesOf(b);
  let [elements, of, largest] = [0, 0, 0];
  for (const left of valuesOf(a)) {
    const { value: right } = others.next();
    if (right === undefined) throw new InternalError(`tensors of equal shape, and no values beside ${left.length}`);
    of += left.length;
    for (const [i, value] of left.entries()) {
      const other = at(right, i, "element");
      if (Object.is(value, other)) continue;
      elements++;
      const distance = Math.abs(value - other);
      if (distance > largest) largest = distance;
    }
  }
  return { elements, of, largest };
}

/**
 * A tensor as text.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Tensor } from "./tensor.ts";

/** Values shown at each end of a long dim. */
const EDGE = 3;

/** Shape, dtype, device, and values with long dims shortened in the middle. */
export function formatTensor(tensor: Tensor): string {
  const head = `Tensor [${tensor.shape.join(", ")}] ${tensor.dtype.name} ${tensor.device.name}`;
  const values = tensor.toArray();
  const number = (value: number): string => Number.isInteger(value) ? String(value) : value.toPrecision(6);
  const part = (dim: number, offset: number, stride: number): string => {
    const size = tensor.shape[dim];
    if (size === undefined) return number(at(values, offset, "element"));
    const step = size === 0 ? 0 : stride / size;
    const shown: string[] = [];
    for (let i = 0; i < size; i++) {
      if (size > 2 * EDGE + 1 && i === EDGE) {
        shown.push("…");
        i = size - EDGE;
      }
      shown.push(part(dim + 1, offset + i * step, step));
    }
    return `[${shown.join(", ")}]`;
  };
  return `${head} ${part(0, 0, values.length)}`;
}

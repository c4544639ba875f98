/**
 * A tensor as text. Only the shown values are copied from the device.
 *
 * @module
 */
import { at } from "../at.ts";
import { float64, int64 } from "../dtype.ts";
import { numelOf } from "../shape.ts";
import { scope } from "./scope.ts";
import type { Tensor } from "./tensor.ts";

/** Values shown at each end of a long dim. */
const EDGE = 3;

/** True if the middle of a dim is left out. */
function isLong(size: number): boolean {
  return size > 2 * EDGE + 1;
}

/** The shown values, row-major: the first and last few of each long dim from `dim` on. */
function shownValues(x: Tensor, dim: number = 0): readonly number[] {
  const long = x.shape.findIndex((size, i) => i >= dim && isLong(size));
  if (long < 0 || x.numel === 0) return [...x.toArray()];
  const last = at(x.shape, long, "dim") - EDGE;
  const [head, tail] = [
    shownValues(x.narrow(long, 0, EDGE), long + 1),
    shownValues(x.narrow(long, last, EDGE), long + 1),
  ];
  const rows = numelOf(x.shape.slice(0, long));
  const length = head.length / rows;
  const row = (values: readonly number[], i: number): readonly number[] => values.slice(i * length, (i + 1) * length);
  return Array.from({ length: rows }, (_, i) => [...row(head, i), ...row(tail, i)]).flat();
}

/** Shape, dtype, device, and values with long dims shortened in the middle. */
export function formatTensor(tensor: Tensor): string {
  const head = `Tensor [${tensor.shape.join(", ")}] ${tensor.dtype.name} ${tensor.device.name}`;
  if (tensor.dtype === int64 || tensor.dtype === float64) return `${head} (values that the host does not read)`;
  using _frame = scope();
  const values = shownValues(tensor.detach());
  const number = (value: number): string => Number.isInteger(value) ? String(value) : value.toPrecision(6);
  const part = (dim: number, offset: number, stride: number): string => {
    const size = tensor.shape[dim];
    if (size === undefined) return number(at(values, offset, "element"));
    const count = isLong(size) ? 2 * EDGE : size;
    const step = count === 0 ? 0 : stride / count;
    const shown = Array.from({ length: count }, (_, i) => part(dim + 1, offset + i * step, step));
    if (isLong(size)) shown.splice(EDGE, 0, "…");
    return `[${shown.join(", ")}]`;
  };
  return `${head} ${part(0, 0, values.length)}`;
}

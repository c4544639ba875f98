/**
 * Cases of the fuzz. A case follows from its number: the op, dtypes, shapes, where inputs lie in memory, which of them are trained or
 * the same tensor, and how the gradient of the result arrives. Its line of JSON is what `tests/parity/make_fuzz.py` computes.
 *
 * @module
 */
import { at } from "../../src/at.ts";
import type { Device } from "../../src/device/device.ts";
import { bfloat16, type DType, float16, float32 } from "../../src/dtype.ts";
import type { Tensor } from "../../src/tensor/tensor.ts";
import { type Data, Draw } from "./draw.ts";

/** An input as an op wants it. */
export interface InputDraw {
  readonly shape: readonly number[];
  readonly data: Data;
  /** @default the case's dtype */
  readonly dtype?: DType;
  /** True if it may require a gradient. @default true for floats */
  readonly requiresGrad?: boolean;
}

/** A call of an op. */
export interface CallDraw {
  readonly inputs: readonly InputDraw[];
  /** Arguments of the reference besides inputs. */
  readonly attrs: object;
  readonly run: (inputs: readonly Tensor[]) => readonly Tensor[];
}

/** The rules by which an op is fuzzed. */
export interface FuzzOp {
  /** The record in `src/ops`; undefined for what is made of several. */
  readonly record?: object;
  /** Dtypes of its first input. @default the three floats */
  readonly dtypes?: readonly DType[];
  /** Factor on the usual rounding error. @default 1 */
  readonly roundings?: number;
  draw(draw: Draw, dtype: DType, device: Device): CallDraw;
}

/** The layout of an input's elements in its storage. */
export type Lie =
  | { readonly how: "dense" }
  | { readonly how: "permuted"; readonly dims: readonly number[] }
  | { readonly how: "narrowed"; readonly dim: number; readonly start: number; readonly length: number }
  | { readonly how: "expanded"; readonly shape: readonly number[] };

/** An input of a case. */
export type CaseInput = { readonly same: number } | {
  readonly dtype: string;
  readonly stored: readonly number[];
  readonly layout: Lie;
  readonly data: Data;
  readonly seed: number;
  readonly trained: boolean;
  /** The op that makes it from its float32 leaf; `placed` is a leaf of its own dtype, whose gradient has a place in float32. */
  readonly via: "cast" | "scaled" | "cloned" | "placed";
};

/** The use of the result, which decides the form of its gradient. */
export const WAYS = ["dense", "transposed", "narrowed", "summed", "expanded"] as const;

/** A case, but for what computes it. */
export interface CaseText {
  readonly number: number;
  readonly op: string;
  readonly dtype: string;
  readonly attrs: object;
  readonly inputs: readonly CaseInput[];
  /** An input that is used once more, beside the op. */
  readonly again?: number;
  readonly way: { readonly how: typeof WAYS[number]; readonly dim: number; readonly seed: number };
}

/** A case. */
export interface Case {
  readonly text: CaseText;
  readonly line: string;
  readonly run: CallDraw["run"];
  /** See {@link FuzzOp.roundings}. */
  readonly roundings: number;
}

const FLOATS: readonly DType[] = [float32, bfloat16, float16];

/** The layout of an input, and the shape of its storage. */
function lieOf(draw: Draw, shape: readonly number[], data: Data): { stored: readonly number[]; layout: Lie } {
  const dense = { stored: shape, layout: { how: "dense" } } as const;
  if (shape.length === 0 || data.kind === "values" || draw.chance(0.4)) return dense;
  const dim = draw.int(0, shape.length - 1);
  const size = at(shape, dim, "dim");
  switch (draw.pick(["permuted", "narrowed", "expanded"] as const)) {
    case "permuted": {
      const dims = draw.order(shape.length);
      const stored = shape.map((_, place) => at(shape, dims.indexOf(place), "dim"));
      return { stored, layout: { how: "permuted", dims } };
    }
    case "narrowed": {
      const start = draw.int(0, 2);
      const stored = shape.with(dim, size + start + draw.int(0, 1));
      return { stored, layout: { how: "narrowed", dim, start, length: size } };
    }
    case "expanded":
      // Labels and places of one row may be the same, but what is distinct must stay so.
      if (data.kind === "distinct") return dense;
      return { stored: shape.with(dim, 1), layout: { how: "expanded", shape } };
  }
}

function sameSpec(a: InputDraw, b: InputDraw): boolean {
  return a.dtype === b.dtype && a.shape.join() === b.shape.join() && JSON.stringify(a.data) === JSON.stringify(b.data);
}

/** The case of a number. Ops come in turn. */
export function makeCase(number: number, ops: ReadonlyMap<string, FuzzOp>, device: Device): Case {
  const [op, fuzz] = at([...ops], number % ops.size, "op");
  const draw = new Draw(number);
  const dtype = draw.pick(fuzz.dtypes ?? FLOATS);
  const call = fuzz.draw(draw, dtype, device);
  const inputs: CaseInput[] = [];
  const trained: number[] = [];
  for (const [i, input] of call.inputs.entries()) {
    const own = input.dtype ?? dtype;
    const like = call.inputs.slice(0, i).findIndex((other) => sameSpec(input, other));
    if (like >= 0 && !("same" in at(inputs, like, "input")) && own.kind === "float" && draw.chance(0.2)) {
      inputs.push({ same: like });
      continue;
    }
    const isTrained = own.kind === "float" && input.requiresGrad !== false && !draw.chance(0.25);
    const via = draw.pick(["scaled", "scaled", "cloned", "cast", "placed"] as const);
    if (isTrained) trained.push(i);
    const made = { ...lieOf(draw, input.shape, input.data), data: input.data, seed: draw.seed() };
    inputs.push({ dtype: own.name, ...made, trained: isTrained, via });
  }
  const way = { how: draw.pick(WAYS), dim: draw.int(0, 11), seed: draw.seed() + 1 };
  const again = trained.length > 0 && draw.chance(0.15) ? { again: draw.pick(trained) } : {};
  const text: CaseText = { number, op, dtype: dtype.name, attrs: call.attrs, inputs, ...again, way };
  return { text, line: JSON.stringify(text), run: call.run, roundings: fuzz.roundings ?? 1 };
}

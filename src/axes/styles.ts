/**
 * Styles: how a linear layer computes with a part of its weight (PyTorch's `ColwiseParallel` and `RowwiseParallel`). Colwise gives a part of
 * the outputs from all inputs; rowwise adds up, over the axis, what each rank makes of its part of the inputs.
 *
 * @module
 */
import type { Linear } from "../nn/linear.ts";
import type { CutRule } from "../tensor/cut.ts";
import type { Parameter } from "../tensor/parameter.ts";

/** Names of the styles, as transformers spells them. */
export const STYLES = ["colwise", "rowwise"] as const;
/** The way in which a linear layer is cut. */
export type Style = typeof STYLES[number];

/** The dims of a layer's parameters that are cut. @param packs parts of the outputs that lie side by side, each cut by itself */
export function rulesOf(
  { weight, bias, outDim }: Linear,
  style: Style,
  packs: number,
): readonly [Parameter, CutRule][] {
  if (style === "rowwise") return [[weight, { dim: 1 - outDim }]]; // the bias is added once, to the sum
  const ofBias: [Parameter, CutRule][] = bias === undefined ? [] : [[bias, { dim: 0, packs }]];
  return [[weight, { dim: outDim, packs }], ...ofBias];
}

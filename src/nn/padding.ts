/**
 * Masking of padding for layers without attention.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { LayerContext } from "./attention.ts";
import { where } from "./functional.ts";

/** x [batch, seq, hidden] with zeros where a token is padding: nothing else keeps a convolution or a state from seeing it. */
export function withoutPadding(x: Tensor, { attentionMask }: LayerContext): Tensor {
  if (attentionMask === undefined) return x;
  const [seq, all] = [at(x.shape, 1, "dim"), at(attentionMask.shape, 1, "dim")];
  return where(attentionMask.narrow(1, all - seq, seq).unsqueeze(2), x, 0);
}

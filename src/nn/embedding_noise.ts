/**
 * Noise on embeddings in training (NEFTune, Jain et al. 2023): uniform between ±alpha / √(L d), for a row of L tokens whose embeddings
 * have d elements.
 *
 * Note [Tokens of a noisy row]: transformers takes for L the length of the padded batch. Here L counts a row's own tokens, as the paper's
 * code does: so the noise of a row is the same bits whatever rows are beside it. Rows without padding, packed ones among them, agree with
 * transformers.
 *
 * @module
 */
import { noGrad } from "../autograd/mode.ts";
import { float32, int32 } from "../dtype.ts";
import { ArgumentError } from "../errors.ts";
import { sameShape, threeSizes } from "../shape.ts";
import { full } from "../tensor/create.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { type RandomContext, sampleUniform, streamOf } from "./dropout.ts";
import type { Module } from "./module.ts";

/** Rows of embeddings, and what their noise depends on. */
export interface NoisyRows extends RandomContext {
  /** NEFTune's alpha. */
  readonly alpha: number;
  /** Tokens of each row that are no padding, int32 [batch]. @default all */
  readonly tokenCounts?: Tensor | undefined;
}

/**
 * embedded [batch, seq, width] → the same with noise
 *
 * @param layer names the stream of random numbers: the embedding
 * @throws {ArgumentError} without `random`, or if the counts are not a number for each row
 * @throws {UnsupportedError} if the tokens are parts of rows
 */
export function addEmbeddingNoise(
  layer: Module,
  embedded: Tensor,
  { alpha, tokenCounts, ...context }: NoisyRows,
): Tensor {
  const { device, dtype, shape } = embedded;
  const [batch, seq, width] = threeSizes("embedding noise", shape);
  if (tokenCounts !== undefined && (tokenCounts.dtype !== int32 || !sameShape(tokenCounts.shape, [batch]))) {
    const got = `${tokenCounts.dtype.name} [${tokenCounts.shape.join(", ")}]`;
    throw new ArgumentError(`Cannot use tokenCounts ${got}: they must be int32 [${batch}], a number for each row`);
  }
  const stream = streamOf(layer, "embedding noise", context);
  const noise = noGrad(() => {
    const counts = tokenCounts === undefined ? full(device, [batch], seq) : tokenCounts.to(float32);
    const largest = counts.mul(width).rsqrt().mul(alpha).reshape([batch, 1, 1]);
    return sampleUniform(device, [batch, seq, width], stream, [-1, 1]).mul(largest).to(dtype);
  });
  return embedded.add(noise);
}

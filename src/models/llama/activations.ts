/**
 * How much memory Llama's activations take: what each op saves for the backward, block by block, and what is alive besides
 * at the moments that count. The allocator measures the same thing; a test holds the two together.
 *
 * @module
 */
import { float32, int32 } from "../../dtype.ts";
import { LOGITS_CHUNK_ELEMENTS } from "../../ops/loss.ts";
import type { ActivationBytes, BatchShape } from "../../nn/activations.ts";
import type { LlamaConfig } from "./config.ts";

/** Bytes of activations of a training step, by when they are alive. */
export function llamaActivationBytes(
  config: LlamaConfig,
  { batch, seq, computeBytes, accumulates }: BatchShape,
): ActivationBytes {
  const tokens = batch * seq;
  const { hiddenSize: h, intermediateSize: f, numHeads, numKvHeads, headDim, vocabSize } = config;
  const wide = float32.byteLength;
  const q = numHeads * headDim;
  const kv = numKvHeads * headDim;
  const of = (columns: number): number => tokens * columns * computeBytes;
  const rows = tokens * wide; // one float32 a token
  // Saved by a block: its input, both norms' outputs (inputs of the projections), the residual after attention; q and k turned,
  // v, the attention's output; gate, up and their product. Statistics: both norms' and one a head.
  const block = of(4 * h + 2 * q + 2 * kv + 3 * f) + (numHeads + 2) * rows;
  // Until its call ends: the outputs of both halves and the block's own, which the next block saves as its input.
  const blockForward = block + of(3 * h);
  // In the feed-forward: the gradients of the output and of gate, up and their product, which itself is gone when the first two
  // are made. In the attention: the gradients of the residual, of the attention's output, of q, k and v.
  const inMlp = block + of(h + 2 * f);
  const inAttention = of(2 * h + 2 * q + 2 * kv) + (numHeads + 1) * rows + of(h + 2 * q + 2 * kv);
  const blockBackward = Math.max(inMlp, inAttention);
  const blockBackwardGradients = inMlp > inAttention ? h * f : 3 * h * f + h * q;
  // Ids and labels, rotary tables; the last block's output, which the last norm saves, with its statistics.
  const inputs = 2 * tokens * int32.byteLength + seq * headDim * wide;
  const ends = inputs + of(h) + rows;
  // The loss: the last norm's output, the losses, one chunk of logits (and it in the dtype of products), the gradients of the
  // hidden states and of the head, which it computes beforehand.
  const chunk = Math.max(1, Math.min(tokens, Math.floor(LOGITS_CHUNK_ELEMENTS / vocabSize))) * vocabSize;
  const head = vocabSize * h;
  const loss = of(2 * h) + rows + chunk * (wide + (computeBytes < wide ? computeBytes : 0)) + head * wide;
  const lossBackward = of(2 * h) + head * wide;
  // The table's gradient goes to its place, unless there is one already: an earlier one, or the head's where they are tied; the
  // latter is added in the compute dtype, and made in float32 before if that is narrower.
  const beside = computeBytes < wide ? computeBytes + wide : wide;
  const apart = head * (config.tieWordEmbeddings ? beside : accumulates ? wide : 0);
  const embeddingBackward = inputs + of(h) + apart;
  return {
    block,
    blockForward: blockForward + inputs,
    blockBackward: blockBackward + inputs,
    blockBackwardGradients,
    head,
    handed: of(h) + inputs,
    ends,
    loss,
    lossBackward,
    embeddingBackward,
  };
}

/**
 * How much memory Llama's activations take: what each op saves for the backward, block by block, plus what the block under
 * way works in. The allocator measures the same thing; a test holds the two together.
 *
 * @module
 */
import { float32 } from "../../dtype.ts";
import type { BatchShape } from "../family.ts";
import type { LlamaConfig } from "./config.ts";

/** Most bytes of activations and their gradients at once in a training step. */
export function llamaActivationBytes(config: LlamaConfig, { batch, seq, computeBytes }: BatchShape): number {
  const tokens = batch * seq;
  const { hiddenSize: h, intermediateSize: f, numHeads, numKvHeads, headDim, vocabSize, numLayers } = config;
  const q = numHeads * headDim;
  const kv = numKvHeads * headDim;
  // Saved by a block: its input, both norms' outputs (inputs of the projections), the residual after attention, q and k
  // turned, v, the attention's output, gate, up and their product; statistics in float32.
  const block = tokens * (4 * h + q + 2 * kv + q + 3 * f) * computeBytes + tokens * (numHeads + 2) * float32.byteLength;
  // Saved behind the last block: its output, the final norm's; the loss keeps gradients of the hidden states and the head.
  const tail = tokens * 3 * h * computeBytes + vocabSize * h * float32.byteLength;
  // The block that the backward is in: gradients of its output, of gate, up, their product, and of the norm's output.
  const working = tokens * (3 * h + 3 * f) * computeBytes;
  return numLayers * block + tail + working;
}

/**
 * Conversion of a Llama step's milliseconds to tokens a second and to a share of a card's peak.
 *
 * @module
 */
import { LLAMA_SIZES } from "../ranks/llama_step.ts";

/** Dense FLOP/s of bfloat16 on an H100 SXM, by its data sheet. */
const H100_FLOPS = 989.5e12;
/** Bytes a second of an H100 SXM's memory, by its data sheet. */
export const H100_BYTES_PER_SECOND = 3.35e12;

/** Tokens a second, and model FLOPs utilization. */
export function modelFigures(
  name: "1b" | "small",
  parameters: number,
  msPerStep: number,
): { readonly tokensPerSecond: number; readonly mfuOfH100: number } {
  const { batch, seq, layers, hidden } = LLAMA_SIZES[name];
  const tokensPerSecond = batch * seq / msPerStep * 1000;
  const flopsOfToken = 6 * parameters + 12 * layers * hidden * seq;
  return { tokensPerSecond, mfuOfH100: tokensPerSecond * flopsOfToken / H100_FLOPS };
}

/**
 * The formula of the utilization, and the micro-batch: six FLOPs for each weight, as the embedding's is the head's too, and all
 * of attention's products, not a causal half of them.
 */
export function modelWords(name: "1b" | "small"): { readonly mfuIs: string; readonly microBatch: string } {
  const { batch, seq } = LLAMA_SIZES[name];
  const mfuIs = "(6 parameters + 12 layers hidden seq) tokensPerSecond / 989.5e12";
  return { mfuIs, microBatch: `${batch} x ${seq} tokens` };
}

/**
 * A step's micro-batches in tensors at fixed addresses, which a graph reads in each launch.
 *
 * @module
 */
import { type MicroBatch, requireRows } from "../data/micro_batch.ts";
import type { Device } from "../device/device.ts";
import { type DType, int32, uint8 } from "../dtype.ts";
import { UnsupportedError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { Tensor } from "../tensor/tensor.ts";
import { IGNORED_ROW, lossOf, maskOf, tokenCountsOf } from "./backward.ts";
import type { StepContext } from "./step.ts";

/** A micro-batch, where a graph reads it. */
interface StepPart {
  readonly inputIds: Tensor;
  readonly labels: Tensor;
  readonly documentStarts: Tensor | undefined;
  readonly attentionMask: Tensor | undefined;
  readonly tokenCounts: Tensor | undefined;
}

/** A step's micro-batches in tensors that a graph reads. */
export class StepInputs implements Disposable {
  readonly #device: Device;
  readonly #model: CausalLm;
  readonly #parts: readonly StepPart[];

  constructor({ device, model }: StepContext, microBatches: readonly MicroBatch[]) {
    if (model.positions !== undefined) {
      throw new UnsupportedError(
        "Cannot capture steps of a model that shares positions over a context axis: train without graphs",
      );
    }
    if (model.pipeline !== undefined) {
      throw new UnsupportedError("Cannot capture steps of a model in stages: train without graphs");
    }
    this.#device = device;
    this.#model = model;
    this.#parts = microBatches.map((microBatch) => {
      const { batch, seq, documentStarts } = microBatch;
      const make = (dtype: DType): Tensor => Tensor.empty(device, [batch, seq], dtype, "inputs of a step");
      return {
        inputIds: make(int32),
        labels: make(int32),
        documentStarts: documentStarts && make(int32),
        attentionMask: maskOf(model, microBatch) && make(uint8),
        tokenCounts: tokenCountsOf(model, microBatch) && Tensor.empty(device, [batch], int32, "inputs of a step"),
      };
    });
  }

  /**
   * Takes the values of a step with micro-batches of the same sizes.
   *
   * @throws {ArgumentError} if beginnings of documents or lengths of rows do not fit the tokens
   */
  write(microBatches: readonly MicroBatch[]): void {
    for (const [i, { inputIds, labels, documentStarts, attentionMask, tokenCounts }] of this.#parts.entries()) {
      const part = microBatches[i] ?? IGNORED_ROW;
      requireRows(part);
      inputIds.copyFromHost(Int32Array.from(part.inputIds));
      labels.copyFromHost(Int32Array.from(part.labels));
      if (part.documentStarts !== undefined) documentStarts?.copyFromHost(Int32Array.from(part.documentStarts));
      const mask = maskOf(this.#model, part);
      if (mask !== undefined) attentionMask?.copyFromHost(mask);
      const counts = tokenCountsOf(this.#model, part);
      if (counts !== undefined) tokenCounts?.copyFromHost(Int32Array.from(counts));
    }
    const first = firstSampleOf(microBatches);
    if (first !== undefined) this.#device.traits.graphs?.setFirstSample(first);
  }

  forwards({ model }: StepContext, microBatches: readonly MicroBatch[]): (() => Tensor)[] {
    return this.#parts.map((part, i) => () => lossOf(model, { ...part, random: microBatches[i]?.random }));
  }

  [Symbol.dispose](): void {
    for (const { inputIds, labels, documentStarts, attentionMask, tokenCounts } of this.#parts) {
      for (const tensor of [inputIds, labels, documentStarts, attentionMask, tokenCounts]) tensor?.dispose();
    }
  }
}

/** Number of the first sample of a rank's part of a step; undefined if no random numbers are drawn. */
export function firstSampleOf(parts: readonly MicroBatch[]): number | undefined {
  return parts.find((part) => part !== IGNORED_ROW)?.random?.firstSample;
}

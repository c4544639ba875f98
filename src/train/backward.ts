/**
 * Forward and backward of one step: all micro-batches of all ranks as if they were one batch. The model's loss is a sum over
 * tokens; tokens are counted first, over all ranks, so that gradients are scaled once, where they are reduced, and unequal
 * counts come out right.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import type { Batch, MicroBatch } from "../data/loader.ts";
import type { Device } from "../device/device.ts";
import { float32, int32 } from "../dtype.ts";
import { InternalError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { IGNORE_INDEX } from "../nn/functional.ts";
import type { GradScaler } from "../optim/grad_scaler.ts";
import { requireReducers } from "../optim/reduced.ts";
import { tensor, zeros } from "../tensor/create.ts";
import { scope } from "../tensor/scope.ts";
import type { Tensor } from "../tensor/tensor.ts";

/** What a step's forward gave; the same on every rank. */
export interface StepLoss {
  /** Mean cross-entropy of the tokens of all ranks, in nats: a float32 scalar. 0 without tokens. */
  readonly loss: Tensor;
  /** Tokens that were predicted, over all ranks. */
  readonly tokens: number;
}

/** The micro-batch of a rank that has fewer than the other ranks, so that every rank makes every call: one row whose labels are all ignored. */
export const IGNORED_ROW: MicroBatch = {
  inputIds: Int32Array.of(0),
  labels: Int32Array.of(IGNORE_INDEX),
  batch: 1,
  seq: 1,
  // Whatever is drawn for it counts for nothing.
  random: { seed: 0, firstSample: 0 },
};

/**
 * Adds the gradients of the mean loss to the gradients of the model. Gradients are reduced with the last micro-batch. Every rank of
 * the group must call it.
 *
 * @param scaler scales the loss, and so the gradients
 * @throws {ArgumentError} if there are several ranks and nothing reduces some trained parameters
 */
export function backwardStep(
  model: CausalLm,
  { microBatches }: Batch,
  device: Device,
  group: ProcessGroup,
  scaler?: GradScaler,
): StepLoss {
  const parameters = [...model.parameters()];
  requireReducers(parameters, "run a backward", group.size);
  const reducers = [...new Set(parameters.flatMap(({ storage }) => storage.reducer ?? []))];
  const counts = countAll(microBatches, group);
  const share = 1 / Math.max(1, counts.tokens);
  // A sum over tokens, times a loss scale, would overflow float16: the part of the mean that is a power of two goes before.
  const before16 = scaler === undefined ? 1 : 2 ** (Math.clz32(counts.tokens) - 32);
  const loss = zeros(device, []);
  const before = reducers.map(({ requiresGradientSync, gradientDivideFactor }) => ({
    requiresGradientSync,
    gradientDivideFactor,
  }));
  try {
    for (const reducer of reducers) reducer.gradientDivideFactor = before16 / share;
    for (let i = 0; i < counts.microBatches; i++) {
      for (const reducer of reducers) reducer.requiresGradientSync = i === counts.microBatches - 1;
      using _frame = scope();
      const part = forward(model, microBatches[i] ?? IGNORED_ROW, device);
      const summed = reducers.length === 0 ? part.mul(share) : before16 === 1 ? part : part.mul(before16);
      (scaler?.scale(summed) ?? summed).backward();
      device.kernels.accumulate({ dstDtype: float32, srcDtype: part.dtype, n: 1, dst: loss.ptr, src: part.ptr });
    }
    using scale = device.scalars.make(share);
    group.allReduce(loss.ptr, 1, float32, { scale, unit: "loss" }).wait();
  } catch (error) {
    loss.dispose();
    throw error;
  } finally {
    for (const [i, reducer] of reducers.entries()) Object.assign(reducer, before[i]);
  }
  return { loss, tokens: counts.tokens };
}

/** Forward of one micro-batch: the sum of its loss. */
export function forward(model: CausalLm, { batch, seq, inputIds, labels, random }: MicroBatch, device: Device): Tensor {
  const shape = [batch, seq];
  const { loss } = model.call({
    inputIds: tensor(device, inputIds, { shape, dtype: int32 }),
    labels: tensor(device, labels, { shape, dtype: int32 }),
    random,
  });
  if (loss === undefined) throw new InternalError("the model gave no loss for labels");
  return loss;
}

/** Tokens of all ranks, and the micro-batches of the rank that has most. */
export function countAll(
  microBatches: readonly MicroBatch[],
  group: ProcessGroup,
): { tokens: number; microBatches: number } {
  let tokens = 0;
  for (const { labels } of microBatches) tokens += labels.filter((label) => label !== IGNORE_INDEX).length;
  const own = Float64Array.of(tokens, microBatches.length);
  const total = { tokens: 0, microBatches: 0 };
  for (const bytes of group.exchange(new Uint8Array(own.buffer), "token count")) {
    const [theirs = NaN, length = NaN] = new Float64Array(bytes.slice().buffer);
    total.tokens += theirs;
    total.microBatches = Math.max(total.microBatches, length);
  }
  return total;
}

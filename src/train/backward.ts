/**
 * Forward and backward of one step: all micro-batches of all ranks as if they were one batch. The model's loss is a sum over
 * tokens; tokens are counted first, over all ranks, so that gradients are scaled once, where they are reduced, and unequal
 * counts come out right.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import type { Batch, MicroBatch } from "../data/loader.ts";
import { Buffer } from "../device/buffer.ts";
import type { Device } from "../device/device.ts";
import type { DeviceScalar } from "../device/scalars.ts";
import { float32, int32 } from "../dtype.ts";
import { InternalError } from "../errors.ts";
import type { CausalLm, CausalLmInputs } from "../models/causal_lm.ts";
import { IGNORE_INDEX } from "../nn/functional.ts";
import type { GradScaler } from "../optim/grad_scaler.ts";
import { requireReducers } from "../optim/reduced.ts";
import { denseLayout } from "../shape.ts";
import { tensor, zeros } from "../tensor/create.ts";
import type { GradientReducer } from "../tensor/parameter.ts";
import { scope } from "../tensor/scope.ts";
import { Tensor } from "../tensor/tensor.ts";
import { requireReducedOver } from "./axes.ts";

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

/** What a step is computed with. */
export interface StepParts {
  readonly model: CausalLm;
  readonly device: Device;
  /** The ranks that read other data, over which losses, tokens and gradients are added. */
  readonly data: ProcessGroup;
  /** Scales the loss, and so the gradients. */
  readonly scaler?: GradScaler | undefined;
}

/**
 * Numbers that follow from the tokens of a step and that its work reads from device memory: what gradients are divided by, and the
 * factors of losses.
 */
export class StepFactors implements Disposable {
  readonly #reducers: readonly GradientReducer[];
  readonly #isScaled: boolean;
  readonly #ofPart: DeviceScalar;
  /** Makes the mean loss of the sum over all ranks. */
  readonly ofLoss: DeviceScalar;

  /** @throws {ArgumentError} if there are several ranks and nothing reduces some trained parameters, or over other ranks than the loss */
  constructor({ model, device, data, scaler }: StepParts) {
    const parameters = [...model.parameters()];
    requireReducers(parameters, "run a backward", data.size);
    requireReducedOver(parameters, data);
    this.#reducers = [...new Set(parameters.flatMap(({ storage }) => storage.reducer ?? []))];
    this.#isScaled = this.#reducers.length === 0 || scaler !== undefined;
    this.#ofPart = device.scalars.make(1);
    this.ofLoss = device.scalars.make(1);
  }

  /** Runs `work` with what follows from the tokens of all ranks. */
  within<T>(tokens: number, work: () => T): T {
    const share = 1 / Math.max(1, tokens);
    const reducers = this.#reducers;
    // A sum over tokens, times a loss scale, would overflow float16: the part of the mean that is a power of two goes before.
    const before16 = this.#isScaled ? 2 ** (Math.clz32(tokens) - 32) : 1;
    this.ofLoss.value = share;
    this.#ofPart.value = reducers.length === 0 ? share : before16;
    const before = reducers.map(({ requiresGradientSync, gradientDivideFactor }) => ({
      requiresGradientSync,
      gradientDivideFactor,
    }));
    try {
      for (const reducer of reducers) reducer.gradientDivideFactor = before16 / share;
      return work();
    } finally {
      for (const [i, reducer] of reducers.entries()) Object.assign(reducer, before[i]);
    }
  }

  /** Says whether the next backward reduces gradients. */
  synchronize(isLast: boolean): void {
    for (const reducer of this.#reducers) reducer.requiresGradientSync = isLast;
  }

  /** A part's sum of losses as its backward begins with it. */
  scaled(part: Tensor): Tensor {
    if (!this.#isScaled) return part;
    const { ptr } = this.#ofPart;
    using factor = new Tensor(
      Buffer.borrow(part.device, ptr, float32.byteLength, "factor of losses"),
      denseLayout([]),
      float32,
    );
    return part.mul(factor.to(part.dtype));
  }

  /** Gives the numbers' places back. */
  [Symbol.dispose](): void {
    this.#ofPart[Symbol.dispose]();
    this.ofLoss[Symbol.dispose]();
  }
}

/**
 * Adds the gradients of the mean loss to the gradients of the model. Gradients are reduced with the last micro-batch. Every rank must
 * call it.
 *
 * @param data the ranks that read other data
 * @param scaler scales the loss, and so the gradients
 * @throws {ArgumentError} if there are several ranks and nothing reduces some trained parameters
 */
export function backwardStep(
  model: CausalLm,
  { microBatches }: Batch,
  device: Device,
  data: ProcessGroup,
  scaler?: GradScaler,
): StepLoss {
  const parts = { model, device, data, scaler };
  using factors = new StepFactors(parts);
  const { tokens, microBatches: count } = countAll(microBatches, data);
  const forwards = Array.from({ length: count }, (_, i) => (): Tensor => {
    return forward(model, microBatches[i] ?? IGNORED_ROW, device);
  });
  return { loss: factors.within(tokens, () => backwardAll(parts, factors, forwards)), tokens };
}

/**
 * Forward and backward of all micro-batches; gives the mean loss. Between {@link StepFactors.within} and its end.
 *
 * @param forwards each gives the sum of a micro-batch's loss
 */
export function backwardAll(
  { device, data, scaler }: StepParts,
  factors: StepFactors,
  forwards: readonly (() => Tensor)[],
): Tensor {
  const loss = zeros(device, []);
  try {
    for (const [i, forward] of forwards.entries()) {
      factors.synchronize(i === forwards.length - 1);
      using _frame = scope();
      const part = forward();
      const summed = factors.scaled(part);
      (scaler?.scale(summed) ?? summed).backward();
      device.kernels.accumulate({ dstDtype: float32, srcDtype: part.dtype, n: 1, dst: loss.ptr, src: part.ptr });
    }
    data.allReduce(loss.ptr, 1, float32, { scale: factors.ofLoss, unit: "loss" }).wait();
  } catch (error) {
    loss.dispose();
    throw error;
  }
  return loss;
}

/** Forward of one micro-batch: the sum of its loss. */
export function forward(model: CausalLm, { batch, seq, inputIds, labels, random }: MicroBatch, device: Device): Tensor {
  const shape = [batch, seq];
  return lossOf(model, {
    inputIds: tensor(device, inputIds, { shape, dtype: int32 }),
    labels: tensor(device, labels, { shape, dtype: int32 }),
    random,
  });
}

/** The sum of a model's loss. */
export function lossOf(model: CausalLm, inputs: CausalLmInputs & { readonly labels: Tensor }): Tensor {
  const { loss } = model.call(inputs);
  if (loss === undefined) throw new InternalError("the model gave no loss for labels");
  return loss;
}

/** Tokens of all ranks that read other data, and the micro-batches of the rank that has most. */
export function countAll(
  microBatches: readonly MicroBatch[],
  data: ProcessGroup,
): { tokens: number; microBatches: number } {
  let tokens = 0;
  for (const { labels } of microBatches) tokens += labels.filter((label) => label !== IGNORE_INDEX).length;
  const own = Float64Array.of(tokens, microBatches.length);
  const total = { tokens: 0, microBatches: 0 };
  for (const bytes of data.exchange(new Uint8Array(own.buffer), "token count")) {
    const [theirs = NaN, length = NaN] = new Float64Array(bytes.slice().buffer);
    total.tokens += theirs;
    total.microBatches = Math.max(total.microBatches, length);
  }
  return total;
}

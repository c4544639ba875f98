/**
 * Forward and backward of one step: all micro-batches of all ranks as if they were one batch.
 * 1. The tokens of all ranks are counted.
 * 2. Each micro-batch's loss is a sum over its tokens, and its backward adds to the gradients.
 * 3. The last micro-batch's backward reduces the gradients, and divides them by the tokens of all ranks: unequal counts need no
 *   correction.
 *
 * @module
 */
import { at } from "../at.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import { type Batch, type MicroBatch, requireRows } from "../data/micro_batch.ts";
import { Buffer } from "../device/buffer.ts";
import type { Device } from "../device/device.ts";
import type { DeviceScalar } from "../device/scalars.ts";
import { float32, int32, uint8 } from "../dtype.ts";
import { InternalError } from "../errors.ts";
import type { CausalLm, CausalLmInputs } from "../models/causal_lm.ts";
import { IGNORE_INDEX } from "../nn/functional.ts";
import type { GradScaler } from "../optim/grad_scaler.ts";
import { requireReducers } from "../optim/reduced.ts";
import { denseLayout } from "../shape.ts";
import { tensor, zeros } from "../tensor/create.ts";
import type { GradientReducer } from "../tensor/parameter_storage.ts";
import { scope } from "../tensor/scope.ts";
import { Tensor } from "../tensor/tensor.ts";
import { requireSameRows, takePositions } from "../axes/positions.ts";
import { requireReducedOver } from "./axes.ts";
import { backwardThroughStages } from "./pipelined.ts";

/** Loss and tokens of a step; the same on every rank. */
export interface StepLoss {
  /** Mean cross-entropy of the tokens of all ranks, in nats: a float32 scalar. 0 without tokens. */
  readonly loss: Tensor;
  /** Number of predicted tokens, over all ranks. */
  readonly tokens: number;
}

/**
 * A one-row micro-batch whose labels are all ignored. A rank that has fewer micro-batches than others runs it, so that all ranks make
 * the same collectives.
 */
export const IGNORED_ROW: MicroBatch = {
  inputIds: Int32Array.of(0),
  labels: Int32Array.of(IGNORE_INDEX),
  batch: 1,
  seq: 1,
  // Random numbers drawn for it have no effect.
  random: { seed: 0, firstSample: 0 },
};

/** Parts of a step's computation. */
export interface StepParts {
  readonly model: CausalLm;
  readonly device: Device;
  /** The ranks that read different data, over which losses, tokens and gradients are summed. */
  readonly data: ProcessGroup;
  /** Scales the loss, and so the gradients. */
  readonly scaler?: GradScaler | undefined;
}

/** Numbers in device memory that depend on the tokens of a step: the divisor of gradients, and the factors of losses. */
export class StepFactors implements Disposable {
  readonly #reducers: readonly GradientReducer[];
  readonly #isScaled: boolean;
  readonly #ofPart: DeviceScalar;
  /** Factor that turns the sum of losses over all ranks into their mean. */
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

  /** Calls `work` with the factors for `tokens` tokens of all ranks. */
  within<T>(tokens: number, work: () => T): T {
    const share = 1 / Math.max(1, tokens);
    const reducers = this.#reducers;
    // In float16, a sum over tokens times a loss scale would overflow, so the power of two in the mean's factor is applied before
    // the backward.
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

  /** Switches the reduction of gradients on if the next backward is the last one, else off. */
  synchronize(isLast: boolean): void {
    for (const reducer of this.#reducers) reducer.requiresGradientSync = isLast;
  }

  /** A part's sum of losses, scaled for its backward. */
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

  /** Frees the scalars. */
  [Symbol.dispose](): void {
    this.#ofPart[Symbol.dispose]();
    this.ofLoss[Symbol.dispose]();
  }
}

/**
 * Computes the gradients of the mean loss, and adds them to the gradients of the model. They are reduced with the last micro-batch.
 * Where ranks have stages of the model, micro-batches go through all of them. Every rank must call it.
 *
 * @param data the ranks that read different data
 * @param scaler scales the loss, and so the gradients
 * @throws {ArgumentError} if there are several ranks and no parallelism reduces some of the trained parameters
 */
export function backwardStep(
  model: CausalLm,
  { microBatches: rows }: Batch,
  device: Device,
  data: ProcessGroup,
  scaler?: GradScaler,
): StepLoss {
  const parts = { model, device, data, scaler };
  using factors = new StepFactors(parts);
  const microBatches = ownPositions(model, rows);
  if (model.pipeline !== undefined) requireSameRows(rows, model.pipeline.group, "pipeline");
  const { tokens, microBatches: count } = countAll(microBatches, data);
  const all = Array.from({ length: count }, (_, i) => microBatches[i] ?? ignoredRow(model));
  const forwards = all.map((microBatch) => (): Tensor => forward(model, microBatch, device));
  const work = model.pipeline === undefined
    ? (): Tensor => backwardAll(parts, factors, forwards)
    : (): Tensor => backwardStages(parts, factors, all);
  return { loss: factors.within(tokens, work), tokens };
}

/** As {@link backwardAll}, through the stages of a pipeline. The rank of the last stage gives all others the mean loss. */
function backwardStages(
  { model, device, data, scaler }: StepParts,
  factors: StepFactors,
  microBatches: readonly MicroBatch[],
): Tensor {
  const { pipeline } = model;
  if (pipeline === undefined) throw new InternalError("no stages");
  const loss = zeros(device, []);
  try {
    backwardThroughStages({
      ...{ model, pipeline },
      shapes: microBatches,
      inputs: (i) => inputsOf(model, at(microBatches, i, "micro-batch"), device),
      scaled: (part) => {
        const summed = factors.scaled(part);
        return scaler?.scale(summed) ?? summed;
      },
      add: (part) =>
        device.kernels.accumulate({ dstDtype: float32, srcDtype: part.dtype, n: 1, dst: loss.ptr, src: part.ptr }),
    });
    const last = pipeline.rankOf(pipeline.stages.length - 1);
    if (pipeline.group.rank === last) {
      data.allReduce(loss.ptr, 1, float32, { scale: factors.ofLoss, unit: "loss" }).wait();
    }
    pipeline.group.broadcast(loss.ptr, float32.byteLength, last, "loss").wait();
  } catch (error) {
    loss.dispose();
    throw error;
  }
  return loss;
}

/**
 * Forward and backward of all micro-batches; returns the mean loss. Called inside {@link StepFactors.within}.
 *
 * @param forwards each returns the sum of a micro-batch's losses
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

/**
 * Forward of one micro-batch: the sum of its losses.
 *
 * @throws {ArgumentError} if beginnings of documents or lengths of rows do not fit the tokens
 */
export function forward(model: CausalLm, microBatch: MicroBatch, device: Device): Tensor {
  return lossOf(model, inputsOf(model, microBatch, device));
}

/**
 * The inputs of a forward of one micro-batch, in device memory.
 *
 * @throws {ArgumentError} if beginnings of documents or lengths of rows do not fit the tokens
 */
export function inputsOf(
  model: CausalLm,
  microBatch: MicroBatch,
  device: Device,
): CausalLmInputs & { readonly labels: Tensor } {
  requireRows(microBatch);
  const { batch, seq, inputIds, labels, documentStarts, part, random } = microBatch;
  const shape = [batch, seq];
  const mask = maskOf(model, microBatch);
  const counts = tokenCountsOf(model, microBatch);
  const tokenCounts = counts && tensor(device, counts, { dtype: int32 });
  return {
    positionIds: part && tensor(device, part.positionIds, { shape, dtype: int32 }),
    rowLength: part?.rowLength,
    inputIds: tensor(device, inputIds, { shape, dtype: int32 }),
    labels: tensor(device, labels, { shape, dtype: int32 }),
    documentStarts: documentStarts && tensor(device, documentStarts, { shape, dtype: int32 }),
    attentionMask: mask && tensor(device, mask, { shape, dtype: uint8 }),
    random,
    ...tokenCounts === undefined ? {} : { tokenCounts },
  };
}

/**
 * Tokens of each row that are no padding, [batch], for a model that adds noise to embeddings by their number. Others need none, nor do
 * rows without padding.
 */
export function tokenCountsOf(
  { neftuneNoiseAlpha }: Pick<CausalLm, "neftuneNoiseAlpha">,
  { lengths }: MicroBatch,
): Int32Array | undefined {
  return neftuneNoiseAlpha === undefined ? undefined : lengths;
}

/**
 * The positions of each row that this rank computes: all, but under context parallelism. There every rank must call it.
 *
 * @throws {ArgumentError} if ranks that share positions have other rows, or numbers of tokens, beginnings of documents or lengths of
 * rows do not fit each other
 */
export function ownPositions(
  { positions }: Pick<CausalLm, "positions">,
  microBatches: readonly MicroBatch[],
): readonly MicroBatch[] {
  if (positions === undefined) return microBatches;
  requireSameRows(microBatches, positions);
  return microBatches.map((rows) => takePositions(rows, positions));
}

/** A row whose labels are all ignored, see {@link IGNORED_ROW}: this rank's positions of it. */
export function ignoredRow({ positions }: Pick<CausalLm, "positions">): MicroBatch {
  return positions === undefined ? IGNORED_ROW : takePositions(IGNORED_ROW, positions);
}

/**
 * The mask of a micro-batch's tokens that are not padding, [batch, seq], for a model whose loss counts all tokens. Other models
 * need no mask: padding follows the tokens, which therefore do not attend to it, and it has no labels.
 */
export function maskOf(
  { countsPadding }: CausalLm,
  { batch, seq, lengths }: MicroBatch,
): Uint8Array<ArrayBuffer> | undefined {
  if (lengths === undefined || !countsPadding) return undefined;
  const mask = new Uint8Array(batch * seq);
  for (const [row, length] of lengths.entries()) mask.fill(1, row * seq, row * seq + length);
  return mask;
}

/** The sum of a model's losses. */
export function lossOf(model: CausalLm, inputs: CausalLmInputs & { readonly labels: Tensor }): Tensor {
  const { loss } = model.call(inputs);
  if (loss === undefined) throw new InternalError("the model gave no loss for labels");
  return loss;
}

/** Number of tokens over all ranks that read different data, and the largest number of micro-batches on a rank. */
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

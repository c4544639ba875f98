/**
 * One optimizer step: micro-batches forward and backward, gradients reduced with the last one, clip, update. Synchronous.
 *
 * The loss is a sum over tokens; the tokens of all ranks and micro-batches are counted first, so that gradients are scaled
 * once, where they are reduced, and unequal counts come out right.
 *
 * @module
 */
import type { ProcessGroup } from "../comm/process_group.ts";
import type { Batch, MicroBatch } from "../data/loader.ts";
import { type Device, devicePtr } from "../device/device.ts";
import { float32, int32 } from "../dtype.ts";
import { InternalError, NonFiniteError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { IGNORE_INDEX } from "../nn/functional.ts";
import { clipGradNorm } from "../optim/clip.ts";
import type { Optimizer } from "../optim/optimizer.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { scope } from "../tensor/scope.ts";
import { tensor, zeros } from "../tensor/create.ts";

/** What DDP and FSDP have in common for a step. */
export interface Parallelism {
  setRequiresGradientSync(sync: boolean): void;
  setGradientDivideFactor(factor: number): void;
}

/** What a step works on. */
export interface StepContext {
  readonly device: Device;
  readonly group: ProcessGroup;
  readonly model: CausalLm;
  readonly parallelism: Parallelism;
  readonly optimizer: Optimizer;
  readonly maxGradNorm: number;
}

/** What a step gave; the same on every rank. */
export interface StepResult {
  /** Mean cross-entropy of the step's tokens, in nats. */
  readonly loss: number;
  /** Norm of all gradients before clipping. */
  readonly gradNorm: number;
  /** Tokens that were predicted, over all ranks. */
  readonly tokens: number;
}

function countLabeled(batch: MicroBatch): number {
  return batch.labels.reduce((n, label) => label === IGNORE_INDEX ? n : n + 1, 0);
}

function forwardBackward({ device, model }: StepContext, batch: MicroBatch): number {
  using _frame = scope();
  const shape = [batch.batch, batch.seq];
  const { loss } = model.call({
    inputIds: tensor(device, batch.inputIds, { shape, dtype: int32 }),
    labels: tensor(device, batch.labels, { shape, dtype: int32 }),
  });
  if (loss === undefined) throw new InternalError("the model gave no loss for labels");
  loss.backward();
  return loss.item();
}

/**
 * Takes one step. Every rank must call it with as many micro-batches.
 *
 * @param step number of the step, from 1, for messages
 * @param learningRate of this step
 * @throws {NonFiniteError} if the loss or a gradient is not finite, before anything is updated
 */
export function trainStep(
  context: StepContext,
  { microBatches }: Batch,
  step: number,
  learningRate: number,
): StepResult {
  const { group, parallelism, optimizer } = context;
  const [tokens = 0] = group.sum([microBatches.reduce((sum, batch) => sum + countLabeled(batch), 0)], "token count");
  parallelism.setGradientDivideFactor(Math.max(1, tokens));
  optimizer.zeroGrad();
  let lossSum = 0;
  microBatches.forEach((batch, i) => {
    parallelism.setRequiresGradientSync(i === microBatches.length - 1);
    lossSum += forwardBackward(context, batch);
  });
  const [total = NaN] = group.sum([lossSum], "loss");
  const loss = total / Math.max(1, tokens);
  if (!Number.isFinite(loss)) throw nonFinite(context, `Loss is ${loss} at step ${step}`);
  const gradNorm = clip(context, step);
  for (const group of optimizer.groups) group.learningRate = learningRate;
  optimizer.step();
  return { loss, gradNorm, tokens };
}

/** Clips gradients; gives their norm before, which must be finite. */
function clip(context: StepContext, step: number): number {
  try {
    using norm = clipGradNorm(context.model.parameters(), context.maxGradNorm, { errorIfNonfinite: true });
    return norm.item();
  } catch (error) {
    throw error instanceof NonFiniteError ? nonFinite(context, `${error.message} at step ${step}`) : error;
  }
}

/** Names the first parameter, over all ranks, whose weight or gradient is not finite. Every rank calls it. */
function nonFinite({ group, model }: StepContext, what: string): NonFiniteError {
  const parameters = [...model.parameters()];
  const first = (isBad: (parameter: Parameter) => boolean): number => {
    const index = parameters.findIndex(isBad);
    return index < 0 ? parameters.length : index;
  };
  const weight = first(({ device, storage: { run, runOffset, shard } }) =>
    !Number.isFinite(maxAbs(device, run.param + runOffset * 4, shard.numel))
  );
  const gradient = first(({ device, grad }) =>
    grad !== undefined && !Number.isFinite(maxAbs(device, grad.ptr, grad.numel))
  );
  const all = group.exchangeText(`${weight} ${gradient}`, "non-finite parameters").map((text) =>
    text.split(" ").map(Number)
  );
  const earliest = (i: number): string | undefined =>
    parameters[Math.min(...all.map((pair) => pair[i] ?? parameters.length))]?.fqn;
  const [badWeight, badGradient] = [earliest(0), earliest(1)];
  const where = badWeight !== undefined
    ? `the weights of '${badWeight}' are the first that are not finite`
    : badGradient !== undefined
    ? `the gradient of '${badGradient}' is the first that is not finite, its weights are finite`
    : "all weights and gradients are finite, so the activations overflow";
  return new NonFiniteError(`${what}: ${where}. Lower the learning rate, or go on from an earlier checkpoint`);
}

function maxAbs(device: Device, address: number, n: number): number {
  using largest = zeros(device, []);
  device.kernels.maxAbs({ dtype: float32, n, dst: largest.ptr, src: devicePtr(address) });
  return largest.item();
}

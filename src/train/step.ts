/**
 * One optimizer step of the trainer: forward and backward, clip, update. Synchronous.
 *
 * @module
 */
import { at } from "../at.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import type { Batch } from "../data/micro_batch.ts";
import type { Device, DevicePtr } from "../device/device.ts";
import { Buffer } from "../device/buffer.ts";
import { convertElements } from "../device/convert.ts";
import { type DType, float32 } from "../dtype.ts";
import { asQuantized } from "../quantized.ts";
import { NativeError, NonFiniteError, UnsupportedError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { clipGradNorm } from "../optim/clip.ts";
import type { GradScaler } from "../optim/grad_scaler.ts";
import type { Optimizer } from "../optim/optimizer.ts";
import { zeros } from "../tensor/create.ts";
import type { Parameter } from "../tensor/parameter.ts";
import { scope } from "../tensor/scope.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { ownedPtr } from "../tensor/write.ts";
import { backwardStep } from "./backward.ts";
import { type Distillation, distillationBackward, type DistillationFigures } from "./distillation_step.ts";
import type { LabeledFigures } from "./labeled_figures.ts";
import type { PreferenceFigures } from "./preference_figures.ts";
import { preferenceBackward, type PreferenceObjective } from "./preference_step.ts";
import type { StepGraph } from "./step_graph.ts";

/** Everything that a step needs: model, optimizer, ranks and options. */
export interface StepContext {
  /** The device of the computation. */
  readonly device: Device;
  /** All ranks of the run. */
  readonly group: ProcessGroup;
  /** The ranks that read different data, over which losses, tokens and gradients are summed. @default all */
  readonly data?: ProcessGroup | undefined;
  /** The model that is trained. */
  readonly model: CausalLm;
  /** The optimizer of its parameters. */
  readonly optimizer: Optimizer;
  /** Norm to which gradients are clipped. */
  readonly maxGradNorm: number;
  /** Scales the loss, for float16. */
  readonly scaler?: GradScaler | undefined;
  /** Captures steps as graphs: see {@link StepGraph}. */
  readonly graph?: StepGraph | undefined;
  /** The objective on pairs of answers. @default next-token cross-entropy */
  readonly preference?: PreferenceObjective | undefined;
  /** The teacher that is learned from. @default next-token cross-entropy */
  readonly distillation?: Distillation | undefined;
  /** A digest of the weights that an adapter is trained on, which checkpoints hold. */
  readonly baseWeights?: string | undefined;
}

/** Results of a step; the same on every rank. */
export interface StepResult {
  /** Mean cross-entropy of the step's tokens, in nats; of preferences the mean loss of pairs. */
  readonly loss: number;
  /** Norm of all gradients before clipping; not finite if the scaler skipped the step. */
  readonly gradNorm: number;
  /** Number of predicted tokens, over all ranks. */
  readonly tokens: number;
  /** Learning rate of the optimizer's first group. */
  readonly learningRate: number;
  /** Rewards and log-probabilities of answers, where preferences are learned. */
  readonly figures?: PreferenceFigures | LabeledFigures | DistillationFigures | undefined;
}

/**
 * Takes one step. Every rank must call it.
 *
 * @param step number of the step, from 1, for messages
 * @throws {NonFiniteError} if the loss or a gradient is not finite, before any update
 * @throws {UnsupportedError} for preferences and a graph
 */
export function trainStep(context: StepContext, batch: Batch, step: number): StepResult {
  const { group, optimizer, graph, scaler } = context;
  group.step = step;
  using _frame = scope();
  const learningRate = optimizer.learningRateOf(at(optimizer.groups, 0, "parameter group"));
  const { stepsTaken } = optimizer;
  scaler?.remember();
  try {
    if (graph !== undefined) {
      if (context.preference !== undefined || context.distillation !== undefined) {
        throw new UnsupportedError(
          "Cannot capture steps that learn preferences or from a teacher, whose loss the host computes: train without graphs",
        );
      }
      const { loss, norm, tokens } = graph.take(context, batch);
      return { ...readBoth(context, loss, norm), tokens, learningRate };
    }
    optimizer.zeroGrad();
    const { loss, ...facts } = addGradients(context, batch);
    finiteLoss(loss);
    const norm = update(context);
    return { loss, gradNorm: norm.item(), learningRate, ...facts };
  } catch (error) {
    optimizer.stepsTaken = stepsTaken; // the check fails before any update
    rewind(scaler);
    if (!(error instanceof NonFiniteError)) throw error;
    throw nonFinite(context, `${error.message} at step ${step}`, stepsTaken);
  }
}

/** Adds the gradients of a step's mean loss to those of the model. */
function addGradients(
  { group, data = group, device, model, scaler, preference, distillation }: StepContext,
  batch: Batch,
): Pick<StepResult, "loss" | "tokens" | "figures"> {
  if (preference !== undefined) return preferenceBackward({ model, device, data, scaler }, preference, batch);
  if (distillation !== undefined) return distillationBackward({ model, device, data, scaler }, distillation, batch);
  const { loss, tokens } = backwardStep(model, batch, device, data, scaler);
  return { loss: loss.item(), tokens };
}

/** Clips the gradients and updates the parameters; returns the norm before clipping. */
export function update({ model, optimizer, maxGradNorm, scaler }: StepContext): Tensor {
  const norm = clipGradNorm(
    model.parameters(),
    maxGradNorm,
    scaler === undefined ? { errorIfNonfinite: true } : { scaler },
  );
  if (scaler === undefined) optimizer.step();
  else {
    scaler.step(optimizer);
    scaler.update();
  }
  return norm;
}

/** Undoes the changes of a failed step to the loss scale. */
function rewind(scaler: GradScaler | undefined): void {
  try {
    scaler?.rewind();
  } catch (error) {
    if (!(error instanceof NativeError)) throw error; // if a card fails, the first error says more
  }
}

function finiteLoss(loss: number): number {
  if (!Number.isFinite(loss)) throw new NonFiniteError(`Loss is ${loss}`);
  return loss;
}

/** Reads loss and norm of a step. If the loss is not finite, the norm's fault is dropped, as it only follows. */
function readBoth({ device }: StepContext, loss: Tensor, norm: Tensor): { loss: number; gradNorm: number } {
  const word = new Float32Array(1);
  device.copyOut(new Uint8Array(word.buffer), loss.ptr);
  const mean = at(word, 0, "loss");
  if (!Number.isFinite(mean)) device.status.clear();
  return { loss: finiteLoss(mean), gradNorm: norm.item() };
}

/**
 * Names the first parameter, over all ranks, whose weight or gradient is not finite, with the remedy. Every rank calls it.
 *
 * @param stepsTaken steps that the optimizer had taken; if none, the learning rate cannot be the cause
 */
function nonFinite({ group, model, scaler }: StepContext, what: string, stepsTaken: number): NonFiniteError {
  const parameters = [...model.parameters()];
  const hasBadWeight = (parameter: Parameter): boolean =>
    !areFinite(parameter.storage.flatShard, ownedPtr(parameter), parameter.storage.shard.numel);
  const hasBadGradient = ({ grad }: Parameter): boolean => grad !== undefined && !areFinite(grad, grad.ptr, grad.numel);
  const [badWeight, badGradient] = [hasBadWeight, hasBadGradient].map((isBad) => {
    const found = group.exchangeText(String(parameters.findIndex(isBad)), "non-finite parameters").map(Number);
    return parameters.find((_, index) => found.includes(index))?.fqn;
  });
  const where = badWeight !== undefined
    ? `the weights of '${badWeight}' are the first that are not finite`
    : badGradient !== undefined
    ? `the gradient of '${badGradient}' is the first that is not finite, its weights are finite`
    : "all weights and gradients are finite, so the activations overflow";
  const isNarrow = scaler !== undefined && badWeight === undefined;
  const range =
    "float16 ends at 65504: compute in bfloat16, which has float32's range ('--precision bfloat16'), or in float32";
  const atFirst = badWeight !== undefined
    ? "No step has changed them: check the weights file, or initializer_range"
    : "No step has changed the weights: check their size (the weights file, or initializer_range)";
  const later = "Lower the learning rate, or resume from an earlier checkpoint";
  const advice = isNarrow ? range : stepsTaken === 0 ? atFirst : later;
  return new NonFiniteError(`${what}: ${where}. ${advice}`);
}

/** True if all of `n` numbers are finite. */
function areFinite(
  { device, dtype }: { readonly device: Device; readonly dtype: DType },
  src: DevicePtr,
  n: number,
): boolean {
  const isQuantized = asQuantized(dtype) !== undefined;
  using wide = isQuantized ? Buffer.allocate(device, n * float32.byteLength, "dequantized weight") : undefined;
  if (wide !== undefined) convertElements(device, { dstDtype: float32, srcDtype: dtype, n, dst: wide.ptr, src });
  using largest = zeros(device, []);
  device.kernels.maxAbs({ dtype: isQuantized ? float32 : dtype, n, dst: largest.ptr, src: wide?.ptr ?? src });
  return Number.isFinite(largest.item());
}

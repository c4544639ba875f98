/**
 * How much memory a rank will need, before any is taken: the plan of every unit, the optimizer's states and the model's own
 * account of its activations. A pure function of shapes, so that a model that cannot fit is refused at once.
 *
 * Note [When memory peaks]: shards and optimizer states are always there. At the start of the backward all activations are
 * alive with the gathered root and one more unit and their gradients; at its end one block's activations are, with the
 * reduced gradients of everything. The peak is the larger of the two.
 *
 * @module
 */
import { type DType, float32 } from "../dtype.ts";
import { OutOfMemoryError } from "../errors.ts";
import type { Shape } from "../shape.ts";
import { planSegment } from "./layout.ts";

/** What decides the memory of a rank. */
export interface MemoryQuestion {
  /** Shapes of the parameters of each unit, the root's first. */
  readonly units: readonly (readonly Shape[])[];
  readonly world: number;
  readonly paramDtype: DType;
  readonly reduceDtype: DType;
  readonly reshardAfterForward: boolean;
  /** Float32 states that the optimizer keeps for each element: 2 for AdamW. */
  readonly optimizerStates: number;
  /** Most bytes of activations at once, at the start of the backward. */
  readonly activationBytes: number;
  /** Bytes of staging that the ranks of a host share. */
  readonly sharedBytes: number;
  /** Ranks that share it. */
  readonly groupSize: number;
}

/** Predicted bytes of one rank, term by term. */
export interface MemoryPrediction {
  /** Parameters gathered at once: the root unit and the largest other one, or all. */
  readonly gathered: number;
  /** Gradients not yet reduced: of the root unit and the largest other one. */
  readonly gradients: number;
  /** This rank's share of parameters. */
  readonly shards: number;
  /** This rank's share of reduced gradients, at the end of the backward. */
  readonly gradientShards: number;
  readonly optimizer: number;
  readonly activations: number;
  /** This rank's part of the shared staging. */
  readonly aperture: number;
  /** The most at once. */
  readonly peak: number;
  /** Parameters of the model. */
  readonly numParameters: number;
}

const ALIGNMENT_BYTES = 256;

/** Predicts a rank's memory. */
export function predictMemory(question: MemoryQuestion): MemoryPrediction {
  const { units, world, paramDtype, reduceDtype } = question;
  const narrowest = Math.min(float32.byteLength, paramDtype.byteLength, reduceDtype.byteLength);
  const runs = units.map((shapes) => shapes.length === 0 ? 0 : planSegment(shapes, world, ALIGNMENT_BYTES / narrowest).runLength);
  const [root = 0, ...others] = runs;
  const largest = Math.max(0, ...others);
  const own = runs.reduce((sum, run) => sum + run, 0);
  const everything = own * world;
  const gathered = (question.reshardAfterForward ? (root + largest) * world : everything) * paramDtype.byteLength;
  const gradients = (root + largest) * world * reduceDtype.byteLength;
  const shards = own * (float32.byteLength + (paramDtype === float32 ? 0 : paramDtype.byteLength));
  const gradientShards = own * float32.byteLength;
  const optimizer = own * float32.byteLength * question.optimizerStates;
  const activations = question.activationBytes;
  const aperture = question.sharedBytes / question.groupSize;
  const always = shards + optimizer + aperture;
  const perUnit = others.length === 0 ? activations : activations / others.length;
  const start = gathered + gradients + activations;
  const end = gathered + gradients + perUnit + gradientShards;
  const numParameters = units.flat().reduce((sum, shape) => sum + shape.reduce((n, size) => n * size, 1), 0);
  const peak = always + Math.max(start, end);
  return { gathered, gradients, shards, gradientShards, optimizer, activations, aperture, peak, numParameters };
}

/**
 * Refuses a model that cannot fit.
 *
 * @param capacity bytes that a rank has
 * @throws {OutOfMemoryError} with every term, the largest model of this shape that fits, and the ranks that would be enough
 */
export function requireFits(question: MemoryQuestion, where: string, capacity: number): MemoryPrediction {
  const prediction = predictMemory(question);
  const { peak, activations, aperture, numParameters } = prediction;
  if (peak <= capacity) return prediction;
  const fixed = activations + aperture;
  const largest = Math.max(0, Math.floor(numParameters * (capacity - fixed) / (peak - fixed)));
  const enough = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024].find((world) =>
    world > question.world && predictMemory({ ...question, world }).peak <= capacity
  );
  const terms = Object.entries({
    gathered: prediction.gathered,
    gradients: prediction.gradients,
    shards: prediction.shards,
    optimizer: prediction.optimizer,
    activations,
    staging: aperture,
  }).map(([name, bytes]) => `${name} ${Math.ceil(bytes)}`).join(", ");
  throw new OutOfMemoryError(
    where,
    Math.ceil(peak),
    0,
    capacity,
    `The model of ${numParameters} parameters does not fit ${question.world} ranks (${terms}). ` +
      `The largest of this kind that does has about ${largest} parameters` +
      (enough === undefined ? "; no number of ranks is enough with this batch" : `; ${enough} ranks would be enough`),
  );
}

/**
 * How much memory a rank will need, before any is taken: the plan of every unit, the optimizer's states and the model's own
 * account of its activations. A pure function of shapes, so that a model that cannot fit is refused at once.
 *
 * Note [When memory peaks]: shards and optimizer states are always there. The rest is followed through a step, moment by
 * moment: the forward of each block, the loss, its backward, the backward of each block and the reduction of its gradients,
 * the embedding's backward, the root's reduction. What is alive at each follows from when units are gathered and freed
 * (`unit.ts`) and when ops let go of what they saved. The peak is the largest moment.
 *
 * @module
 */
import { type DType, float32 } from "../dtype.ts";
import { OutOfMemoryError } from "../errors.ts";
import type { ActivationBytes } from "../nn/activations.ts";
import { numelOf, type Shape } from "../shape.ts";
import { planSegment } from "./layout.ts";

/** What decides the memory of a rank. */
export interface MemoryQuestion {
  /** Shapes of the parameters of each unit, the root's first; blocks after it, in the order of the forward. */
  readonly units: readonly (readonly Shape[])[];
  /** Ranks that share the parameters: 1 where each has all. */
  readonly world: number;
  readonly paramDtype: DType;
  readonly reduceDtype: DType;
  readonly reshardAfterForward: boolean;
  /** Whether several backwards add up before gradients are reduced. */
  readonly accumulates: boolean;
  /**
   * Where parameters are replicated and not sharded: for the loss, then for each block from the last to the first, then for the
   * root, the bytes of gradient buckets that have been filled so far.
   */
  readonly buckets?: readonly number[];
  /** Float32 states that the optimizer keeps for each element: 2 for AdamW. */
  readonly optimizerStates: number;
  readonly activations: ActivationBytes;
  /** Bytes of staging that the ranks of a host share. */
  readonly sharedBytes: number;
  /** Ranks that share it. */
  readonly groupSize: number;
}

/** Predicted bytes of one rank at the moment when it needs most; the terms add up to the peak. */
export interface MemoryPrediction {
  /** Which moment that is, e.g. `backward of block 7`. */
  readonly moment: string;
  /** Gathered parameters. */
  readonly gathered: number;
  /** Whole gradients, not reduced yet. */
  readonly gradients: number;
  /** This rank's share of parameters. */
  readonly shards: number;
  /** This rank's share of reduced gradients. */
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

/** What is alive at one moment besides what always is. */
type Moment = Pick<MemoryPrediction, "moment" | "gathered" | "gradients" | "gradientShards" | "activations">;

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}

/** Bytes of each unit in its three forms; the root's first. */
interface UnitBytes {
  readonly gathered: readonly number[];
  readonly whole: readonly number[];
  readonly reduced: readonly number[];
}

function unitBytes({ world, paramDtype, reduceDtype, buckets }: MemoryQuestion, runs: readonly number[]): UnitBytes {
  const none = runs.map(() => 0);
  if (buckets !== undefined) return { gathered: none, whole: none, reduced: none };
  return {
    gathered: runs.map((run) => run * world * paramDtype.byteLength),
    whole: runs.map((run) => run * world * reduceDtype.byteLength),
    reduced: runs.map((run) => run * float32.byteLength),
  };
}

/** The moments of the last micro-batch of a step, in order. */
function* momentsOf(question: MemoryQuestion, runs: readonly number[]): Generator<Moment> {
  const { activations: act, reshardAfterForward, accumulates, buckets, reduceDtype, world } = question;
  const { gathered, whole, reduced } = unitBytes(question, runs);
  const blocks = runs.length - 1;
  const root = gathered[0] ?? 0;
  /** Gathered when the forward or the backward is in a block: kept ones are freed by the backward, one by one. */
  const gatheredAt = (block: number): number =>
    root + (reshardAfterForward ? gathered[block + 1] ?? 0 : sum(gathered.slice(1, block + 2)));
  const reducedFrom = (block: number): number => sum(reduced.slice(block + 1));
  /** Gradients that one pass computes apart, to add them to earlier ones: of the head and of some elements of a block. */
  const apart = (elements: number): number =>
    accumulates ? act.head * float32.byteLength + elements * reduceDtype.byteLength : 0;
  /** Whole gradients when the backward is in a block (-1: before the first); `step` counts from the loss. */
  const wholeAt = (block: number, step: number): number => {
    if (buckets !== undefined) return accumulates ? buckets.at(-1) ?? 0 : buckets[step] ?? 0;
    return accumulates ? sum(whole.slice(0, block + 2)) : (whole[0] ?? 0) + (block < 0 ? 0 : whole[block + 1] ?? 0);
  };
  const earlier = !accumulates ? 0 : buckets === undefined ? sum(whole) : buckets.at(-1) ?? 0;
  const last = blocks - 1;
  const allGathered = reshardAfterForward ? root : gatheredAt(last);
  const saved = blocks * act.block + act.ends;

  for (let i = 0; i < blocks; i++) {
    const activations = i * act.block + act.blockForward;
    yield {
      moment: `forward of block ${i}`,
      gathered: gatheredAt(i),
      gradients: earlier,
      gradientShards: 0,
      activations,
    };
  }
  yield { moment: "loss", gathered: allGathered, gradients: earlier, gradientShards: 0, activations: saved + act.loss };
  const atLoss = (accumulates ? earlier : buckets === undefined ? whole[0] ?? 0 : buckets[0] ?? 0) + apart(0);
  const activations = saved + act.lossBackward;
  yield { moment: "backward of the loss", gathered: allGathered, gradients: atLoss, gradientShards: 0, activations };
  for (let i = last; i >= 0; i--) {
    const gathered = gatheredAt(i);
    const wholes = wholeAt(i, 1 + last - i);
    yield {
      moment: `backward of block ${i}`,
      gathered,
      gradients: wholes + apart(act.blockBackwardGradients),
      gradientShards: reducedFrom(i + 1),
      activations: i * act.block + act.blockBackward,
    };
    const activations = i * act.block + act.handed;
    yield {
      moment: `end of the backward of block ${i}`,
      gathered,
      gradients: wholes + apart((runs[i + 1] ?? 0) * world),
      gradientShards: reducedFrom(i + 1),
      activations,
    };
    // What was computed apart has been added by now.
    yield {
      moment: `reduction of block ${i}`,
      gathered,
      gradients: wholes + apart(0),
      gradientShards: reducedFrom(i),
      activations,
    };
  }
  const gradients = wholeAt(-1, 1 + blocks);
  yield {
    moment: "backward before the first block",
    gathered: root,
    gradients: gradients + apart(0),
    gradientShards: reducedFrom(0),
    activations: act.embeddingBackward,
  };
  yield { moment: "reduction of the root", gathered: root, gradients, gradientShards: sum(reduced), activations: 0 };
}

/** Predicts a rank's memory. */
export function predictMemory(question: MemoryQuestion): MemoryPrediction {
  const { units, world, paramDtype, reduceDtype, buckets } = question;
  const narrowest = Math.min(float32.byteLength, paramDtype.byteLength, reduceDtype.byteLength);
  const runs = units.map((shapes) =>
    shapes.length === 0 ? 0 : planSegment(shapes.map(numelOf), world, narrowest).runLength
  );
  const own = sum(runs);
  const gatheredFrom = paramDtype === float32 || buckets !== undefined ? 0 : paramDtype.byteLength;
  const shards = own * (float32.byteLength + gatheredFrom);
  const optimizer = own * float32.byteLength * question.optimizerStates;
  const aperture = question.sharedBytes / question.groupSize;
  const always = shards + optimizer + aperture;
  let most: Moment = { moment: "between steps", gathered: 0, gradients: 0, gradientShards: 0, activations: 0 };
  let peak = always;
  for (const moment of momentsOf(question, runs)) {
    const bytes = always + moment.gathered + moment.gradients + moment.gradientShards + moment.activations;
    if (bytes > peak) [most, peak] = [moment, bytes];
  }
  const numParameters = sum(units.flat().map(numelOf));
  return { ...most, shards, optimizer, aperture, peak, numParameters };
}

/** Numbers of ranks that a refusal tries. */
const WORLDS = [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024];

/**
 * Refuses a model that cannot fit.
 *
 * @param where the memory's name, for the message
 * @param capacity bytes that a rank has
 * @throws {OutOfMemoryError} with every term, the largest model of this shape that fits, and the ranks that would be enough
 */
export function requireFits(question: MemoryQuestion, where: string, capacity: number): MemoryPrediction {
  const prediction = predictMemory(question);
  const { peak, moment, activations, aperture, numParameters } = prediction;
  if (peak <= capacity) return prediction;
  const fixed = activations + aperture;
  const largest = Math.max(0, Math.floor(numParameters * (capacity - fixed) / (peak - fixed)));
  const sharded = question.buckets === undefined;
  const enough = WORLDS.find((world) =>
    sharded && world > question.world && predictMemory({ ...question, world }).peak <= capacity
  );
  const terms = Object.entries({
    gathered: prediction.gathered,
    gradients: prediction.gradients,
    shards: prediction.shards,
    "gradient shards": prediction.gradientShards,
    optimizer: prediction.optimizer,
    activations,
    staging: aperture,
  }).map(([name, bytes]) => `${name} ${Math.ceil(bytes)}`).join(", ");
  const remedy = enough !== undefined
    ? `${enough} ranks would be enough`
    : sharded
    ? "no number of ranks is enough with this batch and sequence"
    : "more ranks do not help while each holds all of it: shard it (FSDP)";
  throw new OutOfMemoryError(
    where,
    Math.ceil(peak),
    0,
    capacity,
    `The model of ${numParameters} parameters does not fit ${sharded ? question.world : question.groupSize} rank(s) ` +
      `at the ${moment} (${terms}). The largest of this kind that does has about ${largest} parameters; ${remedy}`,
  );
}

/**
 * Forward and backward of a step that learns from a teacher. For each micro-batch
 * 1. the teacher's forward, without gradients, gives its log-probabilities, of which the host takes the likeliest;
 * 2. the model's forward gives its log-probabilities of these tokens, and of the data's own;
 * 3. the host computes losses and slopes, in float64, and the backward begins at the log-probabilities with them.
 *
 * @module
 */
import { at } from "../at.ts";
import { noGrad } from "../autograd/mode.ts";
import type { Batch, MicroBatch } from "../data/micro_batch.ts";
import { float32, int32 } from "../dtype.ts";
import { InternalError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { IGNORE_INDEX } from "../nn/functional.ts";
import { tensor } from "../tensor/create.ts";
import { scope } from "../tensor/scope.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { countAll, ignoredRow, inputsOf, ownPositions, StepFactors, type StepParts } from "./backward.ts";
import { type DistillationSettings, divergence } from "./distillation_loss.ts";
import { evaluationMode } from "./evaluation_mode.ts";
import { exchangeNumbers } from "./exchange_numbers.ts";

/**
 * How a run learns from a teacher.
 *
 * @internal
 */
export interface Distillation {
  readonly teacher: CausalLm;
  readonly settings: DistillationSettings;
}

/** Metrics of a step with a teacher. */
export interface DistillationFigures {
  /** Mean divergence from the teacher, in nats. */
  readonly distill_loss: number;
  /** Mean cross-entropy of the data's tokens, in nats; absent where it is not learned. */
  readonly hard_loss?: number;
}

/** Loss, tokens and metrics of a step; the same on every rank. */
export interface DistillationLoss {
  readonly loss: number;
  readonly tokens: number;
  readonly figures: DistillationFigures;
}

/**
 * Computes the gradients of the mean loss over the tokens with labels of all ranks, and adds them to the gradients of the model. They are
 * reduced with the last micro-batch. Every rank must call it.
 *
 * @throws {ArgumentError} if there are several ranks and nothing reduces some of the trained parameters
 */
export function distillationBackward(
  parts: StepParts,
  { teacher, settings }: Distillation,
  batch: Batch,
): DistillationLoss {
  const { model, device, data, scaler } = parts;
  const { alpha, temperature } = settings;
  const microBatches = ownPositions(model, batch.microBatches);
  const { tokens, microBatches: count } = countAll(microBatches, data);
  const sums: (readonly (readonly number[])[])[] = [];
  using factors = new StepFactors(parts);
  factors.within(tokens, () => {
    for (let i = 0; i < count; i++) {
      factors.synchronize(i === count - 1);
      using _frame = scope();
      const rows = microBatches[i] ?? ignoredRow(model);
      const likeliest = likeliestTokens(teacher, rows, settings);
      const logits = logitsOf(model, rows);
      const soft = logits.div(temperature).logSoftmax(-1);
      const compared = soft.gather(-1, tensor(device, likeliest.ids, { shape: likeliest.shape, dtype: int32 }));
      const own = alpha === 0 ? undefined : ownLogProbs(temperature === 1 ? soft : logits.logSoftmax(-1), rows);
      const judged = judge(rows, likeliest, compared.toArray(), own?.toArray(), settings, device.math);
      sums.push(i < microBatches.length ? [[judged.divergence, judged.crossEntropy]] : []);
      // A sum of log-probabilities times their slopes has the slopes as its gradients.
      const weighted = (scores: Tensor, slopes: Float32Array<ArrayBuffer>): Tensor =>
        scores.mul(tensor(device, slopes, { shape: scores.shape, dtype: float32 })).sum();
      const both = weighted(compared, judged.slopes);
      const part = factors.scaled(own === undefined ? both : both.add(weighted(own, judged.ownSlopes)));
      (scaler?.scale(part) ?? part).backward();
    }
  });
  const all = exchangeNumbers(sums, 2, data, "losses by a teacher");
  const meanOf = (word: number): number => all.reduce((sum, numbers) => sum + at(numbers, word, "loss"), 0) / tokens;
  const [distilled, hard] = [meanOf(0), meanOf(1)];
  return {
    loss: (1 - alpha) * distilled + alpha * hard,
    tokens,
    figures: { distill_loss: distilled, ...alpha === 0 ? {} : { hard_loss: hard } },
  };
}

/** Scores of all tokens of the vocabulary, float32 [batch, seq, vocab]. */
function logitsOf(model: CausalLm, rows: MicroBatch): Tensor {
  const { labels: _, ...inputs } = inputsOf(model, rows, model.device);
  const { logits } = model.call(inputs);
  if (logits === undefined) throw new InternalError("a forward without labels gave no logits");
  return logits.to(float32);
}

/** Log-probabilities of the tokens that are to be predicted, [batch, seq, 1]; of the first one where there is none. */
function ownLogProbs(logProbs: Tensor, { labels, batch, seq }: MicroBatch): Tensor {
  const ids = labels.map((label) => label === IGNORE_INDEX ? 0 : label);
  return logProbs.gather(-1, tensor(logProbs.device, ids, { shape: [batch, seq, 1], dtype: int32 }));
}

/** The teacher's likeliest tokens at each place of rows. */
interface LikeliestTokens {
  /** [batch, seq, k]. */
  readonly shape: readonly [number, number, number];
  readonly ids: Int32Array;
  readonly logProbs: Float32Array;
  readonly hasOthers: boolean;
}

function likeliestTokens(teacher: CausalLm, rows: MicroBatch, settings: DistillationSettings): LikeliestTokens {
  using _frame = scope();
  using _mode = evaluationMode(teacher); // reshards at its end
  const scores = noGrad(() => logitsOf(teacher, rows).div(settings.temperature).logSoftmax(-1));
  const vocab = at(scores.shape, 2, "dim");
  const all = scores.toArray();
  const k = Math.min(settings.topK, vocab);
  const places = rows.batch * rows.seq;
  const found = { ids: new Int32Array(places * k), logProbs: new Float32Array(places * k) };
  for (let place = 0; place < places; place++) {
    if (rows.labels[place] === IGNORE_INDEX) continue;
    const own = all.subarray(place * vocab, (place + 1) * vocab);
    for (const [i, id] of largest(own, k).entries()) {
      found.ids[place * k + i] = id;
      found.logProbs[place * k + i] = at(own, id, "log-probability");
    }
  }
  return { shape: [rows.batch, rows.seq, k], ...found, hasOthers: k < vocab };
}

/** Places of the `k` largest numbers, the first among equals, in rising order. */
export function largest(numbers: ArrayLike<number>, k: number): readonly number[] {
  if (k >= numbers.length) return Array.from(numbers, (_, i) => i);
  // A heap whose first element is the least of those that are kept.
  const heap: number[] = [];
  const isLess = (a: number, b: number): boolean => {
    const [x, y] = [at(numbers, a, "number"), at(numbers, b, "number")];
    return x < y || (x === y && a > b);
  };
  const sink = (): void => {
    for (let i = 0;;) {
      let least = i;
      for (const child of [2 * i + 1, 2 * i + 2]) {
        if (child < heap.length && isLess(at(heap, child, "place"), at(heap, least, "place"))) least = child;
      }
      if (least === i) return;
      [heap[i], heap[least]] = [at(heap, least, "place"), at(heap, i, "place")];
      i = least;
    }
  };
  for (let place = 0; place < numbers.length; place++) {
    if (heap.length < k) {
      heap.push(place);
      for (let i = heap.length - 1; i > 0;) {
        const parent = (i - 1) >> 1;
        if (!isLess(at(heap, i, "place"), at(heap, parent, "place"))) break;
        [heap[i], heap[parent]] = [at(heap, parent, "place"), at(heap, i, "place")];
        i = parent;
      }
    } else if (isLess(at(heap, 0, "place"), place)) {
      heap[0] = place;
      sink();
    }
  }
  return heap.sort((a, b) => a - b);
}

/** Losses of a micro-batch, and the gradients by the model's log-probabilities. */
function judge(
  { labels }: MicroBatch,
  { shape: [, , k], logProbs, hasOthers }: LikeliestTokens,
  compared: ArrayLike<number> & { subarray(start: number, end: number): ArrayLike<number> },
  own: ArrayLike<number> | undefined,
  settings: DistillationSettings,
  math: StepParts["device"]["math"],
) {
  const slopes = new Float32Array(labels.length * k);
  const ownSlopes = new Float32Array(labels.length);
  const found = new Float64Array(k);
  let [sum, crossEntropy] = [0, 0];
  for (const [place, label] of labels.entries()) {
    if (label === IGNORE_INDEX) continue;
    const [begin, end] = [place * k, (place + 1) * k];
    const both = { model: compared.subarray(begin, end), teacher: logProbs.subarray(begin, end), hasOthers };
    sum += divergence(both, settings, found, math);
    for (const [i, slope] of found.entries()) slopes[begin + i] = (1 - settings.alpha) * slope;
    if (own === undefined) continue;
    crossEntropy -= at(own, place, "log-probability");
    ownSlopes[place] = -settings.alpha;
  }
  return { divergence: sum, crossEntropy, slopes, ownSlopes };
}

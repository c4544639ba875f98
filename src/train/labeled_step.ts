/**
 * Forward and backward of a step that learns from answers with labels: all answers of all ranks as if they were one batch.
 *
 * Note [Distance]: the loss of an answer compares it with the distance of model and reference, the mean log-ratio of answers to other
 * prompts over all ranks. So
 * 1. a forward without gradients scores these answers, for all micro-batches;
 * 2. ranks exchange their log-ratios, and each computes the distance, in float64;
 * 3. a forward and backward for each micro-batch learns from the answers with labels, as `preference_step.ts` does it.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Batch, MicroBatch } from "../data/micro_batch.ts";
import { ArgumentError } from "../errors.ts";
import { countedHere, logProbsOf } from "./answers.ts";
import { countAll, IGNORED_ROW, type StepParts } from "./backward.ts";
import { exchangeNumbers } from "./exchange_numbers.ts";
import { distanceOf, type LabeledFigures, labeledFiguresOf } from "./labeled_figures.ts";
import { estimatesDistance, type LabeledAnswer, labeledLoss, type LabeledLossSettings } from "./labeled_loss.ts";
import type { Reference } from "./reference.ts";
import { scoredBackward } from "./scored_backward.ts";
import { scoreRows } from "./token_scores.ts";

/** Loss, tokens and metrics of a step; the same on every rank. */
export interface LabeledStep {
  /** Mean loss of the answers of all ranks. */
  readonly loss: number;
  /** Number of the answers' tokens, over all ranks. */
  readonly tokens: number;
  readonly figures: LabeledFigures;
}

/**
 * Computes the gradients of the mean loss of answers with labels, and adds them to the gradients of the model, which is in evaluation
 * mode. They are reduced with the last micro-batch. Every rank must call it.
 *
 * @throws {ArgumentError} if there are several ranks and nothing reduces some of the trained parameters; or if rows have no labels
 */
export function labeledBackward(
  parts: StepParts,
  settings: LabeledLossSettings,
  reference: Reference,
  { microBatches }: Batch,
): LabeledStep {
  const { model, device, data } = parts;
  const own = microBatches.map((rows) => {
    if (rows.isDesirable !== undefined) return { ...halves(rows), isDesirable: rows.isDesirable, all: rows };
    throw new ArgumentError("Cannot learn from rows without labels: open the data with 'isPreference' and 'hasLabels'");
  });
  const counted = countedHere(model, microBatches, own);
  const [numAnswers = NaN] = data.sum([counted.reduce((sum, { answers }) => sum + answers.batch, 0)], "answer count");
  const { tokens, microBatches: count } = countAll(counted.map(({ answers }) => answers), data);
  const references: (readonly number[])[] = [];
  const ratios: (readonly (readonly number[])[])[] = [];
  for (let i = 0; i < count; i++) {
    const part = own[i];
    const referred = reference.logProbsOf(part?.all ?? IGNORED_ROW);
    references.push(referred.filter((_, row) => row % 2 === 0));
    if (!estimatesDistance(settings)) continue;
    const losses = scoreRows(model, part?.others ?? IGNORED_ROW);
    if (part === undefined || i >= counted.length) ratios.push([]);
    else {
      const scores = logProbsOf(losses, part.others);
      ratios.push(scores.map((score, row) => [score - at(referred, 2 * row + 1, "row")]));
    }
  }
  const distance = distanceOf(exchangeNumbers(ratios, 1, data, "log-ratios of answers to other prompts").flat());
  const judged: (readonly LabeledAnswer[])[] = [];
  scoredBackward(parts, numAnswers, count, (i) => {
    const part = own[i];
    const rows = part?.answers ?? IGNORED_ROW;
    return {
      rows,
      slopesOf: (losses) => {
        const slopes = new Float32Array(rows.batch * rows.seq);
        if (part === undefined) judged.push([]);
        else {
          const answers = logProbsOf(losses, rows).map((logProb, row): LabeledAnswer => {
            const isDesirable = at(part.isDesirable, row, "label") === 1;
            return { logProb, reference: at(references[i] ?? [], row, "row"), isDesirable };
          });
          for (const [row, answer] of answers.entries()) {
            // A token's loss is its log-probability with the other sign.
            const { slope } = labeledLoss(settings, answer, distance, device.math);
            slopes.fill(-slope, row * rows.seq, (row + 1) * rows.seq);
          }
          judged.push(i < counted.length ? answers : []);
        }
        return slopes;
      },
    };
  });
  const words = judged.map((answers) => {
    return answers.map(({ logProb, reference, isDesirable }) => [logProb, reference, Number(isDesirable)]);
  });
  const all = exchangeNumbers(words, 3, data, "log-probabilities of answers").map((word): LabeledAnswer => ({
    logProb: at(word, 0, "number"),
    reference: at(word, 1, "number"),
    isDesirable: word[2] === 1,
  }));
  return { ...labeledFiguresOf(all, distance, settings, device.math), tokens };
}

/** The answers with labels of a micro-batch, and the answers to other prompts. */
function halves(rows: MicroBatch): { readonly answers: MicroBatch; readonly others: MicroBatch } {
  return { answers: everySecond(rows, 0), others: everySecond(rows, 1) };
}

function everySecond({ inputIds, labels, lengths, seq, batch, random }: MicroBatch, first: 0 | 1): MicroBatch {
  const half = batch / 2;
  const taken = (values: Int32Array, width: number): Int32Array => {
    const into = new Int32Array(half * width);
    for (let row = 0; row < half; row++) {
      const begin = (2 * row + first) * width;
      into.set(values.subarray(begin, begin + width), row * width);
    }
    return into;
  };
  return {
    inputIds: taken(inputIds, seq),
    labels: taken(labels, seq),
    ...lengths === undefined ? {} : { lengths: taken(lengths, 1) },
    ...{ batch: half, seq, random },
  };
}

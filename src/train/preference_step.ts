/**
 * Forward and backward of a step that learns preferences: all pairs of all ranks as if they were one batch.
 *
 * Note [Loss of pairs]: the loss of a pair is a function of the log-probabilities of its two answers, which are sums over tokens. So its
 * gradient by a token's loss is one number for each answer. For each micro-batch
 * 1. the reference's log-probabilities are looked up, or computed without gradients;
 * 2. the forward gives the loss of each token, which the host adds up;
 * 3. the host computes the loss of each pair and its two slopes, in float64;
 * 4. the backward begins at the tokens' losses, with the slopes as their gradients.
 *
 * @module
 */
import { at } from "../at.ts";
import type { ProcessGroup } from "../comm/process_group.ts";
import type { Batch, MicroBatch } from "../data/micro_batch.ts";
import type { PortableMath } from "../device/device.ts";
import { ArgumentError } from "../errors.ts";
import { IGNORE_INDEX } from "../nn/functional.ts";
import { countedHere, logProbsOf, targetsOf, withPrompts } from "./answers.ts";
import { countAll, IGNORED_ROW, type StepParts } from "./backward.ts";
import { exchangeNumbers } from "./exchange_numbers.ts";
import { isLabeledLoss, type LabeledLossSettings } from "./labeled_loss.ts";
import { labeledBackward, type LabeledStep } from "./labeled_step.ts";
import { figuresOf, type JudgedPair, type PreferenceFigures } from "./preference_figures.ts";
import { answerFor, ODDS_RATIO, type PairAnswer, pairLoss, type PairLossSettings } from "./preference_loss.ts";
import type { Reference } from "./reference.ts";
import { scoredBackward } from "./scored_backward.ts";

/**
 * How a run learns preferences.
 *
 * @internal
 */
export interface PreferenceObjective {
  readonly loss: PairLossSettings | LabeledLossSettings;
  readonly reference: Reference;
}

/** Loss, tokens and metrics of a step; the same on every rank. */
export interface PreferenceLoss {
  /** Mean loss of the pairs of all ranks. */
  readonly loss: number;
  /** Number of the answers' tokens, over all ranks. */
  readonly tokens: number;
  readonly figures: PreferenceFigures;
}

/** Numbers of a pair in messages between ranks. */
const WORDS = 7;

/**
 * Computes the gradients of the mean loss of pairs, or of answers with labels, and adds them to the gradients of the model, which is in evaluation mode. They are
 * reduced with the last micro-batch. Every rank must call it.
 *
 * @throws {ArgumentError} if there are several ranks and no parallelism reduces some of the trained parameters; or if rows are no pairs
 */
export function preferenceBackward(
  parts: StepParts,
  { loss: settings, reference }: PreferenceObjective,
  batch: Batch,
): PreferenceLoss | LabeledStep {
  if (isLabeledLoss(settings)) return labeledBackward(parts, settings, reference, batch);
  const { model, device, data } = parts;
  const { microBatches } = batch;
  if (microBatches.some(({ pairs }) => pairs === undefined)) {
    throw new ArgumentError("Cannot learn preferences from rows that are no pairs: open the data with 'isPreference'");
  }
  const counted = countedHere(model, microBatches, microBatches);
  const own = counted.reduce((sum, { batch }) => sum + batch / 2, 0);
  const [numPairs = NaN] = data.sum([own], "pair count");
  const { tokens, microBatches: count } = countAll(counted, data);
  // Of odds ratios, all tokens of the chosen samples are learned too.
  const isOdds = settings.lossType === ODDS_RATIO;
  const scoredOf = (rows: MicroBatch): MicroBatch => isOdds ? withPrompts(rows, isChosen) : rows;
  const ownTexts = counted.reduce((sum, rows) => sum + textTokensOf(scoredOf(rows)), 0);
  const [texts = NaN] = data.sum([ownTexts], "token count of chosen samples");
  // The sum of all losses is divided by the number of pairs.
  const textSlope = isOdds ? numPairs / texts : 0;
  const judged: (readonly JudgedPair[])[] = [];
  scoredBackward(parts, numPairs, count, (i) => {
    const microBatch = microBatches[i] ?? IGNORED_ROW;
    const references = reference.logProbsOf(microBatch);
    const scored = scoredOf(microBatch);
    return {
      rows: scored,
      slopesOf: (losses) => {
        const { pairs, slopes } = judge({ microBatch, scored, losses, references, textSlope }, settings, device.math);
        judged.push(i < counted.length ? pairs : []);
        return slopes;
      },
    };
  });
  return { ...figuresOf(exchanged(judged, data), settings, device.math), tokens };
}

/** True for the row of a chosen answer. */
function isChosen(row: number): boolean {
  return row % 2 === 0;
}

/** Tokens with labels in the rows of chosen answers. */
function textTokensOf(rows: MicroBatch): number {
  return targetsOf(rows).reduce((sum, tokens, row) => isChosen(row) ? sum + tokens : sum, 0);
}

/** The answers of a micro-batch as they were measured. */
interface MeasuredRows {
  /** Rows whose answers have labels. */
  readonly microBatch: MicroBatch;
  /** The same with all labels whose losses are learned. */
  readonly scored: MicroBatch;
  /** Of the tokens of `scored`, row-major [batch, seq]. */
  readonly losses: ArrayLike<number>;
  /** Of each row, by the reference. */
  readonly references: readonly number[];
  /** Gradient by the loss of each token of a chosen sample, besides the gradient by its answer. */
  readonly textSlope: number;
}

/** The pairs of a micro-batch, and the gradients of their losses by the losses of tokens. */
function judge(
  { microBatch, scored, losses, references, textSlope }: MeasuredRows,
  settings: PairLossSettings,
  math: PortableMath,
): { readonly pairs: readonly JudgedPair[]; readonly slopes: Float32Array<ArrayBuffer> } {
  const { seq, batch, pairs: { length } = [] } = microBatch;
  const [logProbs, tokens] = [logProbsOf(losses, microBatch), targetsOf(microBatch)];
  const slopes = new Float32Array(batch * seq);
  const isOdds = settings.lossType === ODDS_RATIO;
  const [texts, textTokens] = isOdds ? [logProbsOf(losses, scored), targetsOf(scored)] : [logProbs, tokens];
  const answerOf = (row: number): PairAnswer =>
    answerFor(settings, {
      logProb: at(logProbs, row, "row"),
      reference: isOdds ? 0 : at(references, row, "row"),
      tokens: at(tokens, row, "row"),
    });
  const pairs = Array.from({ length }, (_, pair): JudgedPair => {
    const [chosen, rejected] = [answerOf(2 * pair), answerOf(2 * pair + 1)];
    const { loss, ...slope } = pairLoss(settings, chosen, rejected, math);
    // A token's loss is its log-probability with the other sign.
    for (const [i, value] of [slope.chosen, slope.rejected].entries()) {
      const row = 2 * pair + i;
      const [begin, end] = [row * seq, (row + 1) * seq];
      if (!isOdds) {
        slopes.fill(-value, begin, end);
        continue;
      }
      const ofText = isChosen(row) ? textSlope : 0;
      const ofAnswer = ofText - value / at(tokens, row, "row");
      for (let place = begin; place < end; place++) {
        slopes[place] = microBatch.labels[place] === IGNORE_INDEX ? ofText : ofAnswer;
      }
    }
    return {
      ...{ loss, chosen, rejected },
      textLoss: -at(texts, 2 * pair, "row"),
      textTokens: at(textTokens, 2 * pair, "row"),
    };
  });
  return { pairs, slopes };
}

/** The pairs of all ranks. */
function exchanged(own: readonly (readonly JudgedPair[])[], data: ProcessGroup): readonly JudgedPair[] {
  const words = own.map((pairs) =>
    pairs.map(({ loss, chosen, rejected, textLoss, textTokens }) => [
      ...[loss, chosen.logProb, chosen.reference, rejected.logProb, rejected.reference, textLoss, textTokens],
    ])
  );
  return exchangeNumbers(words, WORDS, data, "losses of pairs").map((numbers): JudgedPair => {
    const word = (i: number): number => at(numbers, i, "number of a pair");
    return {
      loss: word(0),
      chosen: { logProb: word(1), reference: word(2) },
      rejected: { logProb: word(3), reference: word(4) },
      ...{ textLoss: word(5), textTokens: word(6) },
    };
  });
}

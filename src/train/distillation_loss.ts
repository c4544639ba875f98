/**
 * The divergence of a model's probabilities of a token from a teacher's, with its slopes: of the teacher's likeliest tokens, and of all
 * others as one more.
 *
 * Names, and the meaning of β, are those of TRL's `GKDTrainer` (Agarwal et al. 2024): its loss where all tokens are compared. The bucket of
 * all others is that of TRL's `ServerDistillationTrainer`.
 *
 * @module
 */
import { at } from "../at.ts";
import type { PortableMath } from "../device/device.ts";

/** The loss of a run with a teacher. */
export interface DistillationSettings {
  /** The teacher's likeliest tokens that are compared, at most. */
  readonly topK: number;
  /** 0: KL(teacher ‖ model); 1: KL(model ‖ teacher); between: the generalized Jensen-Shannon divergence. */
  readonly beta: number;
  /** Divisor of both models' logits. */
  readonly temperature: number;
  /** Weight of the cross-entropy of the data's tokens, beside 1 − α for the divergence. */
  readonly alpha: number;
}

/** Largest logarithm of a sum of probabilities that leaves some for others. */
const NEARLY_ALL = -1e-7;

/** Tokens that are compared at one place: their log-probabilities, in one order. */
export interface ComparedTokens {
  readonly model: ArrayLike<number>;
  readonly teacher: ArrayLike<number>;
  /** True if there are others. */
  readonly hasOthers: boolean;
}

/**
 * The divergence at one place, in nats and float64.
 *
 * @param slopes receives the derivatives by the model's log-probabilities of the compared tokens
 */
export function divergence(
  { model, teacher, hasOthers }: ComparedTokens,
  { beta }: Pick<DistillationSettings, "beta">,
  slopes: { [index: number]: number },
  math: PortableMath,
): number {
  let sum = 0;
  for (let i = 0; i < model.length; i++) {
    const { loss, slope } = term(at(model, i, "token"), at(teacher, i, "token"), beta, math);
    sum += loss;
    slopes[i] = slope;
  }
  if (!hasOthers) return sum;
  const [own, others] = [restOf(model, math), restOf(teacher, math)];
  const { loss, slope } = term(own.logProb, others.logProb, beta, math);
  // What a compared token gains, the others lose; at the bound they lose nothing.
  if (!own.isBound) {
    const rest = math.exp(own.logProb);
    for (let i = 0; i < model.length; i++) {
      slopes[i] = (slopes[i] ?? NaN) - slope * math.exp(at(model, i, "token")) / rest;
    }
  }
  return sum + loss;
}

/** Logarithm of the probability that some tokens leave. */
function restOf(
  logProbs: ArrayLike<number>,
  { exp, log }: PortableMath,
): { readonly logProb: number; readonly isBound: boolean } {
  let sum = 0;
  for (let i = 0; i < logProbs.length; i++) sum += exp(at(logProbs, i, "token"));
  const most = exp(NEARLY_ALL);
  return { logProb: log(1 - Math.min(sum, most)), isBound: sum >= most };
}

/** A token's part of the divergence, and its derivative by the model's log-probability s; t is the teacher's. */
function term(s: number, t: number, beta: number, { exp, log }: PortableMath) {
  const [own, other] = [exp(s), exp(t)];
  if (beta === 0) return { loss: other === 0 ? 0 : other * (t - s), slope: -other };
  if (beta === 1) return { loss: own === 0 ? 0 : own * (s - t), slope: own * (s - t + 1) };
  // The mixture, from the larger of its parts, so that it is no logarithm of 0.
  const [first, second] = [s + log(1 - beta), t + log(beta)];
  const larger = Math.max(first, second);
  const m = larger + log(1 + exp(-Math.abs(first - second)));
  const share = exp(first - m);
  const loss = beta * other * (t - m) + (1 - beta) * own * (s - m);
  const slope = -beta * other * share + (1 - beta) * own * (s - m + 1 - share);
  return { loss, slope };
}

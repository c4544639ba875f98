/**
 * The head of a language model: from hidden states to the logits of the next token, or straight to the loss. The head
 * is a module, so that it can be a unit.
 *
 * @module
 */
import { at } from "../at.ts";
import { ArgumentError } from "../errors.ts";
import { linearOp } from "../ops/matmul.ts";
import { applyOne } from "../tensor/apply.ts";
import type { Device } from "../device/device.ts";
import { type Init, Parameter } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { linearCrossEntropy, type TokenScores, tokenScores } from "./functional.ts";
import { Module } from "./module.ts";
import type { Carried } from "./section.ts";

/** Output of a head. */
export interface HeadOutput {
  /** Scores of the next token [batch, seq or `logitsToKeep`, vocab]; without labels only, since the loss never holds all of them. */
  readonly logits?: Tensor;
  /**
   * Sum over labeled tokens of the cross-entropy, and of `auxLoss` times the coefficient of the config where it is given: a float32
   * scalar; with labels only.
   */
  readonly loss?: Tensor;
  /**
   * The balancing loss of the routers, a float32 scalar, least if all experts get equal weight; only if the config asks for
   * `output_router_logits`.
   */
  readonly auxLoss?: Tensor;
  /** The loss and the likeliest id of each token, in place of the loss, where they are asked for. */
  readonly perToken?: TokenScores;
  /** The values that the blocks of a section hand on, in place of all else, where it is not the last one. */
  readonly carried?: Carried;
}

/** Options of a head. */
export interface HeadOptions {
  /** True if it has a bias. @default false */
  readonly bias?: boolean;
  /** Divisor of the logits. @default 1 */
  readonly logitsScaling?: number;
  /** Bound c of the logits: a logit becomes c tanh(logit / c). @default none */
  readonly softcap?: number | undefined;
}

/** `(hidden Wᵀ + b) / logitsScaling`, weight [vocab, hidden]. */
export class LanguageModelHead extends Module<
  [
    hidden: Tensor,
    labels: Tensor | undefined,
    logitsToKeep?: number | undefined,
    isPerToken?: boolean | undefined,
  ],
  HeadOutput
> {
  readonly weight: Parameter;
  /** [vocab], zeros at first, if there is one. */
  readonly bias: Parameter | undefined;
  readonly #logitsScaling: number;
  readonly #softcap: number | undefined;

  /** @param weight initialization of its own weight, or the input embedding's weight, to which it is tied */
  constructor(
    device: Device,
    hiddenSize: number,
    vocabSize: number,
    weight: Init | Parameter,
    options: HeadOptions = {},
  ) {
    super();
    const { bias = false, logitsScaling = 1 } = options;
    if (bias && logitsScaling !== 1) throw new ArgumentError("Cannot divide the logits of a head that has a bias");
    this.weight = weight instanceof Parameter
      ? weight
      : new Parameter(device, [vocabSize, hiddenSize], { init: weight });
    this.bias = bias ? new Parameter(device, [vocabSize]) : undefined;
    this.#logitsScaling = logitsScaling;
    this.#softcap = options.softcap;
  }

  /** Bound c of the logits: a logit becomes c tanh(logit / c). Undefined: no bound. */
  get softcap(): number | undefined {
    return this.#softcap;
  }

  /**
   * hidden [batch, seq, hidden], labels int32 [batch, seq]; logits of the last `logitsToKeep` positions, 0 is all; with labels the
   * loss, or with `isPerToken` the loss of each token
   */
  forward(
    hidden: Tensor,
    labels: Tensor | undefined,
    logitsToKeep: number = 0,
    isPerToken: boolean = false,
  ): HeadOutput {
    const { weight, bias } = this;
    if (labels !== undefined) {
      const [scaled, options] = [this.scaled(hidden), { bias, softcap: this.#softcap }];
      return isPerToken
        ? { perToken: tokenScores(scaled, weight, labels, options) }
        : { loss: linearCrossEntropy(scaled, weight, labels, options) };
    }
    const seq = at(hidden.shape, 1, "dim");
    if (!Number.isSafeInteger(logitsToKeep) || logitsToKeep < 0) {
      throw new ArgumentError(
        `Cannot give the logits of the last ${logitsToKeep} positions: it must be a whole number`,
      );
    }
    // As a slice from the end does in transformers, more than there are give all.
    const count = logitsToKeep === 0 ? seq : Math.min(logitsToKeep, seq);
    const kept = this.scaled(hidden.narrow(1, seq - count, count));
    const logits = applyOne(linearOp, bias === undefined ? [kept, weight] : [kept, weight, bias], "outIn");
    const softcap = this.#softcap;
    return { logits: softcap === undefined ? logits : logits.div(softcap).tanh().mul(softcap) };
  }

  /** Hidden states divided as the logits are to be, which are linear in them: the loss never holds all logits. */
  scaled(hidden: Tensor): Tensor {
    return this.#logitsScaling === 1 ? hidden : hidden.mul(1 / this.#logitsScaling);
  }
}

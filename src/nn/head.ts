/**
 * The head of a language model: from hidden states to the scores of the next token, or straight to the loss. The head
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
import { linearCrossEntropy } from "./functional.ts";
import { Module } from "./module.ts";

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
}

/** `hidden Wᵀ + b`, weight [vocab, hidden]. */
export class LanguageModelHead extends Module<
  [hidden: Tensor, labels: Tensor | undefined, logitsToKeep?: number | undefined],
  HeadOutput
> {
  readonly weight: Parameter;
  /** [vocab], zeros at first, if there is one. */
  readonly bias: Parameter | undefined;

  /** @param weight initialization of its own weight, or the input embedding's weight, to which it is tied */
  constructor(
    device: Device,
    hiddenSize: number,
    vocabSize: number,
    weight: Init | Parameter,
    options: { readonly bias: boolean } = { bias: false },
  ) {
    super();
    this.weight = weight instanceof Parameter
      ? weight
      : new Parameter(device, [vocabSize, hiddenSize], { init: weight });
    this.bias = options.bias ? new Parameter(device, [vocabSize]) : undefined;
  }

  /** hidden [batch, seq, hidden], labels int32 [batch, seq]; scores of the last `logitsToKeep` positions; 0 is all */
  forward(hidden: Tensor, labels: Tensor | undefined, logitsToKeep: number = 0): HeadOutput {
    const { weight, bias } = this;
    if (labels !== undefined) return { loss: linearCrossEntropy(hidden, weight, labels, { bias }) };
    const seq = at(hidden.shape, 1, "dim");
    if (!Number.isSafeInteger(logitsToKeep) || logitsToKeep < 0) {
      throw new ArgumentError(
        `Cannot give the scores of the last ${logitsToKeep} positions: it must be a whole number`,
      );
    }
    // As a slice from the end does in transformers, more than there are give all.
    const count = logitsToKeep === 0 ? seq : Math.min(logitsToKeep, seq);
    const kept = hidden.narrow(1, seq - count, count);
    return { logits: applyOne(linearOp, bias === undefined ? [kept, weight] : [kept, weight, bias], "outIn") };
  }
}

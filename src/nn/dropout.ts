/**
 * Random numbers of a training forward: dropout, and noise for routers.
 *
 * Note [Random numbers of a forward]: they are Philox of a key and a counter. The key is `keyOf(seed, "<FQN of the layer>
 * <purpose>")`; the counter is the sample's number and the position in the sample. So a sample has the same numbers on any rank,
 * in any micro-batch, in a recomputation and after a resume; a different layer, sample or seed has different numbers.
 *
 * @module
 */
import type { Device } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import { ArgumentError, UnsupportedError } from "../errors.ts";
import { type DropoutAttrs, dropoutOp, type RandomStream, requireProbability } from "../ops/dropout.ts";
import { checkSeed, keyOf, type RandomSource } from "../random.ts";
import { applyOne } from "../tensor/apply.ts";
import { track } from "../tensor/scope.ts";
import { Tensor } from "../tensor/tensor.ts";
import { Module } from "./module.ts";

/** Input of layers that draw random numbers. */
export interface RandomContext {
  /** Source of the numbers; needed if a layer draws, which none does in evaluation. */
  readonly random?: RandomSource | undefined;
  /** Tokens of a full row, where these are a part of one. @default these, behind the tokens in the cache */
  readonly rowLength?: number | undefined;
}

/**
 * Random stream of a layer in a call; see Note [Random numbers of a forward].
 *
 * @param purpose distinguishes the streams of one layer
 * @throws {UnsupportedError} if the call's tokens are parts of rows, as numbers are drawn by the place in the row
 * @throws {ArgumentError} if the call was not given the numbers of its samples
 */
export function streamOf(layer: Module, purpose: string, context: RandomContext | undefined): RandomStream {
  const { fqn = "" } = layer;
  if (context?.rowLength !== undefined) {
    throw new UnsupportedError(
      `Cannot draw the ${purpose} of '${fqn}': it is drawn by the place in a row, and the ranks of a context axis have parts of rows. ` +
        "Switch it off, call model.eval(), or use a context axis of 1 rank",
    );
  }
  const random = context?.random;
  if (random === undefined) {
    throw new ArgumentError(
      `Cannot draw the ${purpose} of '${fqn}' in training without knowing which samples these are: give the model ` +
        "'random: { seed, firstSample }', as batches of textData have it, or call model.eval()",
    );
  }
  checkSeed(random.firstSample, "firstSample");
  return { key: keyOf(random.seed, `${fqn} ${purpose}`), sample: random.firstSample };
}

/** Float32 numbers in (low, high) for each element of [batch, rows, cols], of samples that follow each other. */
export function sampleUniform(
  device: Device,
  shape: readonly [batch: number, rows: number, cols: number],
  stream: RandomStream,
  [low, high]: readonly [low: number, high: number],
): Tensor {
  const [batch, rows, cols] = shape;
  const made = track(Tensor.empty(device, shape, float32, "noise"));
  device.kernels.sampleUniform({ batch, rows, cols, ...stream, low, high, dst: made.ptr });
  return made;
}

/**
 * Dropout: in training, each element becomes zero with probability `p`, and the others are divided by `1 - p`; in evaluation,
 * nothing changes. Which elements depends on the seed, the layer's FQN, the sample and the place in it, and not on ranks or
 * micro-batches: on as many ranks as you like, the same samples are trained with the same masks.
 *
 * @example
 * ```ts
 * import { Dropout, full } from "fullyshard/nn";
 * import { openDevice } from "fullyshard/device";
 * const x = full(await openDevice("cpu"), [4, 3, 8], 1);
 * const dropout = new Dropout(0.5);
 * const all = dropout.call(x, { random: { seed: 0, firstSample: 10 } });
 * const last = dropout.call(x.narrow(0, 3, 1), { random: { seed: 0, firstSample: 13 } });
 * if (all.narrow(0, 3, 1).toArray().join() !== last.toArray().join()) throw new Error("a sample has its own mask");
 * if (dropout.eval().call(x).toArray().join() !== x.toArray().join()) throw new Error("changed");
 * ```
 */
export class Dropout extends Module<[x: Tensor, context?: RandomContext], Tensor> {
  /** Probability that an element becomes zero. */
  readonly p: number;

  /**
   * Takes the probability.
   *
   * @throws {ArgumentError} if it is none, or something else is given beside it
   */
  constructor(p: number, ...others: readonly never[]) {
    super();
    if (others.length > 0) {
      throw new ArgumentError("Cannot make a Dropout with more than p: it has no other options, and takes no device");
    }
    this.p = requireProbability(p);
  }

  /**
   * x [batch, .., cols] → the same shape
   *
   * @throws {ArgumentError} in training, without `random`
   */
  forward(x: Tensor, context?: RandomContext): Tensor {
    if (!this.training || this.p === 0) return x;
    return applyOne(dropoutOp, [x], { p: this.p, ...streamOf(this, "dropout", context) });
  }
}

/** A layer that applies dropout, where there is something to drop. */
export function dropoutOf(p: number = 0): Dropout | undefined {
  return p === 0 ? undefined : new Dropout(p);
}

/** Applies a layer of {@link dropoutOf} to x. */
export function dropOut(dropout: Dropout | undefined, x: Tensor, context: RandomContext | undefined): Tensor {
  return dropout === undefined ? x : dropout.call(x, context);
}

/** Dropout of an attention's probabilities in a call; undefined if there is none. */
export function attentionDropout(layer: Module, p: number = 0, context: RandomContext): DropoutAttrs | undefined {
  if (p === 0 || !layer.training) return undefined;
  return { p, ...streamOf(layer, "attention dropout", context) };
}

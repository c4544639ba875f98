/**
 * The linear layer.
 *
 * @module
 */
import { requireSwitch, requireWord } from "../config/known_values.ts";
import { requireKnownKeys } from "../config/known_keys.ts";
import type { Device } from "../device/device.ts";
import { ArgumentError } from "../errors.ts";
import { sameShape, type Shape } from "../shape.ts";
import { linearOp, type WeightLayout } from "../ops/matmul.ts";
import { applyOne } from "../tensor/apply.ts";
import { type Init, Parameter } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { valueText } from "../words.ts";
import type { Dropout, RandomContext } from "./dropout.ts";
import { type HookHandle, Module, type ModuleAdapter } from "./module.ts";

/** Options of a linear layer. */
export interface LinearOptions {
  /** True if the layer adds a bias. @default true */
  readonly bias?: boolean;
  /**
   * Layout of the weight: `outIn` is [outFeatures, inFeatures]; `inOut` is [inFeatures, outFeatures], as in transformers'
   * `Conv1D`. @default `outIn`
   */
  readonly layout?: WeightLayout;
  /** Initial values of the weight. @default PyTorch's uniform in ±1/√inFeatures */
  readonly init?: Init;
  /**
   * Parts of equal width that lie side by side in the outputs, as queries, keys and values of one projection; `unequal` if their
   * widths differ. @default 1
   */
  readonly packs?: number | "unequal";
}

/** The steps at the ends of a layer whose weight is divided among ranks. */
export interface LinearEnds {
  /** Makes of the input what the layer computes with. @default the input itself */
  readonly enter?: (x: Tensor) => Tensor;
  /** Makes of the product, without the bias, what the layer gives. @default the product itself */
  readonly leave?: (y: Tensor) => Tensor;
  /** Makes of the bias what is added to what {@link leave} gives. @default the bias itself */
  readonly share?: (bias: Tensor) => Tensor;
  /** Makes of the sum of product and bias what the layer gives. @default the sum itself */
  readonly gather?: (y: Tensor) => Tensor;
}

/**
 * A change of a linear layer's output by a product of two narrow matrices.
 *
 * @internal
 */
export interface LinearAdapter extends ModuleAdapter<[x: Tensor, context?: RandomContext], Tensor> {
  /** Weight [r, in]. */
  readonly loraA: Linear;
  /** Weight [out, r]. */
  readonly loraB: Linear;
  /** Of the adapter's input, if there is one. */
  readonly loraDropout: Dropout | undefined;
}

/** Refuses what cannot be the weight of a layer. @throws {ArgumentError} with its shape and the layer's */
function requireTied(tied: Parameter, shape: Shape): void {
  if (tied instanceof Parameter && sameShape(tied.globalShape, shape)) return;
  const got = tied instanceof Parameter ? `a Parameter [${tied.globalShape.join(", ")}]` : valueText(tied);
  throw new ArgumentError(`Cannot tie a Linear's weight to ${got}: expected a Parameter [${shape.join(", ")}]`);
}

/** `y = x Wᵀ + b`, weight [outFeatures, inFeatures]; or `y = x W + b`, weight [inFeatures, outFeatures]. */
export class Linear extends Module<[x: Tensor, context?: RandomContext], Tensor> {
  /** [outFeatures, inFeatures], or the other way round. */
  readonly weight: Parameter;
  /** [outFeatures], if there is one. */
  readonly bias: Parameter | undefined;
  /** The layout of the weight in memory. */
  readonly layout: WeightLayout;
  /** Number of parts of equal width in the outputs. A cut over ranks cuts each part by itself. */
  readonly packs: number | "unequal";
  #ends: LinearEnds = {};
  #factors: LinearAdapter | undefined;

  /**
   * The weight is made here, or given when it is tied to another one.
   *
   * @throws {ArgumentError} if an option is none of these
   */
  constructor(device: Device, inFeatures: number, outFeatures: number, options: LinearOptions = {}, tied?: Parameter) {
    super();
    requireKnownKeys("make a Linear", options, { bias: true, layout: true, init: true, packs: true });
    const { bias = true, layout = "outIn", packs = 1 } = options;
    requireSwitch("make a Linear", "bias", bias);
    requireWord("make a Linear", "layout", layout, ["outIn", "inOut"]);
    if (packs !== "unequal" && !(Number.isSafeInteger(packs) && packs > 0)) {
      throw new ArgumentError(
        `Cannot make a Linear with packs ${valueText(packs)}: expected a positive integer or 'unequal'`,
      );
    }
    const bound = 1 / Math.sqrt(inFeatures);
    const uniform: Init = { kind: "uniform", low: -bound, high: bound };
    this.layout = layout;
    this.packs = packs;
    const shape = this.layout === "outIn" ? [outFeatures, inFeatures] : [inFeatures, outFeatures];
    if (tied !== undefined) requireTied(tied, shape);
    this.weight = tied ?? new Parameter(device, shape, { init: options.init ?? uniform });
    const biasInit: Init = options.init === undefined ? uniform : { kind: "constant", value: 0 };
    this.bias = bias ? new Parameter(device, [outFeatures], { init: biasInit }) : undefined;
  }

  /**
   * x [.., inFeatures] → [.., outFeatures]
   *
   * @param _context for the dropout of an adapter of the layer
   */
  forward(x: Tensor, _context?: RandomContext): Tensor {
    const { enter, gather } = this.#ends;
    const y = this.#product(enter === undefined ? x : enter(x));
    return gather === undefined ? y : gather(y);
  }

  #product(x: Tensor): Tensor {
    const { weight, bias } = this;
    const { leave, share } = this.#ends;
    if (leave !== undefined) {
      const sum = leave(applyOne(linearOp, [x, weight], this.layout));
      return bias === undefined ? sum : sum.add(share === undefined ? bias : share(bias));
    }
    return applyOne(linearOp, bias === undefined ? [x, weight] : [x, weight, bias], this.layout);
  }

  /** The dim of the weight that counts outputs. */
  get outDim(): 0 | 1 {
    return this.layout === "outIn" ? 0 : 1;
  }

  /**
   * Lets an adapter change the layer's output.
   *
   * @throws {ArgumentError} if the layer has one
   * @internal
   */
  override attachAdapter(adapter: LinearAdapter): HookHandle {
    const detach = super.attachAdapter(adapter);
    this.#factors = adapter;
    return () => {
      detach();
      this.#factors = undefined;
    };
  }

  /** The adapter that changes the layer's output; undefined if there is none. @internal */
  get adapter(): LinearAdapter | undefined {
    return this.#factors;
  }

  /** Has input and product pass through functions. Used by tensor parallelism. @returns ends that */
  setEnds(ends: LinearEnds): HookHandle {
    this.#ends = ends;
    return () => void (this.#ends = {});
  }
}

/**
 * Experts: gated feed-forward layers side by side. A router gives each token to some of them.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Device } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import {
  type ClampedSwigluAttrs,
  clampedSwigluOp,
  combineOp,
  dispatchOp,
  groupedLinearOp,
  sortPairsOp,
} from "../ops/experts.ts";
import type { WeightLayout } from "../ops/matmul.ts";
import { apply, applyOne } from "../tensor/apply.ts";
import { type Init, Parameter } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { type Activation, gate } from "./feed_forward.ts";
import { type HookHandle, Module } from "./module.ts";
import type { Routing } from "./router.ts";

/** Sizes and options of experts. */
export interface ExpertsOptions {
  readonly hiddenSize: number;
  readonly numExperts: number;
  /** Width of one. */
  readonly intermediateSize: number;
  /** The activation where all gates precede all ups, or the clamping of interleaved gates and ups. */
  readonly activation: Activation | ClampedSwigluAttrs;
  /** Initialization of weights; biases are zeros. */
  readonly init: Init;
  /** Layout of the weights. @default `outIn` */
  readonly layout?: WeightLayout;
  /** True if projections have biases. @default false */
  readonly bias?: boolean;
}

/**
 * Computes with experts of which some are on other ranks.
 *
 * @param rows rows [pairs, hiddenSize], by expert
 * @param ends ends of the rows of each expert of all ranks, int32 [experts]
 * @param compute the layer with this rank's experts, of rows and the ends of these experts' rows
 * @returns the outputs of `rows`, in their order
 */
export type ExpertExchange = (
  rows: Tensor,
  ends: Tensor,
  compute: (rows: Tensor, ends: Tensor) => Tensor,
) => Tensor;

/** `downProj(activation(gate) * up)` of `[gate, up] = gateUpProj(x)`, by the weights of the experts that x goes to. */
export class Experts extends Module<[x: Tensor, routing: Routing], Tensor> {
  /** [numExperts, 2 * intermediateSize, hiddenSize], or [numExperts, hiddenSize, 2 * intermediateSize]. */
  readonly gateUpProj: Parameter;
  /** [numExperts, 2 * intermediateSize], if there is one. */
  readonly gateUpProjBias: Parameter | undefined;
  /** [numExperts, hiddenSize, intermediateSize], or [numExperts, intermediateSize, hiddenSize]. */
  readonly downProj: Parameter;
  /** [numExperts, hiddenSize], if there is one. */
  readonly downProjBias: Parameter | undefined;
  readonly #options: ExpertsOptions;
  #shareOfBias: ((bias: Tensor) => Tensor) | undefined;
  #exchanges: readonly ExpertExchange[] = [];

  /** Makes the parameters, without memory. */
  constructor(device: Device, options: ExpertsOptions) {
    super();
    const { numExperts, hiddenSize, intermediateSize, init, layout = "outIn", bias = false } = options;
    const weight = (out: number, width: number): Parameter =>
      new Parameter(device, [numExperts, ...layout === "outIn" ? [out, width] : [width, out]], { init });
    const offset = (out: number): Parameter | undefined => bias ? new Parameter(device, [numExperts, out]) : undefined;
    this.gateUpProj = weight(2 * intermediateSize, hiddenSize);
    this.gateUpProjBias = offset(2 * intermediateSize);
    this.downProj = weight(hiddenSize, intermediateSize);
    this.downProjBias = offset(hiddenSize);
    this.#options = options;
  }

  /** x [rows, hiddenSize] → the same shape */
  forward(x: Tensor, { experts, weights }: Routing): Tensor {
    const { numExperts } = this.#options;
    const sorted = apply(sortPairsOp, [experts], { numExperts });
    const [places, ends] = [at(sorted, 0, "output"), at(sorted, 1, "output")];
    const rows = applyOne(dispatchOp, [x, places], undefined);
    const compute = this.#exchanges.reduceRight<Parameters<ExpertExchange>[2]>(
      (inner, exchange) => (rows, ends) => exchange(rows, ends, inner),
      (rows, ends) => this.#layers(rows, ends),
    );
    return applyOne(combineOp, [compute(rows, ends), places, weights.to(float32)], undefined);
  }

  /** The options that it was made with. */
  get options(): ExpertsOptions {
    return this.#options;
  }

  /** Has the last bias pass through a function, as where each rank adds a share of it. Used by tensor parallelism. @returns ends that */
  shareBias(share: (bias: Tensor) => Tensor): HookHandle {
    this.#shareOfBias = share;
    return () => void (this.#shareOfBias = undefined);
  }

  /** Groups of ranks that divide its experts, one inside of the other. */
  get exchanges(): number {
    return this.#exchanges.length;
  }

  /**
   * Divides the experts that earlier exchanges left to this rank over more ranks, and computes with all of them. Used by expert parallelism.
   *
   * @returns ends that
   */
  addExchange(exchange: ExpertExchange): HookHandle {
    this.#exchanges = [...this.#exchanges, exchange];
    return () => void (this.#exchanges = this.#exchanges.filter((one) => one !== exchange));
  }

  /** rows [pairs, hiddenSize], by expert → the same shape */
  #layers(rows: Tensor, ends: Tensor): Tensor {
    const { layout = "outIn" } = this.#options;
    const linear = (rows: Tensor, weight: Parameter, bias: Tensor | undefined): Tensor =>
      applyOne(groupedLinearOp, bias === undefined ? [rows, weight, ends] : [rows, weight, ends, bias], layout);
    const [share, bias] = [this.#shareOfBias, this.downProjBias];
    const added = bias === undefined || share === undefined ? bias : share(bias);
    return linear(this.#gated(linear(rows, this.gateUpProj, this.gateUpProjBias)), this.downProj, added);
  }

  #gated(gateUp: Tensor): Tensor {
    const { activation } = this.#options;
    if (typeof activation !== "string") return applyOne(clampedSwigluOp, [gateUp], activation);
    const parts = gateUp.chunk(2, -1);
    return gate(activation, at(parts, 0, "part"), at(parts, 1, "part"));
  }
}

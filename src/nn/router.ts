/**
 * Routers of mixtures of experts, and the loss that keeps them balanced.
 *
 * @module
 */
import { at } from "../at.ts";
import { noGrad } from "../autograd/mode.ts";
import type { Device } from "../device/device.ts";
import { float32 } from "../dtype.ts";
import { linearOp } from "../ops/matmul.ts";
import { type RouteAttrs, routeOp } from "../ops/router.ts";
import { threeSizes, twoSizes } from "../shape.ts";
import { apply, applyOne } from "../tensor/apply.ts";
import { BufferTensor } from "../tensor/buffer_tensor.ts";
import { ones, zeros } from "../tensor/create.ts";
import { type Init, Parameter } from "../tensor/parameter.ts";
import { scope } from "../tensor/scope.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { type RandomContext, sampleUniform, streamOf } from "./dropout.ts";
import { Module } from "./module.ts";

/** The experts of each token. */
export interface Routing {
  /** Weights of the experts' outputs, float32 [rows, topK]. */
  readonly weights: Tensor;
  /** Numbers of experts, int32 [rows, topK]. */
  readonly experts: Tensor;
}

/** Sizes and options of a router; see {@link RouteAttrs}. */
export interface RouterOptions {
  readonly hiddenSize: number;
  readonly numExperts: number;
  /** Experts of each token. */
  readonly topK: number;
  /** Initialization of the weight; a bias is zeros. */
  readonly init: Init;
  /** Scores of the logits. @default `softmax` */
  readonly scoring?: RouteAttrs["scoring"];
  /** True if the weights of a token are divided by their sum. @default false */
  readonly normalize?: boolean;
  /** Factor of the weights. @default 1 */
  readonly scale?: number;
  /** Only experts of some groups are candidates. @default all are */
  readonly groups?: Pick<RouteAttrs, "groups" | "topGroups" | "groupBest"> | undefined;
  /** Largest distance of an expert from the best, for `sparseMixer`. @default 0 */
  readonly jitter?: number;
  /** True if logits have a bias. @default false */
  readonly bias?: boolean;
  /**
   * True if a buffer `e_score_correction_bias` is added to scores for the choice of experts, but not to weights. @default false
   */
  readonly correctionBias?: boolean;
  /** True if logits are computed in float32 in all precisions. @default false */
  readonly float32Logits?: boolean;
}

const UNGROUPED = { groups: 1, topGroups: 1, groupBest: 1 } as const;

/** Chooses experts for each token by a linear layer's scores. */
export class Router extends Module<[x: Tensor, noise?: Tensor], Routing & { readonly logits: Tensor }> {
  /** [numExperts, hiddenSize] */
  readonly weight: Parameter;
  /** [numExperts], if there is one. */
  readonly bias: Parameter | undefined;
  /** [numExperts], if there is one. */
  readonly eScoreCorrectionBias: BufferTensor | undefined;
  readonly #attrs: RouteAttrs;
  /** True if logits are computed in float32 in all precisions. */
  readonly float32Logits: boolean;

  /** Makes the parameters, without memory. */
  constructor(device: Device, options: RouterOptions) {
    super();
    const { numExperts, hiddenSize, topK, init, groups = UNGROUPED } = options;
    const { scoring = "softmax", normalize = false, scale = 1, jitter = 0 } = options;
    this.weight = new Parameter(device, [numExperts, hiddenSize], { init });
    this.bias = options.bias ?? false ? new Parameter(device, [numExperts]) : undefined;
    this.eScoreCorrectionBias = options.correctionBias ?? false ? new BufferTensor(device, [numExperts]) : undefined;
    this.#attrs = { topK, scoring, normalize, scale, jitter, ...groups };
    this.float32Logits = options.float32Logits ?? false;
  }

  /** Numbers in (0, 1) by which `sparseMixer` draws experts for hidden states [batch, seq, hiddenSize]; others draw none. */
  drawNoise({ device, shape }: Tensor, context: RandomContext | undefined): Tensor | undefined {
    const { scoring, topK } = this.#attrs;
    if (scoring !== "sparseMixer") return undefined;
    const [batch, seq] = threeSizes("routing noise", shape);
    const numExperts = at(this.weight.shape, 0, "dim");
    const stream = streamOf(this, "routing noise", context);
    const noise = sampleUniform(device, [batch, seq, topK * 2 * numExperts], stream, [0, 1]);
    return noise.reshape([batch * seq, topK, 2, numExperts]);
  }

  /**
   * x [rows, hiddenSize]; logits are [rows, numExperts]
   *
   * @param noise from {@link drawNoise}: experts are drawn by it, and not just the best ones taken
   */
  forward(x: Tensor, noise?: Tensor): Routing & { readonly logits: Tensor } {
    const wide = (tensor: Tensor): Tensor => this.float32Logits ? tensor.to(float32) : tensor;
    const inputs = [x, this.weight, this.bias].filter((tensor) => tensor !== undefined).map(wide);
    const logits = applyOne(linearOp, inputs, "outIn");
    const given = [logits, noise ?? this.eScoreCorrectionBias].filter((tensor) => tensor !== undefined);
    const routed = apply(routeOp, given, { ...this.#attrs, sampled: noise !== undefined });
    return { logits, weights: at(routed, 0, "output"), experts: at(routed, 1, "output") };
  }
}

/**
 * The loss that is least when all experts are given as much (Shazeer et al. 2017; Fedus et al. 2022): the number of experts times
 * the sum over experts of the share of tokens that have it among their `topK` best, times its mean probability. A float32 scalar.
 *
 * @param layers logits of the routers, [rows, experts] each
 * @param mask uint8, one for each row: 0 leaves the row out. @default all count
 */
export function loadBalancingLoss(layers: readonly Tensor[], topK: number, mask?: Tensor): Tensor {
  const { device, shape } = at(layers, 0, "router");
  const [rows, experts] = twoSizes("load balancing", shape, "logits must be [rows, experts]");
  using frame = scope();
  const counted = (mask === undefined ? ones(device, [rows]) : mask.to(float32)).reshape([rows, 1]);
  let [picks, shares] = [zeros(device, [experts]), zeros(device, [experts])];
  const pairs = counted.expand([rows, topK]).reshape([rows * topK]);
  const attrs = { topK, scoring: "softmax", normalize: false, scale: 1, jitter: 0, ...UNGROUPED } as const;
  for (const logits of layers) {
    const chosen = noGrad(() => at(apply(routeOp, [logits], attrs), 1, "output"));
    picks = picks.scatterAdd(0, chosen.reshape([rows * topK]), pairs);
    shares = shares.add(logits.to(float32).softmax().mul(counted).sum(0));
  }
  const all = counted.sum().mul(layers.length);
  const loss = picks.div(all).mul(shares.div(all)).sum().mul(experts);
  frame.keep(loss);
  return loss;
}

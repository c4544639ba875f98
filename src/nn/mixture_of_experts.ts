/**
 * A mixture of experts in the place of a feed-forward layer.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Device } from "../device/device.ts";
import type { Tensor } from "../tensor/tensor.ts";
import { type RandomContext, sampleUniform, streamOf } from "./dropout.ts";
import { Experts, type ExpertsOptions } from "./experts.ts";
import { type FeedForwardOptions, GatedFeedForward } from "./feed_forward.ts";
import { Linear } from "./linear.ts";
import type { FeedForwardOutput } from "./pre_norm_block.ts";
import { type FieldNames, RenamedModule } from "./renamed.ts";
import { Router, type RouterOptions } from "./router.ts";

/** Options of a mixture: a router, experts, and perhaps an expert for all tokens. */
export interface MixtureOptions extends ExpertsOptions {
  readonly router: Omit<RouterOptions, "hiddenSize" | "numExperts" | "init">;
  /** An expert for all tokens; if it is gated, the sigmoid of a separate layer is its weight. @default none */
  readonly shared?: Omit<FeedForwardOptions, "hiddenSize" | "init"> & { readonly gated: boolean };
  /**
   * Noises by which hidden states are multiplied in training, in turn: random numbers in (1 - noise, 1 + noise). @default none
   */
  readonly jitters?: readonly number[];
  /** True if the mixture returns the router's logits, for the balancing loss. @default false */
  readonly outputRouterLogits?: boolean;
  /** Names of the fields in FQNs. */
  readonly names?: FieldNames;
}

/** Each token through some of many experts (Shazeer et al. 2017). */
export class MixtureOfExperts extends RenamedModule<[x: Tensor, context?: RandomContext], FeedForwardOutput> {
  readonly gate: Router;
  readonly experts: Experts;
  readonly sharedExpert: GatedFeedForward | undefined;
  readonly sharedExpertGate: Linear | undefined;
  readonly #outputRouterLogits: boolean;
  readonly #jitters: readonly number[];

  /** Makes the parts, without memory. */
  constructor(device: Device, options: MixtureOptions) {
    super(options.names);
    const { hiddenSize, numExperts, init, shared } = options;
    this.gate = new Router(device, { ...options.router, hiddenSize, numExperts, init });
    this.experts = new Experts(device, options);
    if (shared !== undefined) {
      this.sharedExpert = new GatedFeedForward(device, { ...shared, hiddenSize, init });
      if (shared.gated) this.sharedExpertGate = new Linear(device, hiddenSize, 1, { bias: false, init });
    }
    this.#outputRouterLogits = options.outputRouterLogits ?? false;
    this.#jitters = (options.jitters ?? []).filter((noise) => noise > 0);
  }

  /** True if the mixture returns the router's logits. */
  get givesRouterLogits(): boolean {
    return this.#outputRouterLogits;
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, context?: RandomContext): FeedForwardOutput {
    const jittered = this.#jittered(x, context);
    const rows = jittered.reshape([-1, at(x.shape, 2, "dim")]);
    const noise = this.training ? this.gate.drawNoise(x, context) : undefined;
    const { logits, ...routing } = this.gate.call(rows, noise);
    const routed = this.experts.call(rows, routing);
    const shared = this.#shared(jittered, context)?.reshape(rows.shape);
    const hidden = (shared === undefined ? routed : routed.add(shared)).reshape(x.shape);
    return this.#outputRouterLogits ? { hidden, routerLogits: logits } : hidden;
  }

  #jittered(x: Tensor, context: RandomContext | undefined): Tensor {
    if (!this.training) return x;
    const [batch, seq, width] = [at(x.shape, 0, "dim"), at(x.shape, 1, "dim"), at(x.shape, 2, "dim")];
    return this.#jitters.reduce((x, noise, i) => {
      const stream = streamOf(this, `input jitter ${i}`, context);
      return x.mul(sampleUniform(x.device, [batch, seq, width], stream, [1 - noise, 1 + noise]).to(x.dtype));
    }, x);
  }

  /** The output of the expert that all tokens go to, [batch, seq, hidden]. */
  #shared(x: Tensor, context: RandomContext | undefined): Tensor | undefined {
    const output = this.sharedExpert?.call(x, context);
    return this.sharedExpertGate === undefined ? output : output?.mul(this.sharedExpertGate.call(x, context).sigmoid());
  }
}

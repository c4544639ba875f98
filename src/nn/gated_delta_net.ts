/**
 * The layer of the gated delta rule (Gated DeltaNet, Yang et al. 2024), as the Qwen families have it: a short convolution, the
 * rule over heads of normalized queries and keys, and a gated norm.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Device } from "../device/device.ts";
import { requireKernels } from "../device/kernels/required.ts";
import { float32 } from "../dtype.ts";
import { rmsNormOp } from "../ops/norm.ts";
import { applyOne } from "../tensor/apply.ts";
import { type Init, Parameter } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";
import type { LayerContext } from "./attention.ts";
import { CacheSlot, RecurrentState } from "./cache.ts";
import { CausalConv } from "./causal_conv.ts";
import { activate, type Activation } from "./feed_forward.ts";
import { cat, gatedDeltaRule } from "./functional.ts";
import { Linear } from "./linear.ts";
import type { HookHandle } from "./module.ts";
import { GatedRMSNorm } from "./norm.ts";
import { withoutPadding } from "./padding.ts";
import { RenamedModule } from "./renamed.ts";

/** Added to the sum of squares of a query or key. */
const L2_EPS = 1e-6;

/** Sizes and options of the layer. */
export interface GatedDeltaNetOptions {
  readonly hiddenSize: number;
  /** Heads of queries and keys: a divisor of `valueHeads`. */
  readonly keyHeads: number;
  readonly valueHeads: number;
  readonly keyDim: number;
  readonly valueDim: number;
  /** Tokens that each one sees in the convolution, itself included. */
  readonly convWidth: number;
  /** Behind the convolution. */
  readonly activation: Activation;
  /** Epsilon of the gated norm. */
  readonly eps: number;
  /** Initialization of weights. */
  readonly init: Init;
  /**
   * The projections. `separate`: of queries, keys and values together, of gates, of betas and of decays. `grouped`: two, whose
   * rows are grouped by key heads, one of queries, keys, values and gates, and one of betas and decays. @default separate
   */
  readonly projections?: "separate" | "grouped";
}

/** Output of the projections: queries, keys and values joined; gates; a beta and a decay for each head. */
type Projected = readonly [mixed: Tensor, gate: Tensor, beta: Tensor, decay: Tensor];

/** Gated DeltaNet. */
export class GatedDeltaNet extends RenamedModule<[x: Tensor, context: LayerContext], Tensor> {
  readonly conv1d: CausalConv;
  readonly dtBias: Parameter;
  readonly aLog: Parameter;
  readonly norm: GatedRMSNorm;
  readonly outProj: Linear;
  readonly inProjQkv: Linear | undefined;
  readonly inProjZ: Linear | undefined;
  readonly inProjB: Linear | undefined;
  readonly inProjA: Linear | undefined;
  readonly inProjQkvz: Linear | undefined;
  readonly inProjBa: Linear | undefined;
  readonly #options: GatedDeltaNetOptions;
  readonly #project: (x: Tensor, context: LayerContext) => Projected;
  readonly #past = new CacheSlot((cache) => new RecurrentState(cache));
  #rule: typeof gatedDeltaRule = gatedDeltaRule;

  /** Makes the parameters, without memory. */
  constructor(device: Device, options: GatedDeltaNetOptions) {
    super({ aLog: "A_log" });
    requireKernels(device, "a layer of the gated delta rule", ["gatedDelta", "gatedDeltaBackward"]);
    const { hiddenSize, keyHeads, valueHeads, keyDim, valueDim, convWidth, eps, init } = options;
    const [keys, values] = [keyHeads * keyDim, valueHeads * valueDim];
    const projection = (width: number): Linear => new Linear(device, hiddenSize, width, { bias: false, init });
    this.conv1d = new CausalConv(device, 2 * keys + values, { width: convWidth, init, bias: false });
    this.dtBias = new Parameter(device, [valueHeads], { init: { kind: "constant", value: 1 } });
    this.aLog = new Parameter(device, [valueHeads], { init: { kind: "logUniform", low: 0.01, high: 16 } });
    this.norm = new GatedRMSNorm(device, valueDim, eps);
    this.outProj = new Linear(device, values, hiddenSize, { bias: false, init });
    if (options.projections === "grouped") {
      const [qkvz, ba] = [projection(2 * keys + 2 * values), projection(2 * valueHeads)];
      [this.inProjQkvz, this.inProjBa] = [qkvz, ba];
      const group = valueHeads / keyHeads;
      this.#project = (x, context) => {
        const own = group * valueDim;
        const parts = ungroup(qkvz.call(x, context), keyHeads, [keyDim, keyDim, own, own]);
        const rates = ungroup(ba.call(x, context), keyHeads, [group, group]);
        return [cat(parts.slice(0, 3), -1), at(parts, 3, "part"), at(rates, 0, "part"), at(rates, 1, "part")];
      };
    } else {
      const [qkv, z, b, a] = [
        projection(2 * keys + values),
        projection(values),
        projection(valueHeads),
        projection(valueHeads),
      ];
      [this.inProjQkv, this.inProjZ, this.inProjB, this.inProjA] = [qkv, z, b, a];
      this.#project = (
        x,
        context,
      ) => [qkv.call(x, context), z.call(x, context), b.call(x, context), a.call(x, context)];
    }
    this.#options = options;
  }

  /** x [batch, seq, hidden] → the same shape */
  forward(x: Tensor, context: LayerContext): Tensor {
    const { keyHeads, valueHeads, keyDim, valueDim, activation } = this.#options;
    const [batch, seq] = [at(x.shape, 0, "dim"), at(x.shape, 1, "dim")];
    const [mixed, gate, beta, decay] = this.#project(withoutPadding(x, context), context);
    const [keys, values] = [keyHeads * keyDim, valueHeads * valueDim];
    const parts = activate(activation, this.conv1d.call(mixed, context)).split([keys, keys, values], -1);
    const [q, k, v] = [at(parts, 0, "part"), at(parts, 1, "part"), at(parts, 2, "part")];
    // In float32: a decay near 1 is taken to high powers.
    const step = decay.to(float32).add(this.dtBias.to(float32)).softplus();
    const g = step.mul(this.aLog.to(float32).exp().neg());
    const { pastKeyValues, documentStarts } = context;
    const state = pastKeyValues && this.#past.of(pastKeyValues).of(x, [batch, valueHeads, keyDim, valueDim]);
    // Divided by √keyDim, a row whose root mean square is 1 has length 1; queries are divided by it once more.
    const attrs = { keyHeads, valueHeads, scale: 1 / keyDim, state };
    const unit = this.#normed(k).mul(1 / Math.sqrt(keyDim));
    // A state holds all heads.
    const rule = state === undefined ? this.#rule : gatedDeltaRule;
    const read = rule(this.#normed(q), unit, v, g, beta.sigmoid(), attrs, documentStarts);
    const heads = [batch, seq, valueHeads, valueDim];
    const normed = this.norm.call(read.reshape(heads), gate.reshape(heads)).reshape([batch, seq, values]);
    return this.outProj.call(normed, context);
  }

  /** Has `rule` compute calls without a cache. Used by context parallelism. @returns ends it */
  setRule(rule: typeof gatedDeltaRule): HookHandle {
    this.#rule = rule;
    return () => void (this.#rule = gatedDeltaRule);
  }

  /** The options that it was made with. */
  get options(): GatedDeltaNetOptions {
    return this.#options;
  }

  /** Each head of queries or keys over its root mean square. */
  #normed(x: Tensor): Tensor {
    const { keyDim } = this.#options;
    const attrs = { eps: L2_EPS / keyDim, zeroCentered: false };
    const rows = x.reshape([at(x.shape, 0, "dim"), at(x.shape, 1, "dim"), -1, keyDim]);
    return applyOne(rmsNormOp, [rows], attrs).reshape(x.shape);
  }
}

/** The parts of rows that hold some of each part a group, each part of all groups together. */
function ungroup(x: Tensor, groups: number, sizes: readonly number[]): readonly Tensor[] {
  const [batch, seq] = [at(x.shape, 0, "dim"), at(x.shape, 1, "dim")];
  return x.reshape([batch, seq, groups, -1]).split(sizes, -1).map((part) => part.reshape([batch, seq, -1]));
}

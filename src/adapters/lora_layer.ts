/**
 * LoRA (Hu et al. 2021; PEFT `tuners/lora/layer.py`) at one layer: a product of two narrow matrices beside its weight.
 *
 * @module
 */
import { at } from "../at.ts";
import type { Device } from "../device/device.ts";
import { Dropout, dropOut, type RandomContext } from "../nn/dropout.ts";
import type { Embedding } from "../nn/embedding.ts";
import { Linear, type LinearAdapter } from "../nn/linear.ts";
import type { ModuleAdapter, ModuleMember } from "../nn/module.ts";
import { embeddingOp } from "../ops/embedding.ts";
import { applyOne } from "../tensor/apply.ts";
import { type Init, Parameter } from "../tensor/parameter.ts";
import type { Tensor } from "../tensor/tensor.ts";

/** Options of one layer's adapter. */
export interface LoraLayerOptions {
  /** Rank of the product. */
  readonly r: number;
  /** Factor on the product. */
  readonly scale: number;
  /** Probability that an element of the adapter's input becomes zero in training. */
  readonly dropout: number;
  /** The values that the first factor begins with: Kaiming uniform with a = √5, or normal with a deviation of 1 / r. */
  readonly init: "kaiming" | "gaussian";
}

/** The factors of a layer's update of its weight. */
export interface LoraFactors {
  /** [r, in] */
  readonly a: Parameter;
  /** [out, r] */
  readonly b: Parameter;
  /** Factor on the product. */
  readonly scale: number;
}

/** An adapter of one layer. */
export type LoraLayer = LinearLora | EmbeddingLora;

/** `y + scale · B A dropout(x)` beside `y = W x + b`. */
export class LinearLora implements LinearAdapter {
  /** The layer that it is beside. */
  readonly layer: Linear;
  /** Weight [r, in]. */
  readonly loraA: Linear;
  /** Weight [out, r]. */
  readonly loraB: Linear;
  /** Of the adapter's input, if there is one. */
  readonly loraDropout: Dropout | undefined;
  /** Rank of the product. */
  readonly r: number;
  /** Factor on the product. */
  readonly scale: number;
  /** False while forwards leave the adapter out: see `Lora.disable`. */
  isEnabled = true;

  /** Makes the factors, without memory. */
  constructor(layer: Linear, { r, scale, dropout, init }: LoraLayerOptions) {
    const { weight: { device, shape }, layout } = layer;
    const [first, second] = [at(shape, 0, "dim"), at(shape, 1, "dim")];
    const [outFeatures, inFeatures] = layout === "outIn" ? [first, second] : [second, first];
    this.layer = layer;
    // A linear layer's own first values are Kaiming's uniform ones with a = √5.
    const gaussian: Init = { kind: "normal", mean: 0, std: 1 / r };
    this.loraA = new Linear(
      device,
      inFeatures,
      r,
      init === "kaiming" ? { bias: false } : { bias: false, init: gaussian },
    );
    this.loraB = new Linear(device, r, outFeatures, { bias: false, init: { kind: "constant", value: 0 } });
    this.loraDropout = dropout === 0 ? undefined : new Dropout(dropout);
    this.r = r;
    this.scale = scale;
  }

  /** The two factors. */
  get factors(): LoraFactors {
    return { a: this.loraA.weight, b: this.loraB.weight, scale: this.scale };
  }

  /** The parameters by their names below the layer. */
  *children(): Generator<readonly [name: string, child: ModuleMember]> {
    yield ["lora_A", this.loraA];
    yield ["lora_B", this.loraB];
    if (this.loraDropout !== undefined) yield ["lora_dropout", this.loraDropout];
  }

  /** output [.., out], x [.., in] → [.., out] */
  adapt(output: Tensor, [x, context]: readonly [x: Tensor, context?: RandomContext]): Tensor {
    if (!this.isEnabled) return output;
    // The narrow rows are scaled, as they are fewest.
    const narrow = this.loraA.call(dropOut(this.loraDropout, x, context));
    return output.add(this.loraB.call(this.scale === 1 ? narrow : narrow.mul(this.scale)));
  }
}

/** `y + scale · (B A)ᵀ` of the rows that ids look up, beside a table. */
export class EmbeddingLora implements ModuleAdapter<[ids: Tensor], Tensor> {
  /** The table that it is beside. */
  readonly layer: Embedding;
  /** [r, vocab]; begins as zeros. */
  readonly loraEmbeddingA: Parameter;
  /** [width, r]; begins standard normal. */
  readonly loraEmbeddingB: Parameter;
  /** Rank of the product. */
  readonly r: number;
  /** Factor on the product. */
  readonly scale: number;
  /** False while forwards leave the adapter out: see `Lora.disable`. */
  isEnabled = true;

  /** Makes the factors, without memory. */
  constructor(layer: Embedding, { r, scale }: Pick<LoraLayerOptions, "r" | "scale">) {
    const { device, shape }: { readonly device: Device; readonly shape: readonly number[] } = layer.weight;
    const [vocab, width] = [at(shape, 0, "dim"), at(shape, 1, "dim")];
    this.layer = layer;
    this.loraEmbeddingA = new Parameter(device, [r, vocab]);
    this.loraEmbeddingB = new Parameter(device, [width, r], { init: { kind: "normal", mean: 0, std: 1 } });
    this.r = r;
    this.scale = scale;
  }

  /** The two factors. */
  get factors(): LoraFactors {
    return { a: this.loraEmbeddingA, b: this.loraEmbeddingB, scale: this.scale };
  }

  /** The parameters by their names below the layer. */
  *children(): Generator<readonly [name: string, child: ModuleMember]> {
    yield ["lora_embedding_A", this.loraEmbeddingA];
    yield ["lora_embedding_B", this.loraEmbeddingB];
  }

  /** output [.., width], ids int32 [..] → [.., width] */
  adapt(output: Tensor, [ids]: readonly [ids: Tensor]): Tensor {
    if (!this.isEnabled) return output;
    const narrow = applyOne(embeddingOp, [this.loraEmbeddingA.transpose(0, 1), ids], { paddingIdx: -1 });
    return output.add(narrow.mul(this.scale).matmul(this.loraEmbeddingB.transpose(0, 1)));
  }
}

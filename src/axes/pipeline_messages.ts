/**
 * Messages between stages of a pipeline: what blocks hand on, and its gradients. Both ranks know shapes and dtypes from the model and
 * the rows, so no message says them.
 *
 * @module
 */
import { at } from "../at.ts";
import { type DType, float32, uint8 } from "../dtype.ts";
import { ArgumentError, InternalError } from "../errors.ts";
import type { CausalLm } from "../models/causal_lm.ts";
import { Embedding } from "../nn/embedding.ts";
import { LatentAttention } from "../nn/latent_attention.ts";
import { MixtureOfExperts } from "../nn/mixture_of_experts.ts";
import type { Module } from "../nn/module.ts";
import type { Carried } from "../nn/section.ts";
import type { ComputeOp, OutputSpec, ViewOp } from "../ops/op.ts";
import { sameShape } from "../shape.ts";
import { applyOne, applyView } from "../tensor/apply.ts";
import { GradientSlot } from "../tensor/gradient_slot.ts";
import type { Tensor } from "../tensor/tensor.ts";

/** Sizes of rows that go through stages. */
export interface RowSizes {
  readonly batch: number;
  /** Positions that are computed. */
  readonly seq: number;
  /** Positions before them, whose keys and values a cache has. @default 0 */
  readonly past?: number;
}

/**
 * Shapes and dtypes of what a model's blocks before `end` hand on.
 *
 * @param dtype of hidden states
 */
export function carriedSpecs(
  model: CausalLm,
  end: number,
  { batch, seq, past = 0 }: RowSizes,
  dtype: DType,
): readonly OutputSpec[] {
  const table = model.parts.embeddings.find((module) => module instanceof Embedding);
  if (table === undefined) throw new InternalError("a model without a table of embeddings");
  const below = modulesOf(model.layers.slice(0, end));
  const routers = below.flatMap((module) =>
    module instanceof MixtureOfExperts && module.givesRouterLogits ? [module.gate] : []
  );
  const selects = below.some((module) => {
    const { keySelection } = module instanceof LatentAttention ? module.options : {};
    return keySelection?.type === "indexer" && keySelection.isShared;
  });
  return [
    { shape: [batch, seq, at(table.weight.globalShape, 1, "dim")], dtype },
    ...routers.map(({ weight, float32Logits }) => (
      { shape: [batch * seq, at(weight.globalShape, 0, "dim")], dtype: float32Logits ? float32 : dtype }
    )),
    ...selects ? [{ shape: [batch, seq, past + seq], dtype: uint8 }] : [],
  ];
}

function modulesOf(blocks: readonly Module[]): readonly Module[] {
  return blocks.flatMap((block) => [...block.namedModules()].map(([, module]) => module));
}

/** Tensors in the order of {@link carriedSpecs}. */
export function tensorsOf({ hidden, routerLogits, selectedKeys }: Carried): readonly Tensor[] {
  return [hidden, ...routerLogits, ...selectedKeys === undefined ? [] : [selectedKeys]];
}

/** Tensors in the order of {@link carriedSpecs} as what blocks hand on. */
export function carriedFrom(tensors: readonly Tensor[]): Carried {
  const [hidden, ...others] = tensors;
  if (hidden === undefined) throw new InternalError("a message without hidden states");
  return {
    hidden,
    routerLogits: others.filter(({ dtype }) => dtype.kind === "float"),
    selectedKeys: others.find(({ dtype }) => dtype.kind !== "float"),
  };
}

/**
 * Refuses what blocks have handed on otherwise than the rank of the next stage expects.
 *
 * @throws {ArgumentError} with both lists
 */
export function requireCarried(tensors: readonly Tensor[], specs: readonly OutputSpec[], stage: number): void {
  const fits = tensors.length === specs.length && tensors.every(({ shape, dtype }, i) => {
    const spec = at(specs, i, "spec");
    return dtype === spec.dtype && sameShape(shape, spec.shape);
  });
  if (fits) return;
  const textOf = (list: readonly OutputSpec[]): string =>
    list.map(({ shape, dtype }) => `${dtype.name} [${shape.join(", ")}]`).join(", ");
  throw new ArgumentError(
    `Cannot send what stage ${stage} gives: the next stage expects ${textOf(specs)}, got ${textOf(tensors)}; give ` +
      "parallelizePipeline the dtype in which blocks compute, and leave sequence parallelism out",
  );
}

const arriveOp: ViewOp<undefined> = {
  name: "arrive",
  view: ({ layout }) => layout,
  backward: (call) => call.give(0, call.grad(0)),
};

/** A tensor of the stage before, and the gradient that goes back to it. */
export interface Arrived {
  /** The tensor as the stage computes with it, in the current scope. */
  readonly tensor: Tensor;
  /** Receives its gradient; undefined where none flows back. */
  readonly slot: GradientSlot | undefined;
}

/** Lets gradients of what has arrived be collected. @param hasGradient false if the stages before train nothing */
export function arrive(tensor: Tensor, hasGradient: boolean): Arrived {
  if (!hasGradient || tensor.dtype.kind !== "float") return { tensor: tensor.detach(), slot: undefined };
  const slot = new GradientSlot();
  const leaf = tensor.detach();
  leaf.setEdge({ node: undefined, index: 0, sink: slot, shape: tensor.shape, dtype: tensor.dtype });
  // Behind an operation it is no leaf, so that a unit of parameters learns when the backward leaves it.
  return { tensor: applyView(arriveOp, leaf, undefined), slot };
}

/** Gradients of what was sent, which come back from the next stage before the backward. */
export interface Departed {
  /** One for each tensor that has left; set before the backward. */
  gradients: readonly Tensor[];
}

const departOp: ComputeOp<Departed> = {
  name: "depart",
  infer: () => [{ shape: [], dtype: float32 }],
  forward(call) {
    const { device, ptr } = call.output(0);
    device.kernels.fill({ dtype: float32, n: 1, value: 0, dst: ptr });
  },
  backward(call) {
    for (const [i, gradient] of call.attrs.gradients.entries()) call.give(i, gradient);
  },
};

/** A scalar from which a backward gives tensors that were sent the gradients that have come back. */
export function depart(tensors: readonly Tensor[], departed: Departed): Tensor {
  return applyOne(departOp, tensors, departed);
}

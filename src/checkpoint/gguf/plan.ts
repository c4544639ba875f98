/**
 * The plan of a family's GGUF file: metadata, and the elements of parameters that each tensor has.
 *
 * @module
 */
import type { Shape } from "../../shape.ts";
import type { GgufMetadata } from "./format.ts";

/** Elements of a parameter, from `start` on. */
export interface ElementRun {
  readonly start: number;
  readonly length: number;
}

/** The source of a tensor's values. */
export type TensorSource =
  /** Ranges of a parameter's elements, each of full rows, one after the other; `plus` is added to each value, by default 0. */
  | {
    readonly kind: "runs";
    readonly fqn: string;
    readonly runs: () => Iterable<ElementRun>;
    readonly plus?: number;
  }
  /** A parameter of two dims, transposed. */
  | { readonly kind: "transposed"; readonly fqn: string }
  /** Values that follow from the config. */
  | { readonly kind: "values"; readonly values: readonly number[] };

/** A tensor of a GGUF file. */
export interface PlannedTensor {
  readonly name: string;
  /** Outermost dim first. */
  readonly shape: Shape;
  /** True if it is written in float32 whatever dtype was asked for, because ggml computes with it in float32. */
  readonly exact: boolean;
  readonly source: TensorSource;
}

/** All that a file has besides tokenizer and names. */
export interface GgufPlan {
  /** llama.cpp's name of the architecture. */
  readonly architecture: string;
  /** The keys of the architecture. */
  readonly metadata: GgufMetadata;
  readonly tensors: readonly PlannedTensor[];
  /** Remarks for the user, for example beyond which length llama.cpp computes otherwise. */
  readonly notes: readonly string[];
}

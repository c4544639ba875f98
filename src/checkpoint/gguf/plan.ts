/**
 * What a family says of its GGUF files: metadata, and which elements of which parameters each tensor has.
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

/** Where the values of a tensor come from. */
export type TensorSource =
  /** Runs of a parameter's elements, each of whole rows, one after the other. */
  | { readonly kind: "runs"; readonly fqn: string; readonly runs: () => Iterable<ElementRun> }
  /** A parameter of two dims, transposed. */
  | { readonly kind: "transposed"; readonly fqn: string }
  /** Values that follow from the config. */
  | { readonly kind: "values"; readonly values: readonly number[] };

/** A tensor of a GGUF file. */
export interface PlannedTensor {
  readonly name: string;
  /** Outermost dim first. */
  readonly shape: Shape;
  /** Whether it is written in float32 whatever was asked for, as ggml computes with it so. */
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
  /** What the user should know: where llama.cpp computes otherwise beyond some length, and so on. */
  readonly notes: readonly string[];
}

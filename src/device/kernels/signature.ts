/**
 * The language in which kernels are described: plain data, written once for each kernel (`table.ts`). From it follow the kernel's
 * TypeScript contract ({@link KernelArgs}), the checks of its arguments (`arguments.ts`), the memory that it reads and writes
 * (`accesses.ts`), and every device's way to call it.
 *
 * Addresses are bytes in a device's memory; sizes and strides count elements. Arithmetic is float32 for all storage dtypes,
 * rounded once on store. Every kernel is deterministic: the same arguments give the same bits, whatever ran before.
 *
 * @module
 */
import type { DType } from "../../dtype.ts";
import type { DevicePtr } from "../device.ts";

/**
 * Functions that a kernel chooses from by name; a name's index is its code.
 *
 * @internal
 */
export const OPS = {
  /** Functions of one value x, with up to two scalar parameters `p0` and `p1`. */
  unaryOp: [
    "neg",
    "exp",
    "log",
    "sqrt",
    "rsqrt",
    "tanh",
    "sigmoid",
    "silu",
    "gelu", // exact: x Φ(x)
    "geluTanh", // the tanh approximation (`gelu_new`)
    "relu",
    "square",
    "abs",
    "reciprocal",
    "sin",
    "cos",
    "addScalar", // x + p0
    "mulScalar", // x * p0
    "clamp", // min(max(x, p0), p1); gradient 1 where p0 < x < p1; -Infinity and Infinity are no limits
    "powScalar", // x^p0; gradient 0 where p0 is 0
    "softplus", // ln(1 + e^x)
  ],
  /** Functions of two values. */
  binaryOp: ["add", "sub", "mul", "div", "maximum", "minimum", "pow"],
  /** Comparisons of two values; for `logicalAnd` and `logicalOr`, all values but 0 are true. */
  compareOp: ["eq", "ne", "lt", "le", "gt", "ge", "logicalAnd", "logicalOr"],
  reduceOp: ["sum", "mean", "max", "min"],
  /** Scores that a router computes from its logits; see `route`. */
  scoring: ["softmax", "sigmoid", "softmaxOfTop", "sparseMixer"],
  /** Formats of quantized weights; see `src/quantized.ts`. */
  quantization: ["nf4", "int8", "nf4Nested"],
  /** Handling of an update with a non-finite norm: done all the same, a fault, or skipped. */
  nonfinite: ["keep", "fault", "skip"],
} as const;

/** Name of an element-wise function of one value. */
export type UnaryOp = typeof OPS["unaryOp"][number];
/** Name of an element-wise function of two values. */
export type BinaryOp = typeof OPS["binaryOp"][number];
/** Name of a comparison, or of a logical function, of two values. */
export type CompareOp = typeof OPS["compareOp"][number];
/** Name of a reduction. */
export type ReduceOp = typeof OPS["reduceOp"][number];
/** Name of a router's scoring. */
export type Scoring = typeof OPS["scoring"][number];

/** Constants that lengths may name. `wasm/src` states each again, and the suite of devices compares them. */
export const CONSTANTS = {
  /** int64 words of an exact accumulator; see `wasm/src/exact.rs`. */
  ACCUMULATOR_WORDS: 69,
  /** Bytes of one record of an optimizer's table; see `wasm/src/optimizer.rs`. */
  RECORD_BYTES: 72,
  /** Bytes of the status record; see `wasm/src/status.rs`. */
  STATUS_BYTES: 32,
} as const;

/**
 * Kinds of parameters that are not arrays.
 *
 * - `dtype`: any dtype; `float`: one in which kernels compute; `{ dtypes }`: one of a list; `{ widens }`: the dtype of another
 *   parameter, or float32 if that is a float.
 * - `unaryOp`, `binaryOp`, `compareOp`, `reduceOp`, `scoring`, `quantization`, `nonfinite`: a name of {@link OPS}.
 * - `size`: a number of elements, or a stride; `{ atMost }`: one with a limit; `{ divides }`: one that divides another.
 * - `i32`, `f32`, `f64`: a number.
 * - `switch`: true or false.
 * - `shape`: sizes of at most {@link MAX_DIMS} dims; `strides`: one for each of them.
 */
export type ValueKind =
  | "dtype"
  | "float"
  | { readonly dtypes: readonly string[] }
  | { readonly widens: string }
  | keyof typeof OPS
  | "size"
  | { readonly atMost: number }
  | { readonly divides: string }
  | "i32"
  | "f32"
  | "f64"
  | "switch"
  | "shape"
  | "strides";

/** Largest number of dims of a `shape`. */
export const MAX_DIMS = 8;

/** A factor of a length: a number, the name of a value, or a name of {@link CONSTANTS}. */
export type Factor = number | string;
/** One dim: a factor or a product of factors. The name of a `shape` or of `strides` stands for all of its dims. */
export type Dim = Factor | readonly Factor[];

/** An array, passed by its address, with its access and dtype (a dtype's name, or the name of a dtype value). */
export type ArrayKind =
  & (
    | { readonly reads: string }
    /** Overwrites; with `updatesIf`, also reads if that value is not zero. */
    | { readonly writes: string; readonly updatesIf?: string }
    /** Reads and writes. */
    | { readonly updates: string }
  )
  & {
    readonly shape: readonly Dim[];
    /** Elements from one index to the next, for the outer dims; inner dims are dense. */
    readonly strides?: readonly Dim[];
    /** A switch that swaps the last two dims. */
    readonly transposed?: string;
    /** May be left out. */
    readonly optional?: true;
    /** A list of addresses, each of an array of this shape. */
    readonly list?: true;
    /** Arrays that may be the same as this one. Otherwise written arrays may not overlap any array. */
    readonly mayBe?: readonly string[];
  };

/** One kernel. Its parameters are passed in this order: values, arrays, and the status record if it may fault. */
export interface KernelEntry {
  /** Floating-point operations of a call, as a product; undefined for none. A list of arrays counts as its length. */
  readonly flops?: readonly Factor[];
  readonly values: Readonly<Record<string, ValueKind>>;
  readonly arrays: Readonly<Record<string, ArrayKind>>;
  /** True if a call may write to the device's status record, which the device passes itself. */
  readonly faults?: true;
}

/** Kernels by name. Declare a table `as const`: assigning it to this type checks it. */
export type KernelTable = Readonly<Record<string, KernelEntry>>;

export type KernelArgumentOf<K extends ValueKind | ArrayKind> = K extends keyof typeof OPS
  ? typeof OPS[K] extends readonly (infer N)[] ? N : never
  : K extends "dtype" | "float" | { readonly dtypes: readonly string[] } | { readonly widens: string } ? DType
  : K extends "switch" ? boolean
  : K extends "shape" | "strides" ? readonly number[]
  : K extends { readonly list: true } ? readonly DevicePtr[]
  : K extends ArrayKind ? DevicePtr
  : number;

type OptionalName<A> = { [N in keyof A]: A[N] extends { readonly optional: true } ? N : never }[keyof A];

/**
 * The arguments of a kernel, by name.
 *
 * @internal
 */
export type KernelArgs<E extends KernelEntry> =
  & { readonly [N in keyof E["values"]]: KernelArgumentOf<E["values"][N]> }
  & { readonly [N in Exclude<keyof E["arrays"], OptionalName<E["arrays"]>>]: KernelArgumentOf<E["arrays"][N]> }
  & { readonly [N in OptionalName<E["arrays"]>]?: KernelArgumentOf<E["arrays"][N]> | undefined };

/** Any argument. */
export type Argument = DType | string | number | boolean | readonly number[] | undefined;
/**
 * Arguments of any kernel.
 *
 * @internal
 */
export type Arguments = Readonly<Record<string, Argument>>;

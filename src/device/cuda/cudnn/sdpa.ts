/**
 * Attention as cuDNN describes it: one operation for the forward and one for the backward, with the causal mask as a graph of
 * scores inside it, and the plan by which a card computes it.
 *
 * Tensors have the dims [batch, heads, sequence, dims of a head] in any order in memory, which strides give.
 *
 * @module
 */
import { bfloat16, type DType } from "../../../dtype.ts";
import { NativeError } from "../../../errors.ts";
import { CUDNN_CONSTANTS } from "../../../ffi/bindings/cudnn.ts";
import type { Handle, NativeAddress } from "../../../ffi/types.ts";
import type { Attributes, AttributeValue, Descriptors } from "./descriptors.ts";

/** Properties of attentions that need different plans. */
export interface SdpaShape {
  readonly direction: "forward" | "backward";
  readonly dtype: DType;
  readonly batch: number;
  readonly seqQ: number;
  readonly seqK: number;
  readonly heads: number;
  readonly kvHeads: number;
  readonly headDim: number;
  readonly valueDim: number;
  readonly strideQ: number;
  readonly strideK: number;
  readonly strideV: number;
  /** True if query i sees keys j <= i + seqK - seqQ only. */
  readonly causal: boolean;
}

/**
 * Unique ids of tensors. `scale`, `hidden` (the score of a hidden key) and lengths are scalars in host memory; `scores` and
 * `seen` have no memory.
 */
const UIDS = {
  q: 1,
  k: 2,
  v: 3,
  o: 4,
  lse: 5,
  dO: 6,
  dq: 7,
  dk: 8,
  dv: 9,
  scale: 10,
  hidden: 11,
  lengthQ: 12,
  lengthK: 13,
  scores: 14,
  seen: 15,
} as const;
export type TensorName = Exclude<keyof typeof UIDS, "scores" | "seen">;

/** Alignment of tensors in bytes. */
export const ALIGNMENT = 16;

/** The unique id of a tensor. */
export function uidOf(name: keyof typeof UIDS): number {
  return UIDS[name];
}

/** The card of a plan: a handle's, or a described one, for plans that are made without a card. */
export type PlanTarget =
  | { readonly handle: Handle<"cudnnHandle_t"> }
  | { readonly properties: NativeAddress };

/** A card's plan for an attention. */
export interface SdpaPlan {
  readonly plan: NativeAddress;
  readonly workspaceBytes: number;
  /** Tensors that it takes at each launch. */
  readonly tensors: readonly TensorName[];
}

/** Makes a variant pack: the addresses of tensors by unique id, and a workspace. */
export function packOf(
  uids: readonly number[],
  addresses: readonly number[],
  workspace: number,
): Attributes {
  return [
    ["CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS", { integers: uids }],
    ["CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS", { addresses }],
    ["CUDNN_ATTR_VARIANT_PACK_WORKSPACE", { addresses: [workspace] }],
  ];
}

/** First of the statuses that mean "not supported", and the first after these. */
const [NOT_SUPPORTED, AFTER_NOT_SUPPORTED] = [3000, 4000];

/**
 * Makes the plan of an attention.
 *
 * @returns the plan, or the reason why cuDNN has none, in its own words if it gives some
 * @throws {NativeError} if cuDNN fails in another way
 */
export function makePlan(descriptors: Descriptors, shape: SdpaShape, target: PlanTarget): SdpaPlan | string {
  try {
    const { operation, tensors } = describeSdpa(descriptors, shape);
    const graph = descriptors.make("CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR", [
      ...("handle" in target ? [["CUDNN_ATTR_OPERATIONGRAPH_HANDLE", { handle: target.handle }] as const] : []),
      ["CUDNN_ATTR_OPERATIONGRAPH_OPS", { descriptors: [operation] }],
    ]);
    const found = planOf(descriptors, graph, target);
    return typeof found === "string" ? found : { ...found, tensors };
  } catch (error) {
    if (!(error instanceof NativeError)) throw error;
    if (error.status < NOT_SUPPORTED || error.status >= AFTER_NOT_SUPPORTED) throw error;
    return error.message;
  }
}

/** The first plan of cuDNN's heuristics that can be made and gives the same bits each time; or the reason why there is none. */
function planOf(
  descriptors: Descriptors,
  graph: NativeAddress,
  target: PlanTarget,
): Pick<SdpaPlan, "plan" | "workspaceBytes"> | string {
  let why = "it proposes none";
  for (const mode of ["CUDNN_HEUR_MODE_A", "CUDNN_HEUR_MODE_FALLBACK"] as const) {
    const heuristics = descriptors.make("CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR", [
      ["CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH", { descriptors: [graph] }],
      ["CUDNN_ATTR_ENGINEHEUR_MODE", { mode }],
      ...deviceOf("CUDNN_ATTR_ENGINEHEUR_DEVICEPROP", target),
    ]);
    const kind = "CUDNN_BACKEND_ENGINECFG_DESCRIPTOR";
    for (const config of descriptors.descriptorsOf(heuristics, "CUDNN_ATTR_ENGINEHEUR_RESULTS", kind)) {
      if (!givesSameBits(descriptors, config)) {
        why = "what it proposes may give other bits each time";
        continue;
      }
      try {
        const plan = descriptors.make("CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR", [
          ...("handle" in target ? [["CUDNN_ATTR_EXECUTION_PLAN_HANDLE", { handle: target.handle }] as const] : []),
          ["CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG", { descriptors: [config] }],
          ...deviceOf("CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP", target),
        ]);
        return { plan, workspaceBytes: descriptors.integerOf(plan, "CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE") };
      } catch (error) {
        if (!(error instanceof NativeError)) throw error;
        why = error.message; // the next one may be better
      }
    }
  }
  return why;
}

function deviceOf(
  name: "CUDNN_ATTR_ENGINEHEUR_DEVICEPROP" | "CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP",
  target: PlanTarget,
): Attributes {
  return "properties" in target ? [[name, { descriptors: [target.properties] }]] : [];
}

/** True if an engine has no note of non-deterministic results. */
function givesSameBits(descriptors: Descriptors, config: NativeAddress): boolean {
  const [engine] = descriptors.descriptorsOf(config, "CUDNN_ATTR_ENGINECFG_ENGINE", "CUDNN_BACKEND_ENGINE_DESCRIPTOR");
  if (engine === undefined) return false;
  const notes = descriptors.notesOf(engine, "CUDNN_ATTR_ENGINE_NUMERICAL_NOTE");
  return !notes.includes(CUDNN_CONSTANTS.CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC);
}

/** The operation, and the tensors that it takes. */
function describeSdpa(
  descriptors: Descriptors,
  shape: SdpaShape,
): { operation: NativeAddress; tensors: readonly TensorName[] } {
  const { direction, dtype, batch, seqQ, seqK, heads, kvHeads, headDim, valueDim, causal } = shape;
  const tensors: TensorName[] = [];
  const given = (name: TensorName, attributes: Attributes): AttributeValue => {
    tensors.push(name);
    return { descriptors: [tensor(descriptors, name, attributes)] };
  };
  /** A tensor of 2-byte floats, with the dims of a head last; `row` is the stride from a token to the next. */
  const rows = (name: TensorName, seq: number, count: number, width: number, row = count * width): AttributeValue =>
    given(name, [
      ["CUDNN_ATTR_TENSOR_DATA_TYPE", { dataType: dtype === bfloat16 ? "CUDNN_DATA_BFLOAT16" : "CUDNN_DATA_HALF" }],
      ["CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT", { integers: [ALIGNMENT] }],
      ["CUDNN_ATTR_TENSOR_DIMENSIONS", { integers: [batch, count, seq, width] }],
      ["CUDNN_ATTR_TENSOR_STRIDES", { integers: [seq * row, width, row, 1] }],
    ]);
  const scalar = (name: TensorName, dataType: "CUDNN_DATA_FLOAT" | "CUDNN_DATA_INT32"): AttributeValue =>
    given(name, [
      ["CUDNN_ATTR_TENSOR_DATA_TYPE", { dataType }],
      ["CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT", { integers: [4] }],
      ["CUDNN_ATTR_TENSOR_DIMENSIONS", { integers: [1, 1, 1, 1] }],
      ["CUDNN_ATTR_TENSOR_STRIDES", { integers: [1, 1, 1, 1] }],
      ["CUDNN_ATTR_TENSOR_IS_BY_VALUE", { flag: true }],
    ]);
  const q = rows("q", seqQ, heads, headDim, shape.strideQ);
  const k = rows("k", seqK, kvHeads, headDim, shape.strideK);
  const v = rows("v", seqK, kvHeads, valueDim, shape.strideV);
  const o = rows("o", seqQ, heads, valueDim);
  const lse = given("lse", [
    ["CUDNN_ATTR_TENSOR_DATA_TYPE", { dataType: "CUDNN_DATA_FLOAT" }],
    ["CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT", { integers: [ALIGNMENT] }],
    ["CUDNN_ATTR_TENSOR_DIMENSIONS", { integers: [batch, heads, seqQ, 1] }],
    ["CUDNN_ATTR_TENSOR_STRIDES", { integers: [heads * seqQ, seqQ, 1, 1] }],
  ]);
  const scale = scalar("scale", "CUDNN_DATA_FLOAT");
  const mask: AttributeValue | undefined = causal
    ? { descriptors: [causalMask(descriptors, shape, scalar)] }
    : undefined;
  const [scores, seen] = [uidOf("scores"), uidOf("seen")];
  const operation = direction === "forward"
    ? descriptors.make("CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR", [
      ["CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC", q],
      ["CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC", k],
      ["CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC", v],
      ["CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC", o],
      ["CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC", lse],
      ["CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC", scale],
      ...mask === undefined ? [] : [
        ["CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH", mask] as const,
        ["CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID", { integers: [scores] }] as const,
        ["CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID", { integers: [seen] }] as const,
      ],
    ])
    : descriptors.make("CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR", [
      ["CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC", q],
      ["CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC", k],
      ["CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC", v],
      ["CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC", o],
      ["CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC", lse],
      ["CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC", scale],
      ["CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC", rows("dO", seqQ, heads, valueDim)],
      ["CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC", rows("dq", seqQ, heads, headDim)],
      ["CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC", rows("dk", seqK, kvHeads, headDim)],
      ["CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC", rows("dv", seqK, kvHeads, valueDim)],
      ...mask === undefined ? [] : [
        ["CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH", mask] as const,
        ["CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID", { integers: [scores] }] as const,
        ["CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID", { integers: [seen] }] as const,
      ],
    ]);
  return { operation, tensors };
}

/** The graph that replaces the scores of hidden keys by `hidden`. */
function causalMask(
  descriptors: Descriptors,
  { batch, heads, seqQ, seqK }: SdpaShape,
  scalar: (name: TensorName, dataType: "CUDNN_DATA_FLOAT" | "CUDNN_DATA_INT32") => AttributeValue,
): NativeAddress {
  const virtual = (name: "scores" | "seen"): AttributeValue => {
    const own = tensor(descriptors, name, [
      ["CUDNN_ATTR_TENSOR_DATA_TYPE", { dataType: "CUDNN_DATA_FLOAT" }],
      ["CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT", { integers: [ALIGNMENT] }],
      ["CUDNN_ATTR_TENSOR_DIMENSIONS", { integers: [batch, heads, seqQ, seqK] }],
      ["CUDNN_ATTR_TENSOR_STRIDES", { integers: [heads * seqQ * seqK, seqQ * seqK, seqK, 1] }],
      ["CUDNN_ATTR_TENSOR_IS_VIRTUAL", { flag: true }],
    ]);
    return { descriptors: [own] };
  };
  // Without lengths the first query sees the first key alone; with them the last query sees all keys.
  const lengths: Attributes = seqQ === seqK ? [] : [
    ["CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_QDESC", scalar("lengthQ", "CUDNN_DATA_INT32")],
    ["CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_KVDESC", scalar("lengthK", "CUDNN_DATA_INT32")],
  ];
  const operation = descriptors.make("CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR", [
    ["CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC", virtual("scores")],
    ["CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC", scalar("hidden", "CUDNN_DATA_FLOAT")],
    ...lengths,
    ["CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC", virtual("seen")],
    ["CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE", { comparison: "CUDNN_POINTWISE_CMP_GE" }],
  ]);
  return descriptors.make("CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR", [
    ["CUDNN_ATTR_OPERATIONGRAPH_OPS", { descriptors: [operation] }],
  ]);
}

function tensor(descriptors: Descriptors, name: keyof typeof UIDS, attributes: Attributes): NativeAddress {
  const uid: Attributes = [["CUDNN_ATTR_TENSOR_UNIQUE_ID", { integers: [uidOf(name)] }]];
  return descriptors.make("CUDNN_BACKEND_TENSOR_DESCRIPTOR", [...uid, ...attributes]);
}

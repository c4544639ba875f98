/**
 * cuDNN's backend (`cudnn_graph.h`), by which operations are described, planned and run: table, constants, no logic. A
 * descriptor is a plain pointer in the header, whatever it describes, and so it is here.
 *
 * @module
 */
import type { LibrarySpec } from "../library.ts";

/** Constants, with their C names. */
export const CUDNN_CONSTANTS = {
  // cudnnDataType_t
  CUDNN_DATA_FLOAT: 0,
  CUDNN_DATA_HALF: 2,
  CUDNN_DATA_INT32: 4,
  CUDNN_DATA_BFLOAT16: 9,
  // cudnnPointwiseMode_t
  CUDNN_POINTWISE_CMP_GE: 303,
  // cudnnBackendHeurMode_t
  CUDNN_HEUR_MODE_FALLBACK: 2,
  CUDNN_HEUR_MODE_A: 3,
  // cudnnBackendNumericalNote_t
  CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC: 4,
  CUDNN_NUMERICAL_NOTE_TYPE_COUNT: 10,
  // cudnnBackendAttributeType_t
  CUDNN_TYPE_HANDLE: 0,
  CUDNN_TYPE_DATA_TYPE: 1,
  CUDNN_TYPE_BOOLEAN: 2,
  CUDNN_TYPE_INT64: 3,
  CUDNN_TYPE_VOID_PTR: 6,
  CUDNN_TYPE_HEUR_MODE: 8,
  CUDNN_TYPE_NUMERICAL_NOTE: 11,
  CUDNN_TYPE_POINTWISE_MODE: 14,
  CUDNN_TYPE_BACKEND_DESCRIPTOR: 15,
  CUDNN_TYPE_CHAR: 24,
  // cudnnBackendDescriptorType_t
  CUDNN_BACKEND_ENGINE_DESCRIPTOR: 2,
  CUDNN_BACKEND_ENGINECFG_DESCRIPTOR: 3,
  CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR: 4,
  CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR: 5,
  CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR: 15,
  CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR: 16,
  CUDNN_BACKEND_TENSOR_DESCRIPTOR: 17,
  CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR: 38,
  CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR: 41,
  CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR: 43,
  CUDNN_BACKEND_OPERATION_DIAGONAL_BAND_MASK_DESCRIPTOR: 44,
  // cudnnBackendAttributeName_t
  CUDNN_ATTR_ENGINEHEUR_MODE: 200,
  CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH: 201,
  CUDNN_ATTR_ENGINEHEUR_RESULTS: 202,
  CUDNN_ATTR_ENGINEHEUR_DEVICEPROP: 204,
  CUDNN_ATTR_ENGINECFG_ENGINE: 300,
  CUDNN_ATTR_EXECUTION_PLAN_HANDLE: 400,
  CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG: 401,
  CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE: 402,
  CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP: 407,
  CUDNN_ATTR_OPERATIONGRAPH_HANDLE: 800,
  CUDNN_ATTR_OPERATIONGRAPH_OPS: 801,
  CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT: 900,
  CUDNN_ATTR_TENSOR_DATA_TYPE: 901,
  CUDNN_ATTR_TENSOR_DIMENSIONS: 902,
  CUDNN_ATTR_TENSOR_STRIDES: 903,
  CUDNN_ATTR_TENSOR_UNIQUE_ID: 906,
  CUDNN_ATTR_TENSOR_IS_VIRTUAL: 907,
  CUDNN_ATTR_TENSOR_IS_BY_VALUE: 908,
  CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS: 1000,
  CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS: 1001,
  CUDNN_ATTR_VARIANT_PACK_WORKSPACE: 1003,
  CUDNN_ATTR_ENGINE_NUMERICAL_NOTE: 1303,
  CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION: 2702,
  CUDNN_ATTR_OPERATION_SDPA_FWD_QDESC: 2800,
  CUDNN_ATTR_OPERATION_SDPA_FWD_KDESC: 2801,
  CUDNN_ATTR_OPERATION_SDPA_FWD_VDESC: 2802,
  CUDNN_ATTR_OPERATION_SDPA_FWD_ODESC: 2803,
  CUDNN_ATTR_OPERATION_SDPA_FWD_STATSDESC: 2804,
  CUDNN_ATTR_OPERATION_SDPA_FWD_SCALEDESC: 2805,
  CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH: 2811,
  CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_INPUT_UID: 2812,
  CUDNN_ATTR_OPERATION_SDPA_FWD_SUBGRAPH_OUTPUT_UID: 2813,
  CUDNN_ATTR_OPERATION_SDPA_BWD_QDESC: 2851,
  CUDNN_ATTR_OPERATION_SDPA_BWD_KDESC: 2852,
  CUDNN_ATTR_OPERATION_SDPA_BWD_VDESC: 2853,
  CUDNN_ATTR_OPERATION_SDPA_BWD_ODESC: 2854,
  CUDNN_ATTR_OPERATION_SDPA_BWD_STATSDESC: 2855,
  CUDNN_ATTR_OPERATION_SDPA_BWD_SCALEDESC: 2856,
  CUDNN_ATTR_OPERATION_SDPA_BWD_DQDESC: 2859,
  CUDNN_ATTR_OPERATION_SDPA_BWD_DKDESC: 2860,
  CUDNN_ATTR_OPERATION_SDPA_BWD_DVDESC: 2861,
  CUDNN_ATTR_OPERATION_SDPA_BWD_DODDESC: 2862,
  CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH: 2867,
  CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_INPUT_UID: 2868,
  CUDNN_ATTR_OPERATION_SDPA_BWD_SUBGRAPH_OUTPUT_UID: 2869,
  CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_XDESC: 3000,
  CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_KVDESC: 3001,
  CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_SEQ_LEN_QDESC: 3002,
  CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_BDESC: 3005,
  CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_YDESC: 3006,
  CUDNN_ATTR_OPERATION_DIAGONAL_BAND_MASK_COMPARISON_MODE: 3007,
} as const;

/** Functions of cuDNN. */
export const CUDNN_BINDINGS = {
  cudnnGetVersion: { args: [], result: "usize", check: "none" },
  cudnnGetCudartVersion: { args: [], result: "usize", check: "none" },
  cudnnGetErrorString: { args: ["i32"], result: "cstring", check: "none" },
  // (text, its most bytes): it ends with a zero
  cudnnGetLastErrorString: { args: ["buffer", "usize"], result: "void", check: "none" },
  cudnnCreate: { args: [{ out: "cudnnHandle_t" }], result: "i32", check: "status" },
  cudnnDestroy: { args: ["cudnnHandle_t"], result: "i32", check: "status" },
  cudnnSetStream: { args: ["cudnnHandle_t", "cudaStream_t"], result: "i32", check: "status" },

  cudnnBackendCreateDescriptor: { args: ["i32", { out: "address" }], result: "i32", check: "status" },
  cudnnBackendDestroyDescriptor: { args: ["address"], result: "i32", check: "status" },
  // (descriptor, attribute, type of its elements, their count, elements)
  cudnnBackendSetAttribute: { args: ["address", "i32", "i32", "i64", "buffer"], result: "i32", check: "status" },
  cudnnBackendFinalize: { args: ["address"], result: "i32", check: "status" },
  // (descriptor, attribute, type of its elements, most of them, their count, elements)
  cudnnBackendGetAttribute: {
    args: ["address", "i32", "i32", "i64", { out: "i64" }, "optionalBuffer"],
    result: "i32",
    check: "status",
  },
  // (handle, plan, variant pack)
  cudnnBackendExecute: { args: ["cudnnHandle_t", "address", "address"], result: "i32", check: "status" },
} as const;

/** cuDNN. */
export const CUDNN: LibrarySpec<typeof CUDNN_BINDINGS> = {
  name: "cuDNN",
  bindings: CUDNN_BINDINGS,
  statuses: { names: {}, nameOf: "cudnnGetErrorString", lastErrorInto: "cudnnGetLastErrorString" },
  oldest: "9.28",
  sonames: ["libcudnn.so.9", "libcudnn.so"],
  override: "FULLYSHARD_CUDNN_LIBRARY",
  packageDirectories: ["nvidia/cudnn/lib"],
  cuda: true,
  gives: "attention by cuDNN on NVIDIA GPUs, with --attention cudnn",
  remedy: "Install it with 'pip install nvidia-cudnn-cu13' (in an active virtual environment), or for a driver of " +
    "CUDA 12 'pip install nvidia-cudnn-cu12'",
};

/**
 * cuBLASLt, matrix products on NVIDIA GPUs (`cublasLt.h`): table, constants, structs, no logic. `*Init` functions are
 * inline in the header; their exported siblings `*Create` are bound. Matrices are by columns unless their layout says
 * otherwise.
 *
 * @module
 */
import type { LibrarySpec } from "../library.ts";

/** Constants, with their C names. */
export const CUBLASLT_CONSTANTS = {
  // cudaDataType
  CUDA_R_32F: 0,
  CUDA_R_16F: 2,
  CUDA_R_16BF: 14,
  CUDA_R_8F_E4M3: 28,
  CUDA_R_8F_E5M2: 29,
  // cublasComputeType_t
  CUBLAS_COMPUTE_32F: 68,
  CUBLAS_COMPUTE_32F_FAST_TF32: 77,
  // cublasOperation_t
  CUBLAS_OP_N: 0,
  CUBLAS_OP_T: 1,
  // cublasLtOrder_t
  CUBLASLT_ORDER_COL: 0,
  CUBLASLT_ORDER_ROW: 1,
  // cublasLtPointerMode_t
  CUBLASLT_POINTER_MODE_HOST: 0,
  CUBLASLT_POINTER_MODE_DEVICE: 1,
  // cublasLtMatrixLayoutAttribute_t
  CUBLASLT_MATRIX_LAYOUT_ORDER: 1,
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT: 5,
  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET: 6,
  // cublasLtMatmulDescAttributes_t
  CUBLASLT_MATMUL_DESC_POINTER_MODE: 2,
  CUBLASLT_MATMUL_DESC_TRANSA: 3,
  CUBLASLT_MATMUL_DESC_TRANSB: 4,
  CUBLASLT_MATMUL_DESC_EPILOGUE: 7,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER: 8,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER: 11,
  CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD: 12,
  CUBLASLT_MATMUL_DESC_FAST_ACCUM: 25,
  CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE: 26,
  // cublasLtEpilogue_t
  CUBLASLT_EPILOGUE_DEFAULT: 1,
  CUBLASLT_EPILOGUE_BIAS: 4,
  CUBLASLT_EPILOGUE_GELU: 32,
  CUBLASLT_EPILOGUE_GELU_BIAS: 36,
  CUBLASLT_EPILOGUE_GELU_AUX: 160,
  CUBLASLT_EPILOGUE_GELU_AUX_BIAS: 164,
  CUBLASLT_EPILOGUE_DGELU: 192,
  CUBLASLT_EPILOGUE_DGELU_BGRAD: 208,
  CUBLASLT_EPILOGUE_BGRADA: 256,
  CUBLASLT_EPILOGUE_BGRADB: 512,
  // cublasLtMatmulPreferenceAttributes_t
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES: 1,
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK: 3,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES: 5,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES: 6,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES: 7,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES: 8,
  // cublasLtReductionScheme_t
  CUBLASLT_REDUCTION_SCHEME_NONE: 0,
  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE: 2,
} as const;

/** `cublasLtMatmulHeuristicResult_t`; its algorithm is what `cublasLtMatmul` takes. */
export const CUBLASLT_MATMUL_HEURISTIC_RESULT = {
  name: "cublasLtMatmulHeuristicResult_t",
  byteLength: 96,
  fields: {
    algo: { offset: 0, type: { bytes: 64 } },
    workspaceSize: { offset: 64, type: "usize" },
    state: { offset: 72, type: "i32" },
    wavesCount: { offset: 76, type: "f32" },
  },
} as const;

/** Functions of cuBLASLt. */
export const CUBLASLT_BINDINGS = {
  cublasLtGetStatusName: { args: ["i32"], result: "cstring", check: "none" },
  cublasLtGetStatusString: { args: ["i32"], result: "cstring", check: "none" },
  cublasLtGetVersion: { args: [], result: "usize", check: "none" },
  cublasLtGetCudartVersion: { args: [], result: "usize", check: "none" },
  cublasLtCreate: { args: [{ out: "cublasLtHandle_t" }], result: "i32", check: "status" },
  cublasLtDestroy: { args: ["cublasLtHandle_t"], result: "i32", check: "status" },

  // (descriptor, compute type, type of alpha and beta)
  cublasLtMatmulDescCreate: { args: [{ out: "cublasLtMatmulDesc_t" }, "i32", "i32"], result: "i32", check: "status" },
  cublasLtMatmulDescSetAttribute: {
    args: ["cublasLtMatmulDesc_t", "i32", "buffer", "usize"],
    result: "i32",
    check: "status",
  },
  cublasLtMatmulDescDestroy: { args: ["cublasLtMatmulDesc_t"], result: "i32", check: "status" },
  // (layout, type, rows, columns, leading dimension)
  cublasLtMatrixLayoutCreate: {
    args: [{ out: "cublasLtMatrixLayout_t" }, "i32", "u64", "u64", "i64"],
    result: "i32",
    check: "status",
  },
  cublasLtMatrixLayoutSetAttribute: {
    args: ["cublasLtMatrixLayout_t", "i32", "buffer", "usize"],
    result: "i32",
    check: "status",
  },
  cublasLtMatrixLayoutDestroy: { args: ["cublasLtMatrixLayout_t"], result: "i32", check: "status" },
  cublasLtMatmulPreferenceCreate: { args: [{ out: "cublasLtMatmulPreference_t" }], result: "i32", check: "status" },
  cublasLtMatmulPreferenceSetAttribute: {
    args: ["cublasLtMatmulPreference_t", "i32", "buffer", "usize"],
    result: "i32",
    check: "status",
  },
  cublasLtMatmulPreferenceDestroy: { args: ["cublasLtMatmulPreference_t"], result: "i32", check: "status" },

  // (handle, descriptor, A, B, C, D, preference, count asked for, results, their count)
  cublasLtMatmulAlgoGetHeuristic: {
    args: [
      "cublasLtHandle_t",
      "cublasLtMatmulDesc_t",
      "cublasLtMatrixLayout_t",
      "cublasLtMatrixLayout_t",
      "cublasLtMatrixLayout_t",
      "cublasLtMatrixLayout_t",
      "cublasLtMatmulPreference_t",
      "i32",
      { pointer: "cublasLtMatmulHeuristicResult_t" },
      { out: "i32" },
    ],
    result: "i32",
    check: "status",
  },
  // (handle, descriptor, alpha, A, its layout, B, …, beta, C, …, D, …, algorithm, workspace, its bytes, stream)
  cublasLtMatmul: {
    args: [
      "cublasLtHandle_t",
      "cublasLtMatmulDesc_t",
      "buffer",
      "address",
      "cublasLtMatrixLayout_t",
      "address",
      "cublasLtMatrixLayout_t",
      "buffer",
      "address",
      "cublasLtMatrixLayout_t",
      "address",
      "cublasLtMatrixLayout_t",
      "optionalBuffer",
      "address",
      "usize",
      "cudaStream_t",
    ],
    result: "i32",
    check: "status",
  },
} as const;

/** cuBLASLt. */
export const CUBLASLT: LibrarySpec<typeof CUBLASLT_BINDINGS> = {
  name: "cuBLASLt",
  bindings: CUBLASLT_BINDINGS,
  statuses: { names: {}, nameOf: "cublasLtGetStatusName", textOf: "cublasLtGetStatusString" },
  oldest: "12.4",
  sonames: ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
  override: "FULLYSHARD_CUBLASLT_LIBRARY",
  packageDirectories: ["nvidia/cu13/lib", "nvidia/cublas/lib"],
  cuda: true,
  gives: "matrix products on NVIDIA GPUs",
  remedy:
    "Install it with 'pip install nvidia-cublas' (in an active virtual environment), or for a driver of CUDA 12 " +
    "'pip install nvidia-cublas-cu12'",
};

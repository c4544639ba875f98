/**
 * The subjects of the audit: each library's table, constants and structs, the headers that declare them, and the releases
 * whose wheels hold these headers. Older and newer neighbours of a release that brought a function are among them, so
 * that a wrong `since` shows.
 *
 * @module
 */
import { CUBLASLT, CUBLASLT_CONSTANTS, CUBLASLT_MATMUL_HEURISTIC_RESULT } from "../../src/ffi/bindings/cublaslt.ts";
import { CU_LAUNCH_CONFIG, CU_TENSOR_MAP, CUDA, CUDA_CONSTANTS } from "../../src/ffi/bindings/cuda.ts";
import {
  CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO,
  CUDA_LAUNCH_ATTRIBUTE,
  CUDA_LAUNCH_CONFIG,
  CUDART,
  CUDART_CONSTANTS,
} from "../../src/ffi/bindings/cudart.ts";
import { CUDNN, CUDNN_CONSTANTS } from "../../src/ffi/bindings/cudnn.ts";
import { NCCL, NCCL_CONFIG, NCCL_CONSTANTS, NCCL_UNIQUE_ID } from "../../src/ffi/bindings/nccl.ts";
import { NVML, NVML_CONSTANTS, NVML_MEMORY } from "../../src/ffi/bindings/nvml.ts";
import { NVRTC } from "../../src/ffi/bindings/nvrtc.ts";
import type { LibrarySpec } from "../../src/ffi/library.ts";
import type { BindingTable, StructLayout } from "../../src/ffi/types.ts";

/** One release of a library's headers. */
export interface Release {
  readonly version: string;
  /** Wheels, as pip's requirements; the library's own first, then those with headers that its headers include. */
  readonly wheels: readonly string[];
}

/** One library as the audit sees it. */
export interface Audited {
  readonly spec: Pick<LibrarySpec<BindingTable>, "name" | "bindings" | "statuses" | "oldest">;
  readonly constants: Readonly<Record<string, number>>;
  readonly structs: readonly StructLayout[];
  readonly headers: readonly string[];
  /** The headers' own names of handle types that our table calls by another library's. */
  readonly aliases?: Readonly<Record<string, string>>;
  /** The library's file name up to its version; undefined where it comes with the driver and in no wheel. */
  readonly file?: string;
  /** Oldest first. */
  readonly releases: readonly Release[];
}

/** `CUlaunchAttribute`, which shows that attributes laid out as `cudaLaunchAttribute` go to the driver too. */
const CU_LAUNCH_ATTRIBUTE: StructLayout = {
  name: "CUlaunchAttribute",
  byteLength: 72,
  fields: {
    id: { offset: 0, type: "i32" },
    "value.cooperative": { offset: 8, type: "i32" },
    "value.clusterDim.x": { offset: 8, type: "u32" },
    "value.programmaticStreamSerializationAllowed": { offset: 8, type: "i32" },
    "value.priority": { offset: 8, type: "i32" },
  },
};

/** Wheels with `crt/host_defines.h`, which the CUDA runtime's headers include. */
const CRT_12 = "nvidia-cuda-nvcc-cu12==12.9.86";
const CRT_13 = "nvidia-cuda-crt==13.5.37";

/** Wheels with the CUDA headers that those of other libraries include. */
const CUDA_12 = ["nvidia-cuda-runtime-cu12==12.9.79", CRT_12, "nvidia-cuda-cccl-cu12==12.9.27"];
const CUDA_13 = ["nvidia-cuda-runtime==13.5.37", CRT_13, "nvidia-cuda-cccl==13.3.5.0.6"];

const CUDART_RELEASES: readonly Release[] = [
  { version: "12.4.127", wheels: ["nvidia-cuda-runtime-cu12==12.4.127", CRT_12] },
  { version: "12.6.77", wheels: ["nvidia-cuda-runtime-cu12==12.6.77", CRT_12] },
  { version: "12.8.90", wheels: ["nvidia-cuda-runtime-cu12==12.8.90", CRT_12] },
  { version: "12.9.79", wheels: ["nvidia-cuda-runtime-cu12==12.9.79", CRT_12] },
  { version: "13.0.96", wheels: ["nvidia-cuda-runtime==13.0.96", CRT_13] },
  { version: "13.5.37", wheels: ["nvidia-cuda-runtime==13.5.37", CRT_13] },
];

/** The libraries, by the names that they have in the table of facts. */
export const AUDITED: Readonly<Record<string, Audited>> = {
  cudart: {
    spec: CUDART,
    constants: CUDART_CONSTANTS,
    structs: [CUDA_LAUNCH_CONFIG, CUDA_LAUNCH_ATTRIBUTE, CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO],
    headers: ["cuda_runtime_api.h"],
    file: "libcudart.so",
    releases: CUDART_RELEASES,
  },
  cuda: {
    spec: CUDA,
    constants: CUDA_CONSTANTS,
    structs: [CU_LAUNCH_CONFIG, CU_LAUNCH_ATTRIBUTE, CU_TENSOR_MAP],
    headers: ["cuda.h", "cuda_runtime_api.h"],
    aliases: { cudaLibrary_t: "CUlibrary", cudaKernel_t: "CUkernel", cudaStream_t: "CUstream" },
    releases: CUDART_RELEASES,
  },
  nvrtc: {
    spec: NVRTC,
    constants: {},
    structs: [],
    headers: ["nvrtc.h"],
    file: "libnvrtc.so",
    releases: [
      { version: "12.4.127", wheels: ["nvidia-cuda-nvrtc-cu12==12.4.127"] },
      { version: "12.9.86", wheels: ["nvidia-cuda-nvrtc-cu12==12.9.86"] },
      { version: "13.0.88", wheels: ["nvidia-cuda-nvrtc==13.0.88"] },
      { version: "13.5.37", wheels: ["nvidia-cuda-nvrtc==13.5.37"] },
    ],
  },
  cublaslt: {
    spec: CUBLASLT,
    constants: CUBLASLT_CONSTANTS,
    structs: [CUBLASLT_MATMUL_HEURISTIC_RESULT],
    headers: ["cublasLt.h"],
    file: "libcublasLt.so",
    releases: [
      { version: "12.4.5.8", wheels: ["nvidia-cublas-cu12==12.4.5.8", ...CUDA_12] },
      { version: "12.9.1.4", wheels: ["nvidia-cublas-cu12==12.9.1.4", ...CUDA_12] },
      { version: "13.1.0.3", wheels: ["nvidia-cublas==13.1.0.3", ...CUDA_13] },
      { version: "13.10.0.20", wheels: ["nvidia-cublas==13.10.0.20", ...CUDA_13] },
    ],
  },
  cudnn: {
    spec: CUDNN,
    constants: CUDNN_CONSTANTS,
    structs: [],
    headers: ["cudnn_graph.h"],
    file: "libcudnn.so",
    releases: [
      { version: "9.28.0.42", wheels: ["nvidia-cudnn-cu12==9.28.0.42", ...CUDA_12] },
      { version: "9.28.0.42+cu13", wheels: ["nvidia-cudnn-cu13==9.28.0.42", ...CUDA_13] },
      { version: "9.28.1.4+cu13", wheels: ["nvidia-cudnn-cu13==9.28.1.4", ...CUDA_13] },
    ],
  },
  nccl: {
    spec: NCCL,
    constants: NCCL_CONSTANTS,
    structs: [NCCL_UNIQUE_ID, NCCL_CONFIG],
    headers: ["nccl.h"],
    file: "libnccl.so",
    releases: [
      ...["2.19.3", "2.22.3", "2.23.4", "2.26.5", "2.27.3", "2.28.9"].map((version) => ({
        version,
        wheels: [`nvidia-nccl-cu12==${version}`, ...CUDA_12],
      })),
      { version: "2.28.9+cu13", wheels: ["nvidia-nccl-cu13==2.28.9", ...CUDA_13] },
      { version: "2.32.3", wheels: ["nvidia-nccl-cu12==2.32.3", ...CUDA_12] },
      { version: "2.32.3+cu13", wheels: ["nvidia-nccl-cu13==2.32.3", ...CUDA_13] },
    ],
  },
  nvml: {
    spec: NVML,
    constants: NVML_CONSTANTS,
    structs: [NVML_MEMORY],
    headers: ["nvml.h"],
    releases: [
      { version: "12.4.127", wheels: ["nvidia-nvml-dev-cu12==12.4.127"] },
      { version: "12.9.79", wheels: ["nvidia-nvml-dev-cu12==12.9.79"] },
      { version: "13.5.37", wheels: ["nvidia-nvml-dev==13.5.37"] },
    ],
  },
};

/**
 * The CUDA runtime (`cuda_runtime_api.h`): table, constants, structs, no logic. Nothing here changed its signature or
 * its value between CUDA 12.4 and 13; `scripts/cuda_facts` holds it to the headers. Functions that take structs by
 * value, `_ptsz` names and `cudaGetDeviceProperties`, whose struct changed its size, stay unbound.
 *
 * @module
 */
import type { LibrarySpec } from "../library.ts";

/** Constants, with their C names. */
export const CUDART_CONSTANTS = {
  // cudaMemcpyKind
  cudaMemcpyHostToDevice: 1,
  cudaMemcpyDeviceToHost: 2,
  cudaMemcpyDeviceToDevice: 3,
  cudaMemcpyDefault: 4,
  // flags of cudaHostAlloc and cudaHostRegister
  cudaHostAllocPortable: 1,
  cudaHostAllocMapped: 2,
  cudaHostRegisterPortable: 1,
  cudaHostRegisterMapped: 2,
  // cudaMemPoolAttr
  cudaMemPoolAttrReleaseThreshold: 4,
  cudaMemPoolAttrReservedMemCurrent: 5,
  cudaMemPoolAttrUsedMemCurrent: 7,
  // flags of streams and events
  cudaStreamNonBlocking: 1,
  cudaEventDisableTiming: 2,
  // cudaStreamCaptureMode, cudaStreamCaptureStatus
  cudaStreamCaptureModeGlobal: 0,
  cudaStreamCaptureModeThreadLocal: 1,
  cudaStreamCaptureModeRelaxed: 2,
  cudaStreamCaptureStatusNone: 0,
  cudaStreamCaptureStatusActive: 1,
  cudaStreamCaptureStatusInvalidated: 2,
  // cudaGraphExecUpdateResult
  cudaGraphExecUpdateSuccess: 0,
  // cudaLaunchAttributeID
  cudaLaunchAttributeCooperative: 2,
  cudaLaunchAttributeClusterDimension: 4,
  cudaLaunchAttributeProgrammaticStreamSerialization: 6,
  cudaLaunchAttributePriority: 8,
  // cudaFuncAttribute
  cudaFuncAttributeMaxDynamicSharedMemorySize: 8,
  cudaFuncAttributePreferredSharedMemoryCarveout: 9,
  cudaFuncAttributeNonPortableClusterSizeAllowed: 14,
  // cudaDeviceAttr
  cudaDevAttrMaxThreadsPerBlock: 1,
  cudaDevAttrWarpSize: 10,
  cudaDevAttrMultiProcessorCount: 16,
  cudaDevAttrComputeMode: 20,
  cudaDevAttrEccEnabled: 32,
  cudaDevAttrGlobalMemoryBusWidth: 37,
  cudaDevAttrL2CacheSize: 38,
  cudaDevAttrMaxThreadsPerMultiProcessor: 39,
  cudaDevAttrComputeCapabilityMajor: 75,
  cudaDevAttrComputeCapabilityMinor: 76,
  cudaDevAttrMaxSharedMemoryPerMultiprocessor: 81,
  cudaDevAttrCooperativeLaunch: 95,
  cudaDevAttrMaxSharedMemoryPerBlockOptin: 97,
  cudaDevAttrMemoryPoolsSupported: 115,
} as const;

/** `cudaLaunchConfig_t`. */
export const CUDA_LAUNCH_CONFIG = {
  name: "cudaLaunchConfig_t",
  byteLength: 56,
  fields: {
    "gridDim.x": { offset: 0, type: "u32", initial: 1 },
    "gridDim.y": { offset: 4, type: "u32", initial: 1 },
    "gridDim.z": { offset: 8, type: "u32", initial: 1 },
    "blockDim.x": { offset: 12, type: "u32", initial: 1 },
    "blockDim.y": { offset: 16, type: "u32", initial: 1 },
    "blockDim.z": { offset: 20, type: "u32", initial: 1 },
    dynamicSmemBytes: { offset: 24, type: "usize" },
    stream: { offset: 32, type: "cudaStream_t" },
    attrs: { offset: 40, type: "address" },
    numAttrs: { offset: 48, type: "u32" },
  },
} as const;

/** `cudaLaunchAttribute`: which, and the members of its union that are in use. */
export const CUDA_LAUNCH_ATTRIBUTE = {
  name: "cudaLaunchAttribute",
  byteLength: 72,
  fields: {
    id: { offset: 0, type: "i32" },
    "val.cooperative": { offset: 8, type: "i32" },
    "val.clusterDim.x": { offset: 8, type: "u32" },
    "val.clusterDim.y": { offset: 12, type: "u32" },
    "val.clusterDim.z": { offset: 16, type: "u32" },
    "val.programmaticStreamSerializationAllowed": { offset: 8, type: "i32" },
    "val.priority": { offset: 8, type: "i32" },
  },
} as const;

/** `cudaGraphExecUpdateResultInfo`. */
export const CUDA_GRAPH_EXEC_UPDATE_RESULT_INFO = {
  name: "cudaGraphExecUpdateResultInfo",
  byteLength: 24,
  fields: { result: { offset: 0, type: "i32" } },
} as const;

/** Functions of the CUDA runtime. */
export const CUDART_BINDINGS = {
  cudaGetErrorName: { args: ["i32"], result: "cstring", check: "none" },
  cudaGetErrorString: { args: ["i32"], result: "cstring", check: "none" },
  cudaGetLastError: { args: [], result: "i32", check: "none" }, // the thread's last error, which it clears
  cudaRuntimeGetVersion: { args: [{ out: "i32" }], result: "i32", check: "status" },
  cudaDriverGetVersion: { args: [{ out: "i32" }], result: "i32", check: "status" },

  cudaGetDeviceCount: { args: [{ out: "i32" }], result: "i32", check: "status" },
  cudaGetDevice: { args: [{ out: "i32" }], result: "i32", check: "status" },
  cudaSetDevice: { args: ["i32"], result: "i32", check: "status" },
  cudaDeviceGetAttribute: { args: [{ out: "i32" }, "i32", "i32"], result: "i32", check: "status" },
  cudaDeviceGetPCIBusId: { args: ["buffer", "i32", "i32"], result: "i32", check: "status" },
  cudaDeviceSynchronize: { args: [], result: "i32", check: "status" },
  cudaDeviceCanAccessPeer: { args: [{ out: "i32" }, "i32", "i32"], result: "i32", check: "status" },
  cudaDeviceEnablePeerAccess: { args: ["i32", "u32"], result: "i32", check: "status" },
  cudaDeviceDisablePeerAccess: { args: ["i32"], result: "i32", check: "status" },

  cudaMalloc: { args: [{ out: "address" }, "usize"], result: "i32", check: "status" },
  cudaFree: { args: ["address"], result: "i32", check: "status" },
  cudaMallocAsync: { args: [{ out: "address" }, "usize", "cudaStream_t"], result: "i32", check: "status" },
  cudaFreeAsync: { args: ["address", "cudaStream_t"], result: "i32", check: "status" },
  cudaMemGetInfo: { args: [{ out: "usize" }, { out: "usize" }], result: "i32", check: "status" },
  cudaDeviceGetDefaultMemPool: { args: [{ out: "cudaMemPool_t" }, "i32"], result: "i32", check: "status" },
  cudaMemPoolGetAttribute: { args: ["cudaMemPool_t", "i32", "buffer"], result: "i32", check: "status" },
  cudaMemPoolSetAttribute: { args: ["cudaMemPool_t", "i32", "buffer"], result: "i32", check: "status" },
  cudaMemPoolTrimTo: { args: ["cudaMemPool_t", "usize"], result: "i32", check: "status" },
  cudaHostAlloc: { args: [{ out: "address" }, "usize", "u32"], result: "i32", check: "status" },
  cudaFreeHost: { args: ["address"], result: "i32", check: "status" },
  cudaHostRegister: { args: ["address", "usize", "u32"], result: "i32", check: "status" },
  cudaHostUnregister: { args: ["address"], result: "i32", check: "status" },
  // (destination, source, byteLength, kind, stream)
  cudaMemcpyAsync: { args: ["address", "address", "usize", "i32", "cudaStream_t"], result: "i32", check: "status" },
  // (destination, its pitch, source, its pitch, width in bytes, height, kind, stream)
  cudaMemcpy2DAsync: {
    args: ["address", "usize", "address", "usize", "usize", "usize", "i32", "cudaStream_t"],
    result: "i32",
    check: "status",
  },
  // (destination, its device, source, its device, byteLength, stream)
  cudaMemcpyPeerAsync: {
    args: ["address", "i32", "address", "i32", "usize", "cudaStream_t"],
    result: "i32",
    check: "status",
  },
  cudaMemsetAsync: { args: ["address", "i32", "usize", "cudaStream_t"], result: "i32", check: "status" },

  cudaDeviceGetStreamPriorityRange: { args: [{ out: "i32" }, { out: "i32" }], result: "i32", check: "status" },
  cudaStreamCreateWithPriority: { args: [{ out: "cudaStream_t" }, "u32", "i32"], result: "i32", check: "status" },
  cudaStreamDestroy: { args: ["cudaStream_t"], result: "i32", check: "status" },
  cudaStreamSynchronize: { args: ["cudaStream_t"], result: "i32", check: "status" },
  cudaStreamQuery: { args: ["cudaStream_t"], result: "i32", check: { status: ["cudaErrorNotReady"] } },
  cudaStreamWaitEvent: { args: ["cudaStream_t", "cudaEvent_t", "u32"], result: "i32", check: "status" },
  cudaEventCreateWithFlags: { args: [{ out: "cudaEvent_t" }, "u32"], result: "i32", check: "status" },
  cudaEventDestroy: { args: ["cudaEvent_t"], result: "i32", check: "status" },
  cudaEventRecord: { args: ["cudaEvent_t", "cudaStream_t"], result: "i32", check: "status" },
  cudaEventQuery: { args: ["cudaEvent_t"], result: "i32", check: { status: ["cudaErrorNotReady"] } },
  cudaEventSynchronize: { args: ["cudaEvent_t"], result: "i32", check: "status" },
  cudaEventElapsedTime: {
    args: [{ out: "f32" }, "cudaEvent_t", "cudaEvent_t"],
    result: "i32",
    check: { status: ["cudaErrorNotReady"] },
  },

  // Before 12.8, libcuda's functions of these names do the same: see `cuda.ts`.
  // (library, code, JIT options, their values, their count, library options, their values, their count)
  cudaLibraryLoadData: {
    args: [
      { out: "cudaLibrary_t" },
      "buffer",
      "optionalBuffer",
      "optionalBuffer",
      "u32",
      "optionalBuffer",
      "optionalBuffer",
      "u32",
    ],
    result: "i32",
    check: "status",
    since: "12.8",
  },
  cudaLibraryUnload: { args: ["cudaLibrary_t"], result: "i32", check: "status", since: "12.8" },
  cudaLibraryGetKernel: {
    args: [{ out: "cudaKernel_t" }, "cudaLibrary_t", "cstring"],
    result: "i32",
    check: "status",
    since: "12.8",
  },
  cudaKernelSetAttributeForDevice: {
    args: ["cudaKernel_t", "i32", "i32", "i32"],
    result: "i32",
    check: "status",
    since: "12.8",
  },
  // These take a kernel in the place of a host function's address.
  cudaOccupancyMaxActiveBlocksPerMultiprocessor: {
    args: [{ out: "i32" }, "address", "i32", "usize"],
    result: "i32",
    check: "status",
  },
  // (config, kernel, addresses of the arguments)
  cudaLaunchKernelExC: {
    args: [{ pointer: "cudaLaunchConfig_t" }, "address", "buffer"],
    result: "i32",
    check: "status",
  },

  cudaStreamBeginCapture: { args: ["cudaStream_t", "i32"], result: "i32", check: "status" },
  cudaStreamEndCapture: { args: ["cudaStream_t", { out: "cudaGraph_t" }], result: "i32", check: "status" },
  cudaStreamIsCapturing: { args: ["cudaStream_t", { out: "i32" }], result: "i32", check: "status" },
  cudaThreadExchangeStreamCaptureMode: { args: ["buffer"], result: "i32", check: "status" },
  cudaGraphInstantiate: { args: [{ out: "cudaGraphExec_t" }, "cudaGraph_t", "u64"], result: "i32", check: "status" },
  cudaGraphExecUpdate: {
    args: ["cudaGraphExec_t", "cudaGraph_t", { pointer: "cudaGraphExecUpdateResultInfo" }],
    result: "i32",
    check: { status: ["cudaErrorGraphExecUpdateFailure"] },
  },
  cudaGraphGetNodes: { args: ["cudaGraph_t", "optionalBuffer", { out: "usize" }], result: "i32", check: "status" },
  cudaGraphUpload: { args: ["cudaGraphExec_t", "cudaStream_t"], result: "i32", check: "status" },
  cudaGraphLaunch: { args: ["cudaGraphExec_t", "cudaStream_t"], result: "i32", check: "status" },
  cudaGraphDestroy: { args: ["cudaGraph_t"], result: "i32", check: "status" },
  cudaGraphExecDestroy: { args: ["cudaGraphExec_t"], result: "i32", check: "status" },
} as const;

/** The CUDA runtime. */
export const CUDART: LibrarySpec<typeof CUDART_BINDINGS> = {
  name: "CUDA runtime",
  bindings: CUDART_BINDINGS,
  statuses: {
    names: { 600: "cudaErrorNotReady", 910: "cudaErrorGraphExecUpdateFailure" },
    nameOf: "cudaGetErrorName",
    textOf: "cudaGetErrorString",
  },
  oldest: "12.4",
  sonames: ["libcudart.so.13", "libcudart.so.12", "libcudart.so"],
  override: "FULLYSHARD_CUDART_LIBRARY",
  packageDirectories: ["nvidia/cu13/lib", "nvidia/cuda_runtime/lib"],
  cuda: true,
  gives: "training on NVIDIA GPUs (with NCCL, cuBLASLt and NVRTC)",
  remedy: "Install it with 'pip install nvidia-cuda-runtime' (in an active virtual environment), or for a driver of " +
    "CUDA 12 'pip install nvidia-cuda-runtime-cu12'",
};

/**
 * The CUDA driver (`cuda.h`), for what the CUDA runtime lacks: libraries and kernels before 12.8, and maps for bulk copies
 * of tensors. Its handles are the runtime's: `CUlibrary` is `cudaLibrary_t`, and so are kernels and streams.
 *
 * A tensor map must lie on a multiple of 64 bytes, as pinned or device memory does and a JS buffer may not.
 *
 * @module
 */
import type { LibrarySpec } from "../library.ts";

/** Constants, with their C names. */
export const CUDA_CONSTANTS = {
  // CUtensorMapDataType
  CU_TENSOR_MAP_DATA_TYPE_UINT8: 0,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT16: 6,
  CU_TENSOR_MAP_DATA_TYPE_FLOAT32: 7,
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: 9,
  // CUtensorMapInterleave, CUtensorMapSwizzle
  CU_TENSOR_MAP_INTERLEAVE_NONE: 0,
  CU_TENSOR_MAP_SWIZZLE_NONE: 0,
  CU_TENSOR_MAP_SWIZZLE_32B: 1,
  CU_TENSOR_MAP_SWIZZLE_64B: 2,
  CU_TENSOR_MAP_SWIZZLE_128B: 3,
  // CUtensorMapL2promotion, CUtensorMapFloatOOBfill
  CU_TENSOR_MAP_L2_PROMOTION_NONE: 0,
  CU_TENSOR_MAP_L2_PROMOTION_L2_128B: 2,
  CU_TENSOR_MAP_L2_PROMOTION_L2_256B: 3,
  CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE: 0,
  // CUfunction_attribute
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES: 8,
} as const;

/** `CUlaunchConfig`. Its attributes are as the runtime's `cudaLaunchAttribute`. */
export const CU_LAUNCH_CONFIG = {
  name: "CUlaunchConfig",
  byteLength: 56,
  fields: {
    gridDimX: { offset: 0, type: "u32", initial: 1 },
    gridDimY: { offset: 4, type: "u32", initial: 1 },
    gridDimZ: { offset: 8, type: "u32", initial: 1 },
    blockDimX: { offset: 12, type: "u32", initial: 1 },
    blockDimY: { offset: 16, type: "u32", initial: 1 },
    blockDimZ: { offset: 20, type: "u32", initial: 1 },
    sharedMemBytes: { offset: 24, type: "u32" },
    hStream: { offset: 32, type: "cudaStream_t" },
    attrs: { offset: 40, type: "address" },
    numAttrs: { offset: 48, type: "u32" },
  },
} as const;

/** `CUtensorMap`. */
export const CU_TENSOR_MAP = {
  name: "CUtensorMap",
  byteLength: 128,
  fields: { opaque: { offset: 0, type: { bytes: 128 } } },
} as const;

/** Functions of the CUDA driver. */
const CUDA_BINDINGS = {
  cuDriverGetVersion: { args: [{ out: "i32" }], result: "i32", check: "status" },
  // (library, code, JIT options, their values, their count, library options, their values, their count)
  cuLibraryLoadData: {
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
  },
  cuLibraryUnload: { args: ["cudaLibrary_t"], result: "i32", check: "status" },
  cuLibraryGetKernel: {
    args: [{ out: "cudaKernel_t" }, "cudaLibrary_t", "cstring"],
    result: "i32",
    check: "status",
  },
  // (attribute, value, kernel, device)
  cuKernelSetAttribute: { args: ["i32", "i32", "cudaKernel_t", "i32"], result: "i32", check: "status" },
  // (config, kernel in the place of a function, addresses of the arguments, NULL)
  cuLaunchKernelEx: {
    args: [{ pointer: "CUlaunchConfig" }, "address", "buffer", "optionalBuffer"],
    result: "i32",
    check: "status",
  },
  // (map, type, rank, tensor, sizes, strides, box, steps, interleave, swizzle, L2 promotion, fill)
  cuTensorMapEncodeTiled: {
    args: ["address", "i32", "u32", "address", "buffer", "buffer", "buffer", "buffer", "i32", "i32", "i32", "i32"],
    result: "i32",
    check: "status",
  },
} as const;

/** The CUDA driver. */
export const CUDA: LibrarySpec<typeof CUDA_BINDINGS> = {
  name: "CUDA driver",
  bindings: CUDA_BINDINGS,
  statuses: {
    // Of CUresult, what these functions give; the driver's own names come by an out-parameter.
    names: {
      1: "CUDA_ERROR_INVALID_VALUE",
      2: "CUDA_ERROR_OUT_OF_MEMORY",
      3: "CUDA_ERROR_NOT_INITIALIZED",
      4: "CUDA_ERROR_DEINITIALIZED",
      100: "CUDA_ERROR_NO_DEVICE",
      101: "CUDA_ERROR_INVALID_DEVICE",
      200: "CUDA_ERROR_INVALID_IMAGE",
      201: "CUDA_ERROR_INVALID_CONTEXT",
      209: "CUDA_ERROR_NO_BINARY_FOR_GPU",
      400: "CUDA_ERROR_INVALID_HANDLE",
      500: "CUDA_ERROR_NOT_FOUND",
      700: "CUDA_ERROR_ILLEGAL_ADDRESS",
      701: "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
      719: "CUDA_ERROR_LAUNCH_FAILED",
      720: "CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE",
      801: "CUDA_ERROR_NOT_SUPPORTED",
      803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
      901: "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED",
      912: "CUDA_ERROR_INVALID_CLUSTER_SIZE",
      999: "CUDA_ERROR_UNKNOWN",
    },
  },
  oldest: "12.4",
  sonames: ["libcuda.so.1"],
  packageDirectories: [],
  driver: true,
  gives: "access to NVIDIA GPUs",
  remedy: "Install NVIDIA's driver of CUDA 12 or newer; in a container, start it with '--gpus all'",
};

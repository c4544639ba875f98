/**
 * NVML, the management of NVIDIA GPUs (`nvml.h`): table, constants, structs, no logic. Used for what `doctor` and
 * benchmarks report; nothing needs it.
 *
 * @module
 */
import type { LibrarySpec } from "../library.ts";

/** Constants, with their C names. */
export const NVML_CONSTANTS = {
  NVML_DEVICE_MIG_DISABLE: 0,
  NVML_DEVICE_MIG_ENABLE: 1,
  // nvmlComputeMode_t
  NVML_COMPUTEMODE_DEFAULT: 0,
  NVML_COMPUTEMODE_PROHIBITED: 2,
  NVML_COMPUTEMODE_EXCLUSIVE_PROCESS: 3,
  // nvmlGpuTopologyLevel_t
  NVML_TOPOLOGY_INTERNAL: 0,
  NVML_TOPOLOGY_SINGLE: 10,
  NVML_TOPOLOGY_MULTIPLE: 20,
  NVML_TOPOLOGY_HOSTBRIDGE: 30,
  NVML_TOPOLOGY_NODE: 40,
  NVML_TOPOLOGY_SYSTEM: 50,
} as const;

/** `nvmlMemory_t`: of all processes, in bytes. */
export const NVML_MEMORY = {
  name: "nvmlMemory_t",
  byteLength: 24,
  fields: {
    total: { offset: 0, type: "u64" },
    free: { offset: 8, type: "u64" },
    used: { offset: 16, type: "u64" },
  },
} as const;

/** Functions of NVML. */
export const NVML_BINDINGS = {
  nvmlErrorString: { args: ["i32"], result: "cstring", check: "none" },
  nvmlInit_v2: { args: [], result: "i32", check: "status" },
  nvmlShutdown: { args: [], result: "i32", check: "status" },
  nvmlSystemGetDriverVersion: { args: ["buffer", "u32"], result: "i32", check: "status" },
  nvmlSystemGetCudaDriverVersion_v2: { args: [{ out: "i32" }], result: "i32", check: "status" },
  nvmlDeviceGetCount_v2: { args: [{ out: "u32" }], result: "i32", check: "status" },
  nvmlDeviceGetHandleByPciBusId_v2: { args: ["cstring", { out: "nvmlDevice_t" }], result: "i32", check: "status" },
  nvmlDeviceGetName: { args: ["nvmlDevice_t", "buffer", "u32"], result: "i32", check: "status" },
  nvmlDeviceGetMemoryInfo: { args: ["nvmlDevice_t", { pointer: "nvmlMemory_t" }], result: "i32", check: "status" },
  nvmlDeviceGetComputeMode: { args: ["nvmlDevice_t", { out: "i32" }], result: "i32", check: "status" },
  // (device, mode, mode after the next reset)
  nvmlDeviceGetMigMode: {
    args: ["nvmlDevice_t", { out: "u32" }, { out: "u32" }],
    result: "i32",
    check: { status: ["NVML_ERROR_NOT_SUPPORTED"] },
  },
  nvmlDeviceGetTopologyCommonAncestor: {
    args: ["nvmlDevice_t", "nvmlDevice_t", { out: "i32" }],
    result: "i32",
    check: { status: ["NVML_ERROR_NOT_SUPPORTED"] },
  },
} as const;

/** NVML. */
export const NVML: LibrarySpec<typeof NVML_BINDINGS> = {
  name: "NVML",
  bindings: NVML_BINDINGS,
  statuses: {
    names: {
      1: "NVML_ERROR_UNINITIALIZED",
      2: "NVML_ERROR_INVALID_ARGUMENT",
      3: "NVML_ERROR_NOT_SUPPORTED",
      4: "NVML_ERROR_NO_PERMISSION",
      6: "NVML_ERROR_NOT_FOUND",
      9: "NVML_ERROR_DRIVER_NOT_LOADED",
      15: "NVML_ERROR_GPU_IS_LOST",
      18: "NVML_ERROR_LIB_RM_VERSION_MISMATCH",
      999: "NVML_ERROR_UNKNOWN",
    },
    textOf: "nvmlErrorString",
  },
  oldest: "12.4",
  sonames: ["libnvidia-ml.so.1"],
  packageDirectories: [],
  driver: true,
  gives: "names, memory and modes of NVIDIA GPUs, of all processes",
  remedy: "It comes with NVIDIA's driver; in a container, start it with '--gpus all'",
};

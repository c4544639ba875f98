/**
 * NVRTC, the run-time compiler of CUDA C++ (`nvrtc.h`): table, no logic. A program is an address; its `out` place is
 * what `nvrtcDestroyProgram` takes. A compilation that fails is an ordinary outcome, whose log is to be read.
 *
 * @module
 */
import type { LibrarySpec } from "../library.ts";

/** Functions of NVRTC. */
export const NVRTC_BINDINGS = {
  nvrtcGetErrorString: { args: ["i32"], result: "cstring", check: "none" },
  nvrtcVersion: { args: [{ out: "i32" }, { out: "i32" }], result: "i32", check: "status" },
  nvrtcGetNumSupportedArchs: { args: [{ out: "i32" }], result: "i32", check: "status" },
  nvrtcGetSupportedArchs: { args: ["buffer"], result: "i32", check: "status" },
  // (program, source, its name, count of headers, their sources, the names by which they are included)
  nvrtcCreateProgram: {
    args: [{ out: "address" }, "cstring", "cstring", "i32", "optionalBuffer", "optionalBuffer"],
    result: "i32",
    check: "status",
  },
  nvrtcDestroyProgram: { args: [{ out: "address" }], result: "i32", check: "status" },
  // (program, count of options, the options)
  nvrtcCompileProgram: {
    args: ["address", "i32", "optionalBuffer"],
    result: "i32",
    check: { status: ["NVRTC_ERROR_COMPILATION"] },
  },
  nvrtcGetProgramLogSize: { args: ["address", { out: "usize" }], result: "i32", check: "status" },
  nvrtcGetProgramLog: { args: ["address", "buffer"], result: "i32", check: "status" },
  nvrtcGetCUBINSize: { args: ["address", { out: "usize" }], result: "i32", check: "status" },
  nvrtcGetCUBIN: { args: ["address", "buffer"], result: "i32", check: "status" },
} as const;

/** NVRTC. */
export const NVRTC: LibrarySpec<typeof NVRTC_BINDINGS> = {
  name: "NVRTC",
  bindings: NVRTC_BINDINGS,
  statuses: { names: { 6: "NVRTC_ERROR_COMPILATION" }, nameOf: "nvrtcGetErrorString" },
  oldest: "12.4",
  sonames: ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
  override: "FULLYSHARD_NVRTC_LIBRARY",
  packageDirectories: ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"],
  companions: /^libnvrtc-builtins\.so\.\d+\.\d+$/, // NVRTC 13.0.88 has no run path by which to find them
  cuda: true,
  gives: "compilation of the GPU kernels at run time",
  remedy: "Install it with 'pip install nvidia-cuda-nvrtc' (in an active virtual environment), or for a driver of " +
    "CUDA 12 'pip install nvidia-cuda-nvrtc-cu12'",
};

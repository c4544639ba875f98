/**
 * Native libraries that `fullyshard doctor` looks for and this version does not use: where each lies, and what it would give.
 *
 * @module
 */
import type { LibrarySource } from "./library.ts";

const NOT_USED = "This version does not use it: there is no need to install it";

/** The CUDA runtime. */
export const CUDART: LibrarySource = {
  name: "CUDA runtime",
  sonames: ["libcudart.so.13", "libcudart.so.12", "libcudart.so"],
  override: "FULLYSHARD_CUDART_LIBRARY",
  packageDirectories: ["nvidia/cu13/lib", "nvidia/cuda_runtime/lib"],
  cuda: true,
  gives: "training on NVIDIA GPUs (with NCCL, cuBLASLt and NVRTC)",
  used: false,
  remedy: NOT_USED,
};

/** NCCL. */
export const NCCL: LibrarySource = {
  name: "NCCL",
  sonames: ["libnccl.so.2", "libnccl.so"],
  override: "FULLYSHARD_NCCL_LIBRARY",
  packageDirectories: ["nvidia/nccl/lib"],
  cuda: true,
  gives: "collectives between NVIDIA GPUs",
  used: false,
  remedy: NOT_USED,
};

/** cuBLASLt. */
export const CUBLASLT: LibrarySource = {
  name: "cuBLASLt",
  sonames: ["libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"],
  override: "FULLYSHARD_CUBLASLT_LIBRARY",
  packageDirectories: ["nvidia/cu13/lib", "nvidia/cublas/lib"],
  cuda: true,
  gives: "matrix products on NVIDIA GPUs",
  used: false,
  remedy: NOT_USED,
};

/** NVRTC. */
export const NVRTC: LibrarySource = {
  name: "NVRTC",
  sonames: ["libnvrtc.so.13", "libnvrtc.so.12", "libnvrtc.so"],
  override: "FULLYSHARD_NVRTC_LIBRARY",
  packageDirectories: ["nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib"],
  cuda: true,
  gives: "compilation of the GPU kernels at run time",
  used: false,
  remedy: NOT_USED,
};

/** MPI, of either ABI. */
export const MPI: LibrarySource = {
  name: "MPI",
  sonames: ["libmpi_abi.so.1", "libmpi.so.40", "libmpi.so.12", "libmpich.so.12"],
  override: "FULLYSHARD_MPI_LIBRARY",
  packageDirectories: [],
  gives: "collectives between hosts on the CPU",
  used: false,
  remedy: NOT_USED,
};

/** The libraries that `doctor` looks for and that nothing uses yet. */
export const PRESENCE_ONLY: readonly LibrarySource[] = [CUDART, NCCL, CUBLASLT, NVRTC, MPI];
